"""PyTorch's allocator in its mode of expandable segments, which maps physical memory behind addresses as they are needed. Of PyTorch's own kernels none can run on a
software GPU; copies and Triton's kernels do."""

from __future__ import annotations

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import numpy as np
import torch
import triton
import triton.language as tl
from checks import check, main

rng = np.random.default_rng(1)
MIB = 1 << 20


def segments():
    return [s for s in torch.cuda.memory_snapshot() if s["is_expandable"]]


def numbers(mib):
    return torch.from_numpy(rng.integers(-(2**31), 2**31, mib * MIB // 4, dtype=np.int32))


@check
def segments_grow():
    """What lies on both sides of where a segment grew is whole."""
    tensors, sources = [], [numbers(mib) for mib in (1, 30, 7, 50, 3)]
    for source in sources:
        tensors.append(source.cuda())
        assert (tensors[-1].cpu() == source).all()
    for tensor, source in zip(tensors, sources, strict=True):
        assert (tensor.cpu() == source).all()
    assert sum(s["total_size"] for s in segments()) >= 91 * MIB and len(torch.cuda.memory_snapshot()) == len(segments())
    large = numbers(64)
    del tensors
    one = large.cuda()  # in the place of several
    assert (one.cpu() == large).all()
    moved = torch.empty_like(one).copy_(one)
    assert (moved.cpu() == large).all()


@triton.jit
def scale_kernel(x, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(x + i, tl.load(x + i, mask=i < n) * 3, mask=i < n)


@check
def kernels():
    """One kernel over the pieces of a segment."""
    torch.cuda.empty_cache()
    small, source = [numbers(6).cuda() for _ in range(4)], numbers(100)
    x = source.cuda()
    scale_kernel[(triton.cdiv(x.numel(), 4096),)](x, x.numel(), block=4096)
    assert (x.cpu().numpy() == source.numpy() * np.int32(3)).all()
    del small


@check
def memory_comes_back():
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    kept, gone = numbers(5).cuda(), [torch.empty(200 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    assert torch.cuda.mem_get_info()[0] <= before - 600 * MIB
    del gone
    torch.cuda.empty_cache()
    assert before - torch.cuda.mem_get_info()[0] <= 40 * MIB
    kept.cpu()


@check
def out_of_memory():
    """Told at once, with nothing lost; what is freed can be had again in one."""
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    half = torch.empty(free // 2, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(free // 2 + 64 * MIB, dtype=torch.uint8, device="cuda")
        raise AssertionError(f"{free} bytes were free, and more were had")
    except torch.OutOfMemoryError:
        pass
    source = numbers(5)
    assert (source.cuda().cpu() == source).all()
    del half
    torch.empty(free - 64 * MIB, dtype=torch.uint8, device="cuda")


main()
