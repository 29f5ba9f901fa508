"""GPUVIRT_SOFT_*: a server that cannot follow them does not start, and says what they can be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuvirt.errors import GpuvirtError
from gpuvirt.soft.host.settings import NAMES, PREFIX, check_settings

WRONG = [
    ("LANES", "alway", "GPUVIRT_SOFT_LANES=alway: it is 'always' or unset"),
    ("SCHEDULE", "7,core", "GPUVIRT_SOFT_SCHEDULE=7,core: it is a number, or a number and ',cores', or unset"),
    ("SHAPES", "exactly", "GPUVIRT_SOFT_SHAPES=exactly: it is 'exact' or unset"),
    ("PRECOMPILE", "no", "GPUVIRT_SOFT_PRECOMPILE=no: it is 'off' or unset"),
    ("ISA", "sse9", "GPUVIRT_SOFT_ISA=sse9 is none of avx512, avx2, baseline"),
    ("DUMP", "no-such-pass", "GPUVIRT_SOFT_DUMP: there is no pass no-such-pass; there are "),
    ("LOG", "/nowhere/log", "GPUVIRT_SOFT_LOG=/nowhere/log: this file cannot be written: No such file or directory"),
    ("LANE", "always", "there is no setting GPUVIRT_SOFT_LANE; there are GPUVIRT_SOFT_ISA"),
]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in NAMES:
        monkeypatch.delenv(PREFIX + name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(("name", "value", "text"), WRONG)
def test_wrong(environment: pytest.MonkeyPatch, name: str, value: str, text: str) -> None:
    environment.setenv(PREFIX + name, value)
    with pytest.raises(GpuvirtError) as error:
        check_settings()
    assert text in str(error.value)


def test_right(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_settings()
    for name, value in (("LANES", "always"), ("SCHEDULE", "7,cores"), ("SHAPES", "exact"), ("PRECOMPILE", "off"), ("ISA", "avx2"), ("DUMP", "parse,emit"), ("LOG", str(tmp_path / "log"))):
        environment.setenv(PREFIX + name, value)
    check_settings()
    assert (tmp_path / "log").read_bytes() == b""


@pytest.mark.slow
def test_a_server_does_not_start(tmp_path: Path) -> None:
    """Where it is started, in one line; not in a worker's log when a session comes."""
    ready = tmp_path / "ready"
    env = {**os.environ, "GPUVIRT_SOFT_LANES": "alway", "GPUVIRT_STATE": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}
    line = [sys.executable, "-P", "-m", "gpuvirt", "serve", "--backend", "soft", "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, env=env, check=False)
    assert done.returncode != 0 and not ready.exists()
    assert "GPUVIRT_SOFT_LANES=alway: it is 'always' or unset" in done.stderr.splitlines()[-1], done.stderr
