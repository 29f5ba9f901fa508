"""What a case is: one operation of a library on one type and size, its result, and a reference in higher precision."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Units in the last place, as a fraction of one: 2^-(bits of the fraction).
EPS = {
    "f64": 2.0**-52,
    "f32": 2.0**-23,
    "tf32": 2.0**-10,
    "f16": 2.0**-10,
    "bf16": 2.0**-7,
}
LIMIT = 4.0
SINGLE, DOUBLE = EPS["f32"], EPS["f64"]


@dataclass(frozen=True)
class Library:
    """Where a library's cases are, and its files: (folder of NVIDIA's wheels, or of site-packages; pattern). note: for its section of the tables.

    Each module has a function `cases() -> Iterator[Case]`; it may import CuPy only inside the functions that run.
    """

    title: str
    modules: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    note: str = ""


CUBLAS_NOTE = """Products of 8-bit integers run where the library chooses a kernel that has PTX; for others (64x64x64 among them) it has machine code
alone, and cuBLAS returns `CUBLAS_STATUS_NOT_SUPPORTED`. The same status, by the library's own choice, have at this capability strided batches of complex
numbers in TF32, and `cublasCsyrk3mEx` and `cublasCherk3mEx`."""
CUFFT_NOTE = """Beside PTX the file has 11,651 containers that hold LTO-IR alone. They are linked with a program's own callbacks when a plan is made
(`cufftXtSetJITCallback`), and such a plan is refused with `CUFFT_INTERNAL_ERROR`. All transforms without callbacks have PTX."""
CURAND_NOTE = """The reference is the library's own generator on the CPU with the same seed. MTGP32's normal numbers in double are compared as float ones: there
the CPU generator calculates in single precision (its lognormal ones agree in double)."""
CUSPARSE_NOTE = """Of the library itself: SDDMM takes complex matrices that are to be transposed and conjugated without an error and reads them as they are,
`csr2csr_compress` keeps the values above its tolerance, not those whose size is (so its PTX compares), and products of floats in blocked
ELLPACK are done in TF32."""
LIBRARIES = {
    "cublas": Library("cuBLAS and cuBLASLt", ("cublas_cases",), (("cublas/lib", "libcublas.so.*"), ("cublas/lib", "libcublasLt.so.*")), CUBLAS_NOTE),
    "cufft": Library("cuFFT", ("cufft_cases",), (("cufft/lib", "libcufft.so.*"),), CUFFT_NOTE),
    "curand": Library("cuRAND", ("curand_cases",), (("curand/lib", "libcurand.so.*"),), CURAND_NOTE),
    "cudnn": Library("cuDNN", ("cudnn_cases", "cudnn_more_cases"), (("cudnn/lib", "libcudnn_*.so.*"),)),
    "cupy": Library(
        "CuPy",
        ("cupy_cases", "cupy_algebra_cases", "cupy_random_cases"),
        (("cupy", "_core/*.so"), ("cupy/cuda", "*.so"), ("cupy/random", "*.so")),
    ),
    "cusolver": Library("cuSOLVER", ("cusolver_cases", "cusolver_api_cases"), (("cusolver/lib", "libcusolver.so.*"),)),
    "cusparse": Library("cuSPARSE", ("cusparse_cases", "cusparse_api_cases"), (("cusparse/lib", "libcusparse.so.*"),), CUSPARSE_NOTE),
}


@dataclass
class Outcome:
    """A result and what it is held against.

    The error is the largest |result - reference| in units of sqrt(k)*eps*scale + store*|reference|; above LIMIT the case fails. Below the normal
    numbers of half, what is stored is as coarse as at the smallest of them.

    Attributes:
        k: the reduction's length (1 for elementwise operations).
        eps: of the type that the library calculates in.
        scale: the size of the numbers that were added up, per element or for all; None: |reference|.
        store: eps of the type that results are rounded to, when it is another.
        exact: bit for bit (integers, copies, comparisons); a NaN equals a NaN.
    """

    result: Any
    reference: Any
    k: float = 1
    eps: float = SINGLE
    scale: Any = None
    store: float = 0.0
    exact: bool = False

    def error(self) -> float:
        """In the units above; infinite when something is no number that should be, or has another shape."""
        got, want = np.asarray(self.result), np.asarray(self.reference)
        if got.shape != want.shape:
            return float("inf")
        if not got.size:
            return 0.0
        if self.exact:
            same = got == want
            if got.dtype.kind in "fc" and want.dtype.kind in "fc":
                same |= np.isnan(got) & np.isnan(want)
            return 0.0 if bool(np.all(same)) else float("inf")
        wide = np.clongdouble if "c" in got.dtype.kind + want.dtype.kind else np.longdouble
        got, want = got.astype(wide), want.astype(wide)
        plain = np.isfinite(want)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        if not np.all(np.isfinite(got)[plain]) or not np.all(same[~plain]):
            return float("inf")
        scale = np.abs(want) if self.scale is None else np.abs(np.broadcast_to(np.asarray(self.scale), want.shape))
        unit = np.sqrt(np.longdouble(self.k)) * self.eps * scale + self.store * np.maximum(np.abs(want), 2.0**-14 if self.store == EPS["f16"] else 0)
        off = np.abs(got - want)[plain]
        unit = np.broadcast_to(unit, want.shape)[plain]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(off == 0, 0, off / unit)
        return float(np.max(ratio, initial=0.0))


@dataclass(frozen=True)
class Case:
    """fast: also in `make test`. no_ptx: for this the library chooses a kernel that its file has as machine code only, which must be refused with an
    error; should it find another way, the result must be right."""

    library: str
    operation: str
    type: str
    size: str
    run: Callable[[], Outcome] = field(compare=False)
    fast: bool = False
    no_ptx: bool = False

    @property
    def id(self) -> str:
        return f"{self.library}/{self.operation}/{self.type}/{self.size}"


def cases_of(library: str) -> Iterator[Case]:
    """All cases of a library."""
    seen: set[str] = set()
    for module in LIBRARIES[library].modules:
        for case in importlib.import_module(f"{__package__}.{module}").cases():
            if case.id in seen:
                raise ValueError(f"two cases are called {case.id}")
            seen.add(case.id)
            yield case


def generator(*names: object) -> np.random.Generator:
    """Random numbers that belong to a case: always the same ones."""
    return np.random.default_rng(list(":".join(map(str, names)).encode()))


def to_bf16(values: Any) -> Any:
    """The nearest bfloat16 numbers, as 16-bit integers."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: Any) -> Any:
    """bfloat16 numbers (16-bit integers) as float32."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)
