"""Programs compiled with nvcc -rdc=true whose device code was not linked for this device: their PTX is linked at load time."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import Server, clean_environment, run_program, start_server

from gpuvirt.demo.programs import find_nvcc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FIRST = """
#include <cstdio>
extern __device__ int other(int);
extern __device__ int counter;
extern __constant__ int table[4];
extern __global__ void show(int *);
static __device__ int own = 1000; // each piece has one
__device__ int back(int x) { return x + own; }
__global__ void call(int *p) {
    p[threadIdx.x] = other(threadIdx.x) + table[threadIdx.x & 3];
    atomicAdd(&counter, 1);
}
int main() {
    int *p, h[32], wrong = 0;
    cudaMalloc(&p, sizeof h);
    call<<<1, 32>>>(p);
    cudaMemcpy(h, p, sizeof h, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 32; i++) wrong += h[i] != 3 * i + 5 + 1000 + 10 * (i & 3);
    show<<<1, 32>>>(p);
    cudaMemcpy(h, p, sizeof h, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 32; i++) wrong += h[i] != 32 + i;
    std::printf("%d wrong, %d\\n", wrong, (int)cudaDeviceSynchronize());
}
"""
SECOND = """
__device__ int back(int);
__device__ int counter;
__constant__ int table[4] = {0, 10, 20, 30};
static __device__ int own = 5;
__device__ int other(int x) { return back(3 * x + own); }
__global__ void show(int *p) { p[threadIdx.x] = counter + threadIdx.x; }
"""
ASKS = """
#include <cstdio>
__global__ void parent(int *p) { cudaDeviceGetAttribute(p, cudaDevAttrMaxThreadsPerBlock, 0); }
int main() {
    int *p;
    cudaMalloc(&p, 4);
    parent<<<1, 1>>>(p);
    std::printf("error %d\\n", (int)cudaDeviceSynchronize());
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("separate")
    running = start_server(folder, "--backend", "soft", "--gpus", "1", "--gpu-memory", "256m", env=clean_environment(GPUVIRT_CACHE=str(folder)))
    yield running
    running.stop()


def build(folder: Path, *texts: str, options: tuple[str, ...]) -> Path:
    sources = []
    for number, text in enumerate(texts):
        sources.append(folder / f"piece{number}.cu")
        sources[-1].write_text(text)
    target = folder / "program"
    subprocess.run([str(find_nvcc()), "-rdc=true", "-cudart", "static", *options, *map(str, sources), "-o", str(target)], check=True)
    return target


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("-arch=sm_86",), id="linked-for-another"),
        pytest.param(("-gencode", "arch=compute_90,code=compute_90"), id="ptx-alone", marks=pytest.mark.long),
    ],
)
def test_pieces(server: Server, tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run_program(server, [build(tmp_path, FIRST, SECOND, options=options)])
    assert done.stdout == "0 wrong, 0\n", done.stdout + done.stderr


@pytest.mark.long
def test_missing_piece(server: Server, tmp_path: Path) -> None:
    """A kernel that asks the driver for what it does not have on the device fails, and says why."""
    done = run_program(server, [build(tmp_path, ASKS, options=("-arch=compute_75", "-lcudadevrt"))])
    assert done.stdout == "error 801\n" and "'__cuda_syscall_cnpv2DeviceGetAttribute' is not supported" in done.stderr, done.stdout + done.stderr
