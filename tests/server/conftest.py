"""Servers for the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server.harness import FakeServer, build_echo_worker, start_fake


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    """Two GPUs of 1 GiB."""
    started = start_fake(tmp_path_factory.mktemp("fake"), gpus=2, gpu_memory=1 << 30)
    yield started
    started.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., FakeServer]]:
    """Servers that a test may harm."""
    started: list[FakeServer] = []

    def start(**options: Any) -> FakeServer:
        started.append(start_fake(tmp_path / f"s{len(started)}", **options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.stop()


@pytest.fixture
def start() -> Callable[..., FakeServer]:
    return start_fake


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the worker library that tries what it is told, libgpuvirt_worker.so."""
    folder = tmp_path_factory.mktemp("hostile")
    build_echo_worker(folder, "hostile.c")
    return folder
