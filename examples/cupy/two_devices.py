"""Two GPUs: kernels and memory on each, copies between them."""

import argparse

import cupy as cp
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--out", required=True)
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
x = rng.random(60_000).astype(np.float32)

with cp.cuda.Device(0):
    on_first = cp.asarray(x) * 2
with cp.cuda.Device(1):
    on_second = cp.asarray(on_first) + 1  # asarray copies from device 0 to device 1
    other = cp.arange(1000) ** 2
with cp.cuda.Device(0):
    back = cp.asarray(on_second) - 3
    peer = cp.empty_like(on_second)
    cp.cuda.runtime.memcpyPeer(peer.data.ptr, 0, on_second.data.ptr, 1, on_second.nbytes)

np.savez(
    args.out,
    count=np.array([cp.cuda.runtime.getDeviceCount()]),
    first=cp.asnumpy(on_first),
    second=cp.asnumpy(on_second),
    back=cp.asnumpy(back),
    peer=cp.asnumpy(peer),
    other=cp.asnumpy(other),
    devices=np.array([on_first.device.id, on_second.device.id, back.device.id]),
)
