"""A server of software GPUs for benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without anything of gpuvirt's but where its libraries are."""
    return {k: v for k, v in os.environ.items() if not k.startswith("GPUVIRT_") or k == "GPUVIRT_LIB_DIR"} | more


@contextlib.contextmanager
def pool(folder: Path, *options: str, prefix: list[str] | None = None, **more: str) -> Iterator[str]:
    """A server with one software GPU. prefix: what to write before its command line. Yields its URL."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        ready, log = Path(name) / "ready.json", Path(name) / "serve.log"
        line = [*(prefix or []), sys.executable, "-P", "-m", "gpuvirt", "serve", "--backend", "soft", "--gpus", "1", "--listen", "127.0.0.1:0"]
        line += ["--ready-file", str(ready), *options]
        with log.open("wb") as out:
            server = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=clean_environment(**more))
        try:
            deadline = time.monotonic() + 60
            while not ready.exists():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the pool did not start:\n{log.read_text(errors='replace')}")
                time.sleep(0.02)
            yield str(json.loads(ready.read_text())["pool"])
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
