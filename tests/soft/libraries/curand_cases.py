"""cuRAND's generators on the GPU against its own on the CPU: the same seed gives the same numbers.

Integers, uniform and Poisson numbers are compared bit for bit. Normal ones go through the processor's logarithm, sine and cosine on one side, the
kernel's on the other.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import native
from .case import EPS, Case, Outcome

PSEUDO = {"XORWOW": 101, "MRG32K3A": 121, "MTGP32": 141, "MT19937": 142, "PHILOX4_32_10": 161}
MTGP32, MT19937 = 141, 142
QUASI = {"SOBOL32": 201, "SCRAMBLED_SOBOL32": 202, "SOBOL64": 203, "SCRAMBLED_SOBOL64": 204}
# name: (function, type of the numbers, parameters after the count)
DISTRIBUTIONS: dict[str, tuple[str, Any, tuple[Any, ...]]] = {
    "integers": ("curandGenerate", np.uint32, ()),
    "long integers": ("curandGenerateLongLong", np.uint64, ()),
    "uniform, float": ("curandGenerateUniform", np.float32, ()),
    "uniform, double": ("curandGenerateUniformDouble", np.float64, ()),
    "normal, float": ("curandGenerateNormal", np.float32, (ctypes.c_float(1.0), ctypes.c_float(2.0))),
    "normal, double": ("curandGenerateNormalDouble", np.float64, (1.0, 2.0)),
    "lognormal, float": ("curandGenerateLogNormal", np.float32, (ctypes.c_float(0.0), ctypes.c_float(0.5))),
    "lognormal, double": ("curandGenerateLogNormalDouble", np.float64, (0.0, 0.5)),
    "Poisson(0.5)": ("curandGeneratePoisson", np.uint32, (0.5,)),
    "Poisson(20)": ("curandGeneratePoisson", np.uint32, (20.0,)),
    "Poisson(500)": ("curandGeneratePoisson", np.uint32, (500.0,)),
    "Poisson(5000)": ("curandGeneratePoisson", np.uint32, (5000.0,)),
}


@functools.cache
def library() -> Any:
    return native.Library("curand", "libcurand.so.*")


@functools.cache
def going_on(host: bool) -> Any:
    """One Mersenne twister for all cases: its first state takes a GPU minutes of a processor's time. Both twisters have made the same numbers so far."""
    generator = ctypes.c_void_p()
    library().call("curandCreateGeneratorHost" if host else "curandCreateGenerator", ctypes.byref(generator), MT19937)
    library().call("curandSetPseudoRandomGeneratorSeed", generator, ctypes.c_ulonglong(20261121))
    return generator


def numbers(host: bool, kind: int, distribution: str, count: int, offset: int, dimensions: int) -> Any:
    import cupy

    function, dtype, parameters = DISTRIBUTIONS[distribution]
    if kind == MT19937:
        out = np.zeros(count, dtype) if host else cupy.zeros(count, dtype)
        library().call(function, going_on(host), out, ctypes.c_size_t(count), *parameters)
        return out if host else cupy.asnumpy(out)
    generator = ctypes.c_void_p()
    library().call("curandCreateGeneratorHost" if host else "curandCreateGenerator", ctypes.byref(generator), kind)
    try:
        if kind < 200:
            library().call("curandSetPseudoRandomGeneratorSeed", generator, ctypes.c_ulonglong(20261121))
        else:
            library().call("curandSetQuasiRandomGeneratorDimensions", generator, dimensions)
        if kind != MTGP32:
            library().call("curandSetGeneratorOffset", generator, ctypes.c_ulonglong(offset))
        out = np.zeros(count, dtype) if host else cupy.zeros(count, dtype)
        for part in (out[: count // 4], out[count // 4 :]) if kind < 200 else (out,):  # the state goes on from call to call
            library().call(function, generator, part, ctypes.c_size_t(len(part)), *parameters)
        return out if host else cupy.asnumpy(out)
    finally:
        library().call("curandDestroyGenerator", generator)


def compare(kind: int, distribution: str, count: int, offset: int, dimensions: int) -> Any:
    got, want = (numbers(host, kind, distribution, count, offset, dimensions) for host in (False, True))
    if "normal" not in distribution:
        return Outcome(got, want, exact=True)
    # MTGP32 on the CPU calculates normal numbers in single precision; its lognormal ones of the same seed agree with the GPU's in double.
    single = got.dtype == np.float32 or (kind, distribution) == (MTGP32, "normal, double")
    eps = EPS["f32" if single else "f64"]
    # 2 is the standard deviation, by which the root of the logarithm is multiplied; in double that is up to 8.6.
    return Outcome(got, want, 1, eps, np.abs(want) + 2 * 6)


def cases() -> Iterator[Any]:
    for name, kind in (PSEUDO | QUASI).items():
        for distribution in DISTRIBUTIONS:
            if distribution == "integers" and name.endswith("64"):
                continue
            if distribution == "long integers" and not name.endswith("64"):
                continue
            for count, offset, dimensions in ((64, 0, 1), (20000, 1000, 1), (120000, 0, 3)):
                if dimensions > 1 and kind < 200 and distribution.startswith("Poisson"):
                    continue
                size = f"{count} from {offset}" + (f", {dimensions} dimensions" if kind > 200 else "")
                few = count == 20000 and kind not in (MT19937, 121) and distribution in ("uniform, float", "normal, double")
                yield Case(
                    "curand", name, distribution, size,
                    lambda a=(kind, distribution, count, offset, dimensions): compare(*a), few,
                )  # fmt: skip
