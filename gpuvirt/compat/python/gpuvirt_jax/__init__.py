"""What JAX needs on software GPUs, by its own extension point (entry points "jax_plugins"). `gpuvirt run` puts this folder on PYTHONPATH for them.

From 0.12 on XLA compiles PTX to machine code within the process, for the newest device that it knows, which a software GPU is not. Two flags have
it call ptxas as it did before, and `gpuvirt run` has one on PATH that passes PTX through. Older XLAs end the program for a flag that they do not
know; so the version is looked at, and TensorFlow, whose XLA is another, is left alone.
"""

from __future__ import annotations

import os

FLAGS = ("--xla_gpu_enable_libnvptxcompiler=false", "--xla_gpu_enable_libnvjitlink=false")
SINCE = (0, 10)  # of jaxlib: both flags are known


def initialize() -> None:
    """Adds what of FLAGS the user has not set; JAX calls it before XLA reads its flags."""
    import jaxlib

    given = os.environ.get("XLA_FLAGS", "").split()
    if tuple(int(part) for part in jaxlib.__version__.split(".")[:2]) < SINCE or (given and not given[0].startswith("-")):
        return
    names = {flag.partition("=")[0] for flag in given}
    os.environ["XLA_FLAGS"] = " ".join([*(flag for flag in FLAGS if flag.partition("=")[0] not in names), *given])
