"""Faults and counters from Python, seen by a process that has the library loaded."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from softverbs import build
from softverbs.control import Fabric, words

# Waits for two events of a port: prints their types. Idle before, so that its thread sleeps until it is woken.
WATCHER = """
import ctypes, sys, time
verbs = ctypes.CDLL(sys.argv[1])
for name in ("ibv_get_device_list", "ibv_open_device"):
    getattr(verbs, name).restype = ctypes.c_void_p
devices = ctypes.cast(verbs.ibv_get_device_list(None), ctypes.POINTER(ctypes.c_void_p))
context = ctypes.c_void_p(verbs.ibv_open_device(ctypes.c_void_p(devices[1])))
print("open", flush=True)
for _ in range(2):
    event = (ctypes.c_int * 4)()
    assert verbs.ibv_get_async_event(context, event) == 0
    print(event[2], flush=True)
"""
PORT_ERR, PORT_ACTIVE = 10, 9


def test_a_port_goes_down_and_up(tmp_path: Path) -> None:
    library, fabric = build.library(tmp_path), Fabric(tmp_path / "fabric")
    line = [sys.executable, "-c", WATCHER, str(library)]
    with subprocess.Popen(line, env=fabric.environment(devices=2), stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout
        deadline = threading.Timer(30, watcher.kill)
        deadline.start()
        try:
            assert watcher.stdout.readline() == "open\n"
            time.sleep(1.2)
            fabric.rail(0).set(port_down=1)  # another's
            fabric.rail(1).set(port_down=1)
            assert watcher.stdout.readline() == f"{PORT_ERR}\n"
            fabric.rail(1).set(port_down=0)
            assert watcher.stdout.readline() == f"{PORT_ACTIVE}\n"
            assert watcher.wait(30) == 0
        finally:
            deadline.cancel()
            watcher.kill()


def test_words() -> None:
    assert len(words()) == 29
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
