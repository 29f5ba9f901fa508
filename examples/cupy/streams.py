"""Streams and events: work in order on each stream, between streams by events, and times from the device."""

import argparse

import cupy as cp
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--out", required=True)
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
x = rng.random(200_000).astype(np.float32)

step = cp.RawKernel(
    r"""
extern "C" __global__ void step(float *v, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) v[i] = v[i] * 0.5f + 1.0f;
}
""",
    "step",
)


def run(v, times):
    for _ in range(times):
        step(((v.size + 255) // 256,), (256,), (v, np.int32(v.size)))


first, second = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
begin, middle, end = cp.cuda.Event(), cp.cuda.Event(), cp.cuda.Event()
v = cp.asarray(x)
cp.cuda.Device().synchronize()

# The second stream goes on with what the first one made, and only the event says when.
with first:
    begin.record()
    run(v, 10)
    middle.record()
with second:
    second.wait_event(middle)
    run(v, 5)
    end.record()
end.synchronize()

many = [cp.cuda.Stream(non_blocking=True) for _ in range(4)]
parts = [cp.asarray(x[i::4]) for i in range(4)]
cp.cuda.Device().synchronize()
for stream, part in zip(many, parts, strict=True):
    with stream:
        run(part, 7)
for stream in many:
    stream.synchronize()

np.savez(
    args.out,
    chained=cp.asnumpy(v),
    parts=np.concatenate([cp.asnumpy(p) for p in parts]),
    milliseconds=np.array([cp.cuda.get_elapsed_time(begin, middle), cp.cuda.get_elapsed_time(begin, end)]),
    done=np.array([end.done, first.done, second.done]),
)
