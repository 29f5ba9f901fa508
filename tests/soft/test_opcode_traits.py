"""Each trait in the opcode table matters: a kernel is wrong, or its code worse, once the trait is another (trait_flips.py has the kernels)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from soft import trait_flips

from gpuvirt.soft.ptx.opcodes import COLUMNS, OPCODES

TESTS = Path(__file__).resolve().parents[1]
FLIPS = trait_flips.all_flips()
PROCESSES = 2


@pytest.fixture(scope="module")
def outcomes() -> dict[int, tuple[Any, Any, bool]]:
    """By a flip's number: what its kernel gives with the table as it is and with the flip, and whether its IR is another."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    shares = [[str(n) for n in range(start, len(FLIPS), PROCESSES)] for start in range(PROCESSES)]
    running = [
        subprocess.Popen([sys.executable, "-m", "soft.trait_flips_run", *share], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for share in shares
    ]
    found = {}
    for one in running:
        out, errors = one.communicate(timeout=3000)
        assert one.returncode == 0, errors
        found.update({row[0]: tuple(row[1:]) for row in map(json.loads, out.splitlines())})
    return found


@pytest.mark.wide
@pytest.mark.timeout(6200)
@pytest.mark.parametrize("number", range(len(FLIPS)), ids=[flip.name for flip in FLIPS])
def test_a_trait_matters(number: int, outcomes: dict[int, tuple[Any, Any, bool]]) -> None:
    right, flipped, differs = outcomes[number]
    flip = FLIPS[number]
    assert right == flip.kernel.want, "wrong with the table as it is"
    if flip.costs:
        assert flipped == right and differs, "the same code with the trait as without"
    else:
        assert flipped != right, "right without the trait"


def test_every_word_of_the_table_is_flipped() -> None:
    """Each word that a row has in a column is some flip's; `-` in most columns is what the others are flipped to."""
    words = {(column, getattr(traits, column)) for row in OPCODES.values() for traits in row.all for column in COLUMNS}
    flipped = set()
    for flip in FLIPS:
        row = OPCODES[flip.op]
        traits = next(t for some, t in row.variants if flip.variant in some) if flip.variant else row.base
        flipped.add((flip.trait, getattr(traits, flip.trait)))
    left = {f"{column} {value.value}" for column, value in words - flipped}
    assert left == {"access -", "carry -", "denormals -", "polls -", "sync -", "varies -"}


def test_fifty_rows_and_more_make_kernels_wrong() -> None:
    assert len({flip.op for flip in FLIPS if not flip.costs}) >= 90
    assert len({(flip.op, flip.variant, flip.trait) for flip in FLIPS if not flip.costs}) >= 200
