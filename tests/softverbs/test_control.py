"""Faults and counters from Python, seen by a process that has the library loaded."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from softverbs import build
from softverbs.control import Fabric, words

# Tells the state of the second device's port for each line that it is given.
WATCHER = """
import ctypes, sys
verbs = ctypes.CDLL(sys.argv[1])
for name in ("ibv_get_device_list", "ibv_open_device"):
    getattr(verbs, name).restype = ctypes.c_void_p
devices = ctypes.cast(verbs.ibv_get_device_list(None), ctypes.POINTER(ctypes.c_void_p))
context = ctypes.c_void_p(verbs.ibv_open_device(ctypes.c_void_p(devices[1])))
port = (ctypes.c_int * 16)()
for _ in sys.stdin:
    assert verbs.ibv_query_port(context, 1, port) == 0
    print(port[0], flush=True)
"""
DOWN, ACTIVE = 1, 4


def test_a_port_goes_down_and_up(tmp_path: Path) -> None:
    library, fabric = build.library(tmp_path), Fabric(tmp_path / "fabric")
    line = [sys.executable, "-c", WATCHER, str(library)]
    with subprocess.Popen(line, env=fabric.environment(devices=2), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as watcher:
        assert watcher.stdin and watcher.stdout
        deadline = threading.Timer(30, watcher.kill)
        deadline.start()
        try:
            for down, state in ((0, ACTIVE), (1, DOWN), (0, ACTIVE)):
                fabric.rail(0).set(port_down=1)  # another's
                fabric.rail(1).set(port_down=down)
                watcher.stdin.write("?\n")
                assert watcher.stdout.readline() == f"{state}\n"
            watcher.stdin.close()
            assert watcher.wait(30) == 0
        finally:
            deadline.cancel()
            watcher.kill()


def test_words() -> None:
    assert len(words()) == 30
    assert words()["port_down"] == 0 and words()["rnr_count"] == 8 * 25


def test_unknown_words_are_refused(tmp_path: Path) -> None:
    fabric = Fabric(tmp_path / "fabric")
    rail = fabric.rail(3)
    rail.set(delay_ns=5)
    assert rail.delay_ns == 5 and rail.counters()["doorbells"] == 0
    assert Fabric(fabric.path).rail(3).delay_ns == 5 and fabric.rail(2).delay_ns == 0
    with pytest.raises(KeyError):
        rail.set(port_dwon=1)
    with pytest.raises(AttributeError):
        assert rail.doorbell
