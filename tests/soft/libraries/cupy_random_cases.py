"""CuPy's random numbers against the distributions that they are of, and its special functions against SciPy's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import case
from .case import EPS, Case, Outcome
from .cupy_comparison import NAMES, draw, host


def random(generator: str, name: str, parameters: tuple[Any, ...], dtype: str) -> Any:
    """Mean, spread and the whole distribution (Kolmogorov's distance) of many numbers, in units of what chance makes them differ by."""
    import cupy
    import scipy.stats

    count = 40000
    if generator == "legacy":
        source: Any = cupy.random.RandomState(11)
        extra = {"dtype": dtype} if name in ("random_sample", "standard_normal", "uniform", "normal") else {}
        got = getattr(source, name)(*parameters, size=count, **extra)
    else:
        source = cupy.random.Generator(getattr(cupy.random, generator)(11))
        extra = {"dtype": dtype} if name in ("random", "standard_normal", "standard_exponential") else {}
        got = getattr(source, name)(*parameters, size=count, **extra)
    values = host(got).astype(np.float64)
    law = {
        "random": scipy.stats.uniform(), "random_sample": scipy.stats.uniform(), "uniform": scipy.stats.uniform(-1, 3), "normal": scipy.stats.norm(1, 2),
        "standard_normal": scipy.stats.norm(), "standard_exponential": scipy.stats.expon(), "exponential": scipy.stats.expon(scale=2),
        "standard_gamma": scipy.stats.gamma(2.5), "gamma": scipy.stats.gamma(2.5, scale=2), "beta": scipy.stats.beta(2, 3), "poisson": scipy.stats.poisson(4),
        "binomial": scipy.stats.binom(20, 0.3), "geometric": scipy.stats.geom(0.2), "chisquare": scipy.stats.chi2(3), "gumbel": scipy.stats.gumbel_r(),
        "laplace": scipy.stats.laplace(), "integers": scipy.stats.randint(0, 50), "randint": scipy.stats.randint(0, 50), "logseries": scipy.stats.logser(0.5),
        "rayleigh": scipy.stats.rayleigh(), "weibull": scipy.stats.weibull_min(2), "vonmises": scipy.stats.vonmises(1.5), "power": scipy.stats.powerlaw(3),
        "lognormal": scipy.stats.lognorm(0.5), "triangular": scipy.stats.triang(0.5), "standard_t": scipy.stats.t(9), "wald": scipy.stats.invgauss(1),
        "hypergeometric": scipy.stats.hypergeom(50, 20, 10),
    }[name]  # fmt: skip
    spread = law.std()
    order = np.sort(values)
    if hasattr(law.dist, "pmf"):
        points = np.unique(values)
        distance = np.abs(np.searchsorted(order, points, side="right") / count - law.cdf(points)).max()
    else:
        distance = scipy.stats.kstest(values, law.cdf).statistic
    kurtosis = float(law.stats("k")) + 2
    figures = np.array([(values.mean() - law.mean()) / spread, (values.std() / spread - 1) / (max(kurtosis, 0.1) / 4) ** 0.5, distance * 2])
    return Outcome(figures, np.zeros(3), 1, count**-0.5, 1.0)


LEGACY: dict[str, tuple[Any, ...]] = {
    "random_sample": (), "standard_normal": (), "uniform": (-1, 2), "normal": (1, 2), "exponential": (2,), "gamma": (2.5, 2), "beta": (2, 3), "poisson": (4,),
    "binomial": (20, 0.3), "geometric": (0.2,), "chisquare": (3,), "gumbel": (), "laplace": (), "randint": (0, 50), "rayleigh": (), "weibull": (2,),
    "vonmises": (0, 1.5), "lognormal": (0, 0.5), "power": (3,), "triangular": (0, 0.5, 1), "standard_t": (9,), "wald": (1, 1), "logseries": (0.5,),
    "hypergeometric": (20, 30, 10),
}  # fmt: skip
MODERN: dict[str, tuple[Any, ...]] = {
    "random": (), "standard_normal": (), "standard_exponential": (), "standard_gamma": (2.5,), "gamma": (2.5, 2), "beta": (2, 3), "poisson": (4,),
    "binomial": (20, 0.3), "geometric": (0.2,), "chisquare": (3,), "integers": (0, 50), "exponential": (2,), "hypergeometric": (20, 30, 10),
    "uniform": (-1, 2), "power": (3,), "logseries": (0.5,),
}  # fmt: skip


SPECIAL: dict[str, tuple[float, float, float]] = {
    "erf": (-3, 3, 1), "erfc": (-3, 3, 2), "gamma": (0.5, 6, 3), "gammaln": (0.5, 9, 4), "digamma": (0.5, 9, 8), "j0": (0, 9, 8), "j1": (0.1, 3, 4),
    "i0": (-3, 3, 4), "i1": (-3, 3, 4), "ndtr": (-3, 3, 2), "expit": (-4, 4, 1), "erfinv": (-0.9, 0.9, 2), "log_ndtr": (-3, 3, 8), "entr": (0.1, 4, 2), "exprel": (-2, 2, 8),
}  # fmt: skip


def special(name: str, n: int) -> Any:
    import cupy
    import cupyx.scipy.special
    import scipy.special

    low, high, slack = SPECIAL[name]
    a = draw(case.generator(name), "f", n, low, high)
    got = host(getattr(cupyx.scipy.special, name)(cupy.asarray(a)))
    want = getattr(scipy.special, name)(a.astype(np.float64))
    return Outcome(got, want, 1, EPS["f32"] * slack, np.abs(want) + (1 if name in ("gammaln", "digamma", "j0", "entr") else 0))


def cases() -> Iterator[Any]:
    lib = "cupy"
    for name in SPECIAL:
        yield Case(lib, f"special.{name}", "float", "1000", lambda name=name: special(name, 1000))
    for name, parameters in LEGACY.items():
        for dtype in ("f", "d") if name in ("random_sample", "standard_normal", "uniform", "normal") else ("d",):
            few = name == "standard_normal" and dtype == "f"
            yield Case(lib, f"random.{name}", NAMES[dtype], "RandomState", lambda a=("legacy", name, parameters, dtype): random(*a), few)
    for generator, (name, parameters) in itertools.product(("XORWOW", "MRG32k3a", "Philox4x3210"), MODERN.items()):
        for dtype in ("f", "d") if name in ("random", "standard_normal", "standard_exponential") else ("d",):
            few = name in ("gamma",) and generator == "Philox4x3210"
            yield Case(lib, f"random.{name}", NAMES[dtype], generator, lambda a=(generator, name, parameters, dtype): random(*a), few)
