"""Input of the programs of checks: random numbers, the same in every run."""

from __future__ import annotations

import numpy as np

EPS = float(np.finfo(np.float32).eps)
rng = np.random.default_rng(1)


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def positive(n):
    """A symmetric matrix whose eigenvalues are positive."""
    a = normal(n, n)
    return a @ a.T + n * np.eye(n, dtype=np.float32)
