"""The user's shell for `gpuvirt attach`: which one, and how it is started so that its prompt has a mark and the user's own files are read as ever.

Files in ``rc`` do that from inside the shell; what they need is in variables whose names begin with ``_GPUVIRT_``.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuvirt.client.environment import Variable

RC = Path(__file__).resolve().parent / "rc"
KNOWN = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Shell:
    """A shell, ready to be executed. path: of its program; arguments: with its name; environment: what it needs beside the program's variables."""

    path: str
    arguments: list[str]
    environment: dict[str, str]


def find(environment: Mapping[str, str]) -> tuple[str, str]:
    """The user's shell: its kind and its path. SHELL, else the account's; what is none of `KNOWN`, or not there, is ``sh``."""
    for path in (environment.get("SHELL"), _of_account()):
        name = os.path.basename(path or "")
        if path and name in KNOWN and shutil.which(path):
            return name, path
        if path:
            break  # the user's choice, though it is one that gets no mark
    return "sh", "/bin/sh"


def _of_account() -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        return None


def prepare(variables: list[Variable], gpus: int, environment: Mapping[str, str], interactive: bool) -> Shell:
    """A subshell of the user's shell.

    Args:
        variables: of programs with GPUs. The user's files may change those of gpuvirt's own, so they are set again afterwards.
        interactive: it is at a terminal; else it reads commands, and no files of the user's.
    """
    kind, path = find(environment)
    if not interactive:
        return Shell(path, [kind], {})
    again = [(v.name, v.value) for v in variables if v.name.startswith("GPUVIRT_")]
    mark = {"_GPUVIRT_MARK": f"(gpuvirt:{gpus}) ", "_GPUVIRT_AGAIN": "; ".join(f"export {name}={shlex.quote(value)}" for name, value in again)}
    match kind:
        case "bash":
            return Shell(path, [kind, "--rcfile", str(RC / "bashrc"), "-i"], mark)
        case "zsh":
            return Shell(path, [kind, "-i"], {**mark, "ZDOTDIR": str(RC / "zsh"), "_GPUVIRT_ZDOTDIR": environment.get("ZDOTDIR", "")})
        case "fish":
            lines = [f"set -gx {name} {_fish_quoted(value)}" for name, value in again]
            return Shell(path, [kind, "-i", "-C", "; ".join([*lines, f"source {_fish_quoted(str(RC / 'mark.fish'))}"])], mark)
    return Shell(path, [kind, "-i"], {**mark, "ENV": str(RC / "shrc"), "_GPUVIRT_ENV": environment.get("ENV", "")})


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
