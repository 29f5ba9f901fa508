"""Whose CUDA libraries a program finds: those of the Python that runs it, behind what the user has on LD_LIBRARY_PATH."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpuvirt.client.cuda_libraries import folders
from gpuvirt.client.environment import Variable, apply


def library(packages: Path, name: str = "cusolver") -> str:
    folder = packages / "nvidia" / name / "lib"
    folder.mkdir(parents=True)
    (folder / f"lib{name}.so.11").touch()
    return str(folder)


def python(prefix: Path, name: str = "python3", system: bool | None = None) -> Path:
    """An executable of that name; system: of a virtual environment that sees the system's packages, or does not."""
    path = prefix / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    if system is not None:
        (prefix / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = {str(system).lower()}\n")
    return path


def script(path: Path, first: str) -> Path:
    path.write_text(f"{first}\nimport train\n")
    path.chmod(0o755)
    return path


def test_of_a_virtual_environment(tmp_path: Path) -> None:
    """By its Python, by a script that names it, and by one that has it found on PATH."""
    venv, other = tmp_path / "venv", tmp_path / "other"
    python(venv, system=False), python(other, "python", system=False)
    mine, another = library(venv / "lib/python3.12/site-packages"), library(other / "lib/python3.13/site-packages")
    empty = venv / "lib/python3.12/site-packages/nvidia/empty/lib"
    empty.mkdir(parents=True)
    home = tmp_path / "home"
    library(home / ".local/lib/python3.12/site-packages")
    env = {"PATH": f"{other}/bin:/usr/bin:/bin", "HOME": str(home)}
    named = script(tmp_path / "named", f"#!{venv}/bin/python3 -I")
    found = script(tmp_path / "found", "#!/usr/bin/env -S A=1 python")
    shell = script(tmp_path / "shell", "#!/bin/sh")
    assert folders([str(venv / "bin/python3"), "train.py"], env) == [mine]
    assert folders([str(named)], env) == [mine]
    assert folders([str(found)], env) == folders(["python"], env) == [another]
    for else_ in ([str(shell)], ["sh", "-c", "python train.py"], [], [str(tmp_path / "nowhere")]):
        assert folders(else_, env | {"PATH": f"{venv}/bin:/usr/bin:/bin"}) == [mine]
    assert folders(["sh"], {"PATH": str(tmp_path / "nowhere")}) == []


def test_of_the_user_and_of_pythonpath(tmp_path: Path) -> None:
    """What PYTHONPATH names is found first, as Python does."""
    venv, home = tmp_path / "venv", tmp_path / "home"
    here = python(venv, system=True)
    mine, users = library(venv / "lib/python3.12/site-packages"), library(home / ".local/lib/python3.12/site-packages")
    listed = library(tmp_path / "listed", "cudnn")
    library(tmp_path / "a:colon")  # LD_LIBRARY_PATH cannot hold it
    env = {"PATH": "", "HOME": str(home), "PYTHONPATH": f"{tmp_path}/listed:{tmp_path}/nowhere:"}
    assert folders([str(here)], env)[:3] == [listed, mine, users]
    (venv / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    assert folders([str(here)], env) == [listed, mine]
    (venv / "pyvenv.cfg").write_bytes(b"\xff")
    assert folders([str(here)], env) == [listed, mine]


@pytest.mark.parametrize("before", [None, "", "/mine", "/mine:/a"])
def test_behind_what_the_user_has(before: str | None) -> None:
    """In the launcher and in what `gpuvirt env` prints."""
    variable = Variable("LD_LIBRARY_PATH", "/a:/b", "", suffix=True)
    env = {} if before is None else {"LD_LIBRARY_PATH": before}
    merged = apply([variable], env)["LD_LIBRARY_PATH"]
    assert merged == ":".join([*(before.split(":") if before else ["/a"]), *(["/a"] if before == "/mine" else []), "/b"])
    shown = subprocess.run(["sh", "-c", variable.exported() + '; echo "$LD_LIBRARY_PATH"'], capture_output=True, text=True, env=env, check=True)
    assert shown.stdout.strip() == (f"{before}:/a:/b" if before else "/a:/b")


def test_a_relative_folder(tmp_path: Path) -> None:
    """The program may go elsewhere before it loads a library."""
    library(tmp_path / "packages")
    (found,) = folders(["env"], {"PATH": "/nowhere", "PYTHONPATH": os.path.relpath(tmp_path / "packages")})
    assert found == str(tmp_path / "packages/nvidia/cusolver/lib")
