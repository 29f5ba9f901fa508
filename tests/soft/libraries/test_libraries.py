"""Real libraries on the software GPU against references in higher precision. `make test` runs a few cases of some, `make test-wide` a few of each,
`make test-long` all."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from soft.libraries import case, native, running, scan, table

from gpuvirt.soft import pipeline
from gpuvirt.soft.host import jit
from gpuvirt.soft.ptx.module import Module

LIBRARIES = sorted(case.LIBRARIES)
WIDE = ("cublas", "cudnn", "cupy", "cusolver", "cusparse")  # half a minute of kernels to compile
TRIES = 20  # of a fault that shows by chance
AT_ONCE = 400  # cases in one test of `make test-long`: some minutes each


def failures(records: list[running.Record]) -> str:
    return "\n".join(str(r) for r in records if not r.right)


@pytest.mark.slow
@pytest.mark.parametrize("library", [pytest.param(name, marks=pytest.mark.wide) if name in WIDE else name for name in LIBRARIES])
def test_some_cases(library: str, tmp_path: Path) -> None:
    """Every second of those cases of a library that are quick."""
    ids = [c.id for c in case.cases_of(library) if c.fast][::2]
    records = running.run(library, ids, tmp_path)
    assert [r.id for r in records] == ids and not failures(records), failures(records)
    assert any(r.kernels for r in records), "no kernel ran"


def parts() -> list[Any]:
    """Every library's cases in parts of about the same length and kind: (library, which, how many)."""
    counts = {library: math.ceil(sum(1 for _ in case.cases_of(library)) / AT_ONCE) for library in LIBRARIES}
    return [pytest.param(library, i, n, id=f"{library}-{i + 1}of{n}") for library, n in counts.items() for i in range(n)]


@pytest.fixture(scope="module")
def pages() -> Iterator[set[str]]:
    """The libraries whose pages in build/software-libraries are written at the end, of all that is recorded by then."""
    libraries: set[str] = set()
    yield libraries
    for library in libraries:
        table.write_page(library, list(table.recall(library).values()), scan_seconds=10)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("library, part, of", parts())
def test_all_cases(pages: set[str], library: str, part: int, of: int, tmp_path: Path) -> None:
    pages.add(library)
    ids = [c.id for c in case.cases_of(library)][part::of]
    say = partial(table.remember, library)
    records = running.run(library, ids, tmp_path, limit=900, say=say)  # a Mersenne twister's first state takes minutes
    assert len(records) == len(ids) and not failures(records), failures(records)


def test_the_page_speaks_of_the_cases_that_are_there() -> None:
    """A summary that was made before cases came or went is noticed."""
    there = {library.title: sum(1 for _ in case.cases_of(name)) for name, library in case.LIBRARIES.items()}
    assert table.summary_cases(table.DOCUMENT.read_text()) == there


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault, ids",
    [
        ("fma", ["cublas/gemm/float/127x65x33 NN", "cublas/gemm/double/127x65x33 NN"]),
        ("mma", ["cublas/gemmEx/half, float inside/64x64x64 NN"]),
    ],
)
def test_a_fault_is_noticed(fault: str, ids: list[str], tmp_path: Path) -> None:
    """A GPU whose arithmetic is a little off fails: the limits are no wider than they must be."""
    records = running.run("cublas", ids, tmp_path, fault=fault, cache=tmp_path / "cache")
    assert [r.id for r in records] == ids
    assert all(not r.failed and r.error > case.LIMIT for r in records), "\n".join(map(str, records))


@pytest.mark.wide
def test_sparse_cholesky_with_lanes_apart(tmp_path: Path) -> None:
    """cuSOLVER's sparse Cholesky where warps that wait leave the code for 32 lanes at the first chance; with lanes that do not keep in step it is wrong."""
    apart = {"GPUVIRT_SOFT_LANES": "always"}
    ids = [c.id for c in case.cases_of("cusolver") if "/csrchol/double/" in c.id]
    records = running.run("cusolver", ids, tmp_path, more=apart)
    assert len(records) == 1 and not failures(records), failures(records)
    for attempt in range(TRIES):  # how far lanes get out of step is a matter of chance, and one run in some is right all the same
        broken = running.run("cusolver", ids, tmp_path / f"broken{attempt}", fault="lanes", cache=tmp_path / "cache", more=apart)
        if broken and failures(broken):
            return
    pytest.fail("nobody noticed that lanes were out of step")


@pytest.mark.slow
def test_renamed_kernels_get_the_same_machine_code() -> None:
    """Kernels of cuBLAS's matrix products, by their own names and by others: what is compiled is the same, byte for byte, and so is its speed."""
    path = native.find("cublas", "libcublas.so.*")
    assert path is not None
    seen = 0
    for text in scan.ptx_texts(path, scan.Result(path.name)):
        found = re.search(r"\.entry\s+(\w*(?:gemm|gemv)\w*)", text)
        if not found:
            continue
        name = found.group(1)
        renamed = re.sub(rf"(?<![\w$%]){name}(?![\w$%])", "something_else", text)
        assert renamed != text
        code, seconds = [], []
        for module, entry in ((Module(text), name), (Module(renamed), "something_else")):
            begin = time.monotonic()
            ir, description, _ = pipeline.translate(module, entry, scan.block_of(module.funcs[entry]))
            code.append((jit.compile_object(ir, 1), description))
            seconds.append(time.monotonic() - begin)
        assert code[0] == code[1], name
        print(f"{name}: compiled in {seconds[0]:.2f} s, renamed in {seconds[1]:.2f} s")
        seen += 1
        if seen == 3:
            break
    assert seen == 3


@pytest.mark.wide
def test_renamed_kernels_give_the_same_bits(tmp_path: Path) -> None:
    """cuBLAS runs on kernels that have other names when they are compiled: its results are the same bits, its kernels as many."""
    ids = [
        "cublas/gemm/float/127x65x33 NN",
        "cublas/gemm/complex128/127x65x33 TC",
        "cublas/gemmBatched/double/9 of 32x32x32",
        "cublas/gemv/float/64 by 1 T",
    ]
    own = running.run("cublas", ids, tmp_path)
    other = running.run("cublas", ids, tmp_path / "renamed", fault="renamed", cache=tmp_path / "cache")
    assert [r.id for r in own] == [r.id for r in other] == ids and not failures(own + other), failures(own + other)
    assert [r.bits for r in own] == [r.bits for r in other]
    names = [sorted(name for _, name in r.kernels) for r in (*own, *other)]
    assert all(names) and all(len(a) == len(b) for a, b in zip(names[:4], names[4:], strict=True))
    assert all(name.startswith("kernel_") for part in names[4:] for name in part), "the kernels were not renamed"
    print("seconds:", *(f"{a.seconds} and {b.seconds}" for a, b in zip(own, other, strict=True)))
