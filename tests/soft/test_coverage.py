"""The page of opcodes is up to date, and (nearly) every opcode of the registry occurs in a test."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from gpuvirt.soft import coverage
from gpuvirt.soft.registry import OPCODES

HERE = Path(__file__).parent
UNTESTED_AT_MOST = 26


def exercised() -> set[str]:
    """Opcodes that occur as instructions in the tables of cases or in the test files' PTX."""
    texts = [path.read_text() for path in HERE.glob("test_*.py") if path != Path(__file__)]
    for module in ("test_ops_int", "test_ops_float", "test_ops_convert", "test_ops_warp"):
        texts += [case.text for case in importlib.import_module(f"soft.{module}").CASES]
    found = set(re.findall(r"(?:^|[\s;\"'}])([a-z][a-z0-9]+)(?=[.;])", "\n".join(texts)))
    return found & OPCODES.keys()


def test_the_page_lists_the_registry() -> None:
    assert coverage.main(["--check"]) == 0


def test_opcodes_without_a_test_are_few() -> None:
    untested = sorted(OPCODES.keys() - exercised())
    print("opcodes without a test of their own:", ", ".join(untested))
    assert len(untested) <= UNTESTED_AT_MOST, untested


