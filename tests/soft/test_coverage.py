"""Table of opcodes, docs/SOFTWARE_GPU.md and tests agree: every row is documented and tested."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from gpuvirt.soft import coverage
from gpuvirt.soft.ptx.opcodes import OPCODES, unknown

HERE = Path(__file__).parent
TABLES = (*(f"ops.test_ops_{name}" for name in ("integer", "floating", "convert", "warp", "video", "forms", "mma", "atomic", "texture")), "test_async_copy", "test_memory", "test_wgmma", "test_tcgen05", "test_stochastic_rounding", "test_sparse_mma", "test_block_scale", "test_small_elements", "test_im2col")
# The order of memory accesses, caches and hints: no test can see a difference.
UNSEEN = {
    "weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "sc", "cta", "cluster", "gpu", "sys", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc",
    "sync", "aligned", "uni", "mask", "L1", "L2", "proxy", "alias", "async", "async.global", "async::generic", "mbarrier_init", "L2::evict_last", "gl",
    "L2::evict_normal", "sync_restrict::shared::cta", "sync_restrict::shared::cluster", "tensormap", "tensormap::generic", "param", "const", "local", "global",
    "shared::cta", "shared::cluster", "param::entry", "param::func", "unified",
}  # fmt: skip
_WARPGROUP_SHAPE = re.compile(r"m64(n\d+)(k\d+)")
_INSTRUCTION = re.compile(r"(?<![\w.%\"/])([a-z][a-z0-9]*)((?:\.[A-Za-z0-9_:]+)*)(?=[\s;])")


@cache
def what_tests_run() -> dict[str, set[str]]:
    """For every opcode the types and modifiers with which it occurs in the tables of cases or in the test files' PTX."""
    texts = [path.read_text() for path in HERE.rglob("test_*.py") if path != Path(__file__)]
    for name in TABLES:
        module = importlib.import_module(f"soft.{name}")
        texts += [case.text for case in getattr(module, "CASES", [])] + getattr(module, "TEXTS", [])
    found: dict[str, set[str]] = {}
    for text in texts:
        for op, rest in _INSTRUCTION.findall(text):
            mods = tuple(rest.split(".")[1:])
            if op in OPCODES and unknown(op, mods) is None:
                found.setdefault(op, set()).update(mods)
    return found


def test_the_page_lists_the_table() -> None:
    assert coverage.main(["--check"]) == 0


def apart(words: Iterable[str]) -> set[str]:
    """With a warpgroup's shapes by their sides: any number of columns goes with any k."""
    shapes = {word: _WARPGROUP_SHAPE.fullmatch(word) for word in words}
    return {part for word, shape in shapes.items() for part in (shape.groups() if shape else (word,))}


@pytest.mark.parametrize("op", [op for op in OPCODES if not op.startswith("$")])
def test_every_type_of_an_opcode_has_a_test(op: str) -> None:
    assert op in what_tests_run(), "no test at all"
    missing = sorted(apart(OPCODES[op].types | OPCODES[op].modifiers) - apart(what_tests_run()[op]) - UNSEEN)
    assert not missing, f"{op}: no test with {', '.join(missing)}"
