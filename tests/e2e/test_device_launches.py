"""Kernels that launch kernels (dynamic parallelism): see programs/device_launches.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, run_program

pytestmark = pytest.mark.slow

OPTIONS = ("-rdc=true", "-lcudadevrt")


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_device_launches(pool: Server, build: Callable[..., Path], link: str) -> None:
    assert_right(run_program(pool, [build("device_launches", *OPTIONS)], "--link", link))


def test_a_fault_is_told_of_the_kernel_that_has_it(pool: Server, build: Callable[..., Path]) -> None:
    done = run_program(pool, [build("device_launches", *OPTIONS), "fault"])
    assert done.stdout == "cudaErrorIllegalAddress\n"
    assert "illegal address 0x40 in kernel _Z4wildv" in done.stderr
