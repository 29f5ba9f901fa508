"""Fuzzes the decoders briefly with fixed seeds, and shows that a missing check would be found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import c_build
import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/fuzz"
RUNS, SECONDS = "200000", "15"


def shapes() -> Iterator[str]:
    """A row for handlers.c of each command: the size of its body's fixed part, and where the lengths of its blobs stand there."""
    sys.path.insert(0, str(ROOT / "native/api"))
    try:
        import command_spec
    finally:
        sys.path.remove(str(ROOT / "native/api"))
    for c in command_spec.load(ROOT / "native/api/commands.toml").commands:
        blobs = ", ".join(f"{{{f.offset}, {int(f.type == 'str')}}}" for f in c.body.blobs)
        yield f"{{GV_OP_{c.name.upper()}, {c.body.fixed}, {len(c.body.blobs)}, {{{blobs}}}}},\n"


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the list of the generated command decoders, which is what driver.c goes through."""
    folder = tmp_path_factory.mktemp("generated")
    names = re.findall(r"^int (\w+)_decode\(", (c_build.generated() / "gv_commands.h").read_text(), re.MULTILINE)
    assert len(names) > 20
    (folder / "shapes.inc").write_text("".join(shapes()))
    (folder / "decoders.inc").write_text("".join(f"DECODER({name})\n" for name in names))
    return folder


def build(folder: Path, generated: Path, *flags: str) -> Path:
    sources = [HERE / "decode.c", HERE / "driver.c", *sorted((ROOT / "native/wire").glob("*.c")), c_build.generated() / "gv_commands.c"]
    include = [f"-I{generated}", f"-I{c_build.generated()}", f"-I{ROOT / 'native/wire'}", "-DFUZZ_COMMANDS"]
    return c_build.program(folder / "fuzz", sources, variant="address", flags=[*include, *flags])


# What stands between the decoder and the backend; threads, sockets and payload channels stay outside, or are handlers.c's own.
NOT_HANDLERS = {"bulk", "bulk_copy_in", "executor", "key_exchange", "memory_usage_release", "read_ahead", "worker"}


def build_handlers(folder: Path, generated: Path) -> Path:
    worker = ROOT / "native/worker"
    sources = [HERE / "handlers.c", *(p for p in sorted(worker.glob("*.c")) if p.stem not in NOT_HANDLERS)]
    sources += [worker / "sharing" / "exports.c", *sorted((worker / "host").glob("*.c")), *sorted((ROOT / "native/wire").glob("*.c"))]
    sources += [c_build.generated() / f"{name}.c" for name in ("gv_commands", "gv_dispatch", "gv_objects")]
    include = [f"-I{folder}" for folder in (generated, c_build.generated(), ROOT / "native/wire", worker)]
    return c_build.program(folder / "handlers", sources, variant="address", flags=include)


def fuzz(program: Path, *args: str) -> subprocess.CompletedProcess[str]:
    # An ASan report ends the program by abort, so that the driver keeps the input.
    env = {**os.environ, "ASAN_OPTIONS": "abort_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1"}
    return subprocess.run([str(program), *args], capture_output=True, text=True, timeout=120, cwd=program.parent, env=env)


def test_decoders_hold(tmp_path: Path, generated: Path) -> None:
    done = fuzz(build(tmp_path, generated), RUNS, SECONDS, "7")
    assert done.returncode == 0, done.stderr[-6000:]
    inputs, decoders = map(int, re.findall(r"\d+", done.stdout))
    assert inputs >= 2000 and decoders > 20


@pytest.mark.slow
def test_a_missing_check_is_noticed(tmp_path: Path, generated: Path) -> None:
    """GV_BREAK_DECODER leaves out the comparison of a record's size with the reader's room."""
    program = build(tmp_path, generated, "-DGV_BREAK_DECODER")
    done = fuzz(program, RUNS, SECONDS, "7")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
    again = fuzz(program, "crash-input")
    assert again.returncode != 0 and "heap-buffer-overflow" in again.stderr


@pytest.fixture(scope="module")
def handlers(tmp_path_factory: pytest.TempPathFactory, generated: Path) -> Path:
    return build_handlers(tmp_path_factory.mktemp("handlers"), generated)


def run_handlers(program: Path, *args: str) -> subprocess.CompletedProcess[str]:
    # Objects of the last worker are not taken apart; a copy of many gigabytes gets no memory, as on a server that has none.
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=16"}
    return subprocess.run([str(program), *args], capture_output=True, text=True, timeout=120, env=env)


@pytest.mark.slow
def test_handlers_hold(handlers: Path) -> None:
    done = run_handlers(handlers, "100000", "15", "7")
    assert done.returncode == 0, done.stderr[-6000:]
    commands, carried_out, kinds, known = map(int, re.findall(r"\d+", done.stdout))
    assert commands >= 2000 and carried_out * 4 > commands and kinds >= known - 2, done.stdout


@pytest.mark.slow
def test_bodies_of_another_size_are_refused(handlers: Path) -> None:
    done = run_handlers(handlers, "refused")
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr[-6000:]


@pytest.mark.slow
def test_a_count_of_inputs_that_wraps(handlers: Path) -> None:
    """A link of 2^32 - 1 inputs, as a payload of 4 GiB can announce."""
    done = run_handlers(handlers, "many_inputs")
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout == "refused\n"


@pytest.mark.slow
def test_a_missing_check_of_a_field_is_noticed(tmp_path: Path, generated: Path) -> None:
    """GV_BREAK_FIELD leaves out the comparison of a field's size with what is left of its message, in the handshake's decoders."""
    program = build(tmp_path, generated, "-DGV_BREAK_FIELD")
    done = fuzz(program, RUNS, SECONDS, "7")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
