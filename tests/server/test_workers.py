"""What a daemon makes of a worker's messages."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from gpuvirt.server import workers
from gpuvirt.server.worker_library import RunEnding
from gpuvirt.server.workers import WorkerProcess, start_process

SAYS = """
import socket, sys
from gpuvirt.server import messages
messages.send(socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1])), {message})
"""


@pytest.mark.parametrize(
    ("message", "ending", "text"),
    [
        ({"op": "ended", "code": 0, "text": ""}, RunEnding.GOODBYE, "goodbye"),
        ({"op": "ended", "code": 1, "text": "end of file"}, RunEnding.CLIENT_LOST, "client lost: end of file"),
        ({"op": "ended", "code": 7, "text": "goodbye"}, None, "ended: goodbye"),
        ({"op": "ended", "code": [1], "text": "goodbye"}, None, "ended: goodbye"),
        ({"op": "failed", "text": "goodbye"}, None, "goodbye"),
    ],
)
def test_how_a_session_ended_is_told_by_the_code(message: dict[str, Any], ending: RunEnding | None, text: str) -> None:
    """Whatever the worker's text says: it may be a stranger's code that chose it."""

    async def run() -> WorkerProcess:
        worker = WorkerProcess(start_process([sys.executable, "-P", "-c", SAYS.format(message=message)], "soft"), lambda _: None)
        await asyncio.wait_for(worker.gone, 30)
        return worker

    worker = asyncio.run(run())
    assert (worker.run_ending, worker.ending) == (ending, text)


def test_a_worker_gets_no_secrets_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = ["GPUVIRT_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "OPENAI_API_KEY", "SSH_AUTH_SOCK", "REGISTRY_CREDENTIALS"]
    needed = ["GPUVIRT_SOFT_LOG", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "XDG_RUNTIME_DIR"]
    for name in (*secret, *needed):
        monkeypatch.setenv(name, "x")
    found = workers._environment()
    assert not found.keys() & set(secret) and found.keys() >= set(needed)
    assert workers._environment(client=True)["GPUVIRT_TOKEN"] == "x"
