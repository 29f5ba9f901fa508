"""The shim beside its program: whose environment it obeys, and what it writes on a terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import c_build
import pytest

from gpuvirt import paths

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/native/shim_environment"
SESSION = ROOT / "native/shim/session"
NOBODY = 65534


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, for programs that run as another one."""
    folder = Path(tempfile.mkdtemp(prefix="gpuvirt-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def give_rights(program: Path) -> dict[str, int]:
    """Makes `program` run with rights that whoever starts it does not have; returns as whom to start it (arguments of subprocess)."""
    if os.geteuid() == 0:
        program.chmod(0o4755)
        return {"user": NOBODY, "group": NOBODY}
    others = [group for group in os.getgroups() if group != os.getegid()]
    if not others:
        pytest.skip("neither root nor a member of a second group: no program can be given other rights")
    os.chown(program, -1, others[0])
    program.chmod(0o2755)
    return {}


@pytest.mark.parametrize("secure", [False, True])
def test_settings_of_a_program_with_others_rights(open_folder: Path, secure: bool) -> None:
    """GPUVIRT_TRACE names a file to write. Whoever starts a setuid program must not choose it."""
    library = Path(shutil.copy(paths.library(paths.CUDA), open_folder / "libcuda.so.1"))
    library.chmod(0o755)
    program = c_build.program(open_folder / "load", [HERE / "load.c"], libraries=["-ldl"])
    who = give_rights(program) if secure else {}
    written = open_folder / "trace"
    done = subprocess.run(
        [str(program), str(library)],
        capture_output=True,
        text=True,
        env={"GPUVIRT_TRACE": str(written)},
        timeout=60,
        extra_groups=[] if who else None,
        **who,
    )
    assert done.returncode == 0, done.stderr
    if secure and done.stdout != "secure\n":
        pytest.skip("the file system of temporary files gives programs no rights (nosuid)")
    assert written.exists() is not secure
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with ümläuts and 漢字", "plain, with ümläuts and 漢字"),
        ("\x1b]0;owned\x07\x1b[2J", r"\x1b]0;owned\x07\x1b[2J"),
        ("two\nlines\r", r"two\nlines\x0d"),
        ("\x7f \x9b31m", r"\x7f \xc2\x9b31m"),
        (b"\xff\xc3 half".decode("utf-8", "surrogateescape"), r"\xff\xc3 half"),
    ],
)
def test_texts_of_others_are_printable(tmp_path: Path, text: str, shown: str) -> None:
    """No byte of a server's text has a meaning for the terminal."""
    sources = [HERE / "log.c", SESSION / "log.c", SESSION / "log" / "log_lines.c", SESSION / "quiet_write.c"]
    flags = [f"-I{c_build.NATIVE}", f"-I{c_build.NATIVE / 'shim'}", f"-I{c_build.generated()}", f"-I{c_build.cuda_headers()}"]
    program = c_build.program(tmp_path / "log", sources, variant="address", flags=flags)
    done = subprocess.run([str(program), text], capture_output=True, timeout=60)
    assert done.stderr.decode() == f"gpuvirt: the server says: {shown}\n"


def test_a_long_text_is_cut(tmp_path: Path) -> None:
    sources = [HERE / "log.c", SESSION / "log.c", SESSION / "log" / "log_lines.c", SESSION / "quiet_write.c"]
    flags = [f"-I{c_build.NATIVE}", f"-I{c_build.NATIVE / 'shim'}", f"-I{c_build.generated()}", f"-I{c_build.cuda_headers()}"]
    program = c_build.program(tmp_path / "log", sources, variant="address", flags=flags)
    for text in ("x" * 5000, "\x1b" * 5000, "漢" * 5000):
        done = subprocess.run([str(program), text], capture_output=True, timeout=60)
        assert done.returncode == 0 and done.stderr.endswith(b"\n") and done.stderr.count(b"\n") == 1 and b"\x1b" not in done.stderr
