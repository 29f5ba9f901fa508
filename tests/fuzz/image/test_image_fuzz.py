"""Fuzzes what a worker makes of a session's image, and shows what the fuzzer would find."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import c_build
import pytest
from fuzz.image.build_fuzzer import HERE, SANITIZERS, SESSION, build
from fuzz.image.seeded_bugs import BUGS, Bug
from fuzz.worker.build_fuzzer import NATIVE

SEED = os.environ.get("FUZZ_SEED", "7")


def fuzz(program: Path, folder: Path, *arguments: str, patience: float = 600) -> subprocess.CompletedProcess[str]:
    line = [str(program), "--folder", str(folder), "--session", str(SESSION), "--patience", "120", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=patience, env={**os.environ, **SANITIZERS})


def nothing_found(ran: subprocess.CompletedProcess[str]) -> tuple[int, ...]:
    """Images, those that were refused, for how many reasons, and those that were taken over; prints what was found with how to repeat it."""
    assert ran.returncode == 0, ran.stdout[-12000:] + ran.stderr[-2000:]
    print(ran.stdout)
    return tuple(map(int, re.findall(r"\d+", ran.stdout.splitlines()[0])))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where fuzzers are built."""
    return tmp_path_factory.mktemp("image")


@pytest.fixture(scope="module")
def fuzzer(programs: Path) -> Path:
    return build(programs)


@pytest.mark.slow
def test_damaged_images(fuzzer: Path, tmp_path: Path) -> None:
    """The same damage each time; FUZZ_SEED does other. The first three images are whole, over each transport, and become sessions."""
    images, refused, reasons, taken = nothing_found(fuzz(fuzzer, tmp_path, "--seed", SEED, "--runs", "150", "run"))
    assert images == 150 == refused + taken and refused >= 50 and taken >= 20 and reasons >= 8


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_damaged_images_for_long(fuzzer: Path, tmp_path: Path, seed: int) -> None:
    assert nothing_found(fuzz(fuzzer, tmp_path, "--seed", str(seed), "--seconds", "600", "run", patience=1500))[0] >= 1000


@pytest.mark.slow
def test_what_was_found_stays_mended(fuzzer: Path, tmp_path: Path) -> None:
    """Each file of found/ is damage that a worker did not bear once."""
    files = [str(p) for p in sorted((HERE / "found").glob("*.txt"))]
    assert nothing_found(fuzz(fuzzer, tmp_path, "replay", *files))[0] == len(files) > 0


@pytest.mark.slow
@pytest.mark.parametrize("text", ["set 1 2 3\n", "base 0\nset 1 2\n", "base 0\nset 99 1 1\n", "base 7\n", "base 0\nbreak 1 2 3\n"])
def test_a_file_that_is_no_damage_is_refused(fuzzer: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "x.txt").write_text(text)
    ran = fuzz(fuzzer, tmp_path, "replay", str(tmp_path / "x.txt"))
    assert ran.returncode == 2 and "this is no damage" in ran.stderr


def with_bug(bug: Bug) -> str:
    return c_build.with_defect(NATIVE / bug.file, bug.old, bug.new)


def test_the_seeded_bugs_fit_the_product() -> None:
    """Those of the long tests too: who changes the product hears of it at once."""
    assert all(with_bug(bug) for bug in BUGS)


@pytest.mark.parametrize("bug", [pytest.param(b, id=b.name, marks=pytest.mark.slow if not i else pytest.mark.wide) for i, b in enumerate(BUGS)])
def test_a_missing_check_is_noticed(bug: Bug, programs: Path, tmp_path: Path) -> None:
    source = NATIVE / bug.file
    copy = tmp_path / source.name
    copy.write_text(with_bug(bug))
    program = build(programs, instead={source: copy}, name=f"image_fuzzer-{BUGS.index(bug)}")
    ran = fuzz(program, tmp_path, "--seed", "7", "--runs", "4000", "run", patience=1500)
    assert ran.returncode == 1 and re.search(bug.shows, ran.stdout), ran.stdout[-6000:]
    again = fuzz(program, tmp_path, "replay", str(tmp_path / "wrong.txt"))
    assert again.returncode == 1 and re.search(bug.shows, again.stdout), again.stdout[-4000:]
