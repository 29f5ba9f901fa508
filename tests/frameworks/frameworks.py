"""The frameworks: what their users install, and a first program of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Debian:
    """Packages of a suite of Debian's, and what runs of them: a Python, which runs the framework's program, or a program that is handed to it.

    `libraries`: folders of the tree with more of them.
    """

    suite: str
    packages: tuple[str, ...]
    runs: str
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Framework:
    """`packages`: what pip is asked for, the newest that there is. `program`: in the folder programs. `debian`: what is had from there."""

    name: str
    packages: tuple[str, ...]
    program: str
    debian: Debian | None = None


_ALL = (
    Framework("cupy", ("cupy-cuda12x[ctk]",), "with_cupy.py"),
    Framework("numba", ("numba-cuda[cu12]",), "with_numba.py"),
    Framework("xgboost", ("xgboost", "scikit-learn"), "with_xgboost.py"),
    Framework("jax", ("jax[cuda12]",), "with_jax.py"),
    Framework("tensorflow", ("tensorflow[and-cuda]",), "with_tensorflow.py"),
    Framework("warp", ("warp-lang", "numpy"), "with_warp.py"),
    Framework("taichi", ("taichi", "numpy"), "with_taichi.py"),
    Framework("tinygrad", ("tinygrad", "nvidia-cuda-nvrtc-cu12", "numpy"), "with_tinygrad.py"),
    Framework("cuda-core", ("cuda-core[cu12]", "cupy-cuda12x"), "with_cuda_core.py"),
    Framework("cuda-cccl", ("cuda-cccl[cu12]", "cupy-cuda12x[ctk]"), "with_cuda_cccl.py"),
    Framework("triton", ("torch", "numpy"), "with_triton.py"),
    Framework(
        "torch", ("nvidia-cudnn-cu12",), "with_torch.py",
        Debian("trixie", ("python3-torch-cuda",), "usr/bin/python3.13", ("usr/lib/python3/dist-packages/torch/lib",)),
    ),
    Framework(
        "ggml", (), "with_ggml.py",
        Debian("sid", ("llama.cpp-tests", "libggml0-backend-cuda"), "usr/libexec/x86_64-linux-gnu/ggml/test-backend-ops"),
    ),
)
FRAMEWORKS = {framework.name: framework for framework in _ALL}
