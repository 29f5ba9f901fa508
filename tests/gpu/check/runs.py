"""Runs of programs: on the machine's own driver, and through our shim over each link to our own server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import ROOT, Machine, Missing, clean_environment

UNSUPPORTED = re.compile(r"gpuvirt: (\w+)(?: is not supported|: host memory cannot)|gpuvirt: (slot \d+ of the private table [0-9a-f]+)")
START_LIMIT = 60.0


def faulty(fault: str) -> dict[str, str]:
    """What a server's environment has more when its workers have a deliberate fault."""
    return {"FAULT": fault, "PYTHONPATH": f"{ROOT / 'tests' / 'fault'}:{clean_environment()['PYTHONPATH']}"}


@dataclass
class Ran:
    """What a run did."""

    code: int | None  # None: stopped at its time limit
    out: str
    err: str
    seconds: float
    stats: dict[str, Any] = field(default_factory=dict)

    def refused(self) -> list[str]:
        """Calls that our shim said it does not support, in order."""
        return list(dict.fromkeys(a or b for a, b in UNSUPPORTED.findall(self.err)))

    def why(self) -> str:
        """The reason of a failure, in a line: what gpuvirt said last, else the last line of all."""
        said = [line for line in self.err.splitlines() if line.startswith("gpuvirt:") and "not supported" not in line]
        last = said or self.out.strip().splitlines()[-1:] + self.err.strip().splitlines()[-1:]
        ended = "no end in time" if self.code is None else f"exit {self.code}"
        return f"{ended}: {last[-1] if last else 'it said nothing'}"[:300]


class Runs:
    """Servers and the runs on them; a context manager.

    Args:
        fault: breaks the software GPU that remote programs run on (tests/fault), for trying that the check notices; chained only.
        keep: a folder for logs and programs, which stays, with what failing runs said; None: a temporary one.
        box: of the workers, as of gpuvirt serve.
    """

    def __init__(self, machine: Machine, fault: str | None = None, keep: Path | None = None, box: str = "auto") -> None:
        self.machine, self.box, self._kept = machine, box, keep is not None
        self.folder = keep.resolve() if keep else Path(tempfile.mkdtemp(prefix="gpuvirt-check-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._servers: list[subprocess.Popen[bytes]] = []
        self.environment = {"GPUVIRT_LIB_DIR": str(machine.lib), "GPUVIRT_STATE": str(self.folder / "state")}
        self.far = ""
        try:
            if machine.chained:
                soft = ["--backend", "soft", "--strict", "--gpus", "2", "--gpu-memory", "1g"]
                self.far = self._serve("far", soft)
                behind = self._serve("faulty", soft, **faulty(fault)) if fault else self.far
                env = {"GPUVIRT_POOL": behind, "GPUVIRT_GPUS": "2"}
                self.pool = self._serve("near", ["--backend", "cuda", "--box", box, "--driver", str(machine.lib / "libcuda.so.1")], **env)
                self.environment["CUPY_COMPILE_WITH_PTX"] = "1"
            else:
                self.pool = self._serve("near", ["--backend", "cuda", "--box", box])
        except BaseException:
            self.close()
            raise

    def without_a_box(self) -> None:
        """Another server beside the first, whose workers are not confined; runs go to it from now on. Not chained.

        Raises:
            Missing: it did not start.
        """
        self.box = "off"
        self.pool = self._serve("unboxed", ["--backend", "cuda", "--box", "off"])

    def gpus(self) -> int:
        return 2 if self.machine.chained else int(self.machine.gpu.split(" x ")[0])

    def _serve(self, name: str, options: list[str], **env: str) -> str:
        ready, log = self.folder / f"{name}.json", self.folder / f"{name}.log"
        ready.unlink(missing_ok=True)
        line = [self.machine.python, "-m", "gpuvirt", "serve", "--listen", "127.0.0.1:0", "--ready-file", str(ready), *options]
        with log.open("wb") as out:
            server = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=clean_environment(**self.environment, **env))
        self._servers.append(server)
        deadline = time.monotonic() + START_LIMIT
        while not ready.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise Missing(f"the server did not start: {log.read_text(errors='replace').strip()[-600:]}")
            time.sleep(0.05)
        pool: str = json.loads(ready.read_text())["pool"]
        return pool

    def token(self) -> str:
        line = [self.machine.python, "-m", "gpuvirt", "token", "show"]
        done = subprocess.run(line, capture_output=True, text=True, env=clean_environment(**self.environment), check=True)
        return done.stdout.strip()

    def server_said(self) -> str:
        return (self.folder / "near.log").read_text(errors="replace")

    def run(self, command: list[str], link: str, limit: float, pool: str | None = None, **env: str) -> Ran:
        """Runs a command: link "native" on the machine's driver (chained: on the far server directly), else on our server over that link."""
        stats = self.folder / f"stats-{time.monotonic_ns()}-{threading.get_ident()}.json"
        remote = [self.machine.python, "-m", "gpuvirt", "run", "--gpus", str(self.gpus()), f"--stats={stats}"]
        if link != "native":
            line = [*remote, "--pool", pool or self.pool, "--link", link, "--", *command]
        elif self.machine.chained:
            line = [*remote, "--pool", self.far, "--link", "shm", "--", *command]
        else:
            line = command
        begin = time.monotonic()
        child = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=clean_environment(**self.environment, **env),
            start_new_session=True,
        )
        code: int | None
        try:
            out, err = child.communicate(timeout=max(limit, 1))
            code = child.returncode
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
            code = None
        found = json.loads(stats.read_text()) if stats.exists() else {}
        stats.unlink(missing_ok=True)
        if code != 0 and self._kept:
            with (self.folder / "failed.log").open("a") as log:
                log.write(f"==== {link}: {' '.join(command)}: {code}\n{out[-4000:]}\n---- stderr\n{err[-4000:]}\n")
        return Ran(code, out, err, time.monotonic() - begin, found)

    def close(self) -> None:
        for server in reversed(self._servers):
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        if not self._kept:
            subprocess.run(["rm", "-rf", str(self.folder)], check=False)

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
