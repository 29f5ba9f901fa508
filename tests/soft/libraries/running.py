"""Runs cases in programs under `gpuvirt run`, each library's in one, so that starting is paid once."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from . import case

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FAULT = HERE.parents[1] / "fault"


@dataclass
class Record:
    """How a case went."""

    id: str
    error: float = float("inf")
    k: float = 0
    eps: float = 0
    exact: bool = False
    failed: str = ""
    refused: str = ""
    seconds: float = 0
    bits: str = ""
    kernels: list[list[str]] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.failed and (bool(self.refused) or self.error <= case.LIMIT)

    def __str__(self) -> str:
        return f"{self.id}: " + (self.failed or self.refused or f"error {self.error:.2f}" + (" (must be exact)" if self.exact else ""))


def environment(log: Path, fault: str = "", cache: Path | None = None, more: dict[str, str] | None = None) -> dict[str, str]:
    """What the programs and the pool that serves them get, and `more`. A fault needs a cache of its own: faulty code must not stay."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUVIRT_") or k == "GPUVIRT_CACHE"}
    paths = [str(FAULT)] if fault else []
    env["PYTHONPATH"] = os.pathsep.join([*paths, str(ROOT), str(ROOT / "tests"), *filter(None, [env.get("PYTHONPATH")])])
    env["GPUVIRT_SOFT_LOG"] = str(log)
    if cache is not None:
        env["GPUVIRT_CACHE"] = str(cache)
    if fault:
        env["FAULT"] = fault
    return {**env, **(more or {})}


def _once(library: str, ids: list[str], env: dict[str, str], limit: float, say: Callable[[Record], None]) -> list[Record]:
    """One program. A case that takes longer than `limit` seconds ends it."""
    program = [sys.executable, "-P", "-m", f"{__package__}.program", library]
    line = [sys.executable, "-P", "-m", "gpuvirt", "run", "--local", "--", *program]
    records: list[Record] = []
    current = ""
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as wanted:
        wanted.write(json.dumps(ids).encode())
        wanted.seek(0)
        process = subprocess.Popen(line, stdin=wanted, stdout=subprocess.PIPE, stderr=errors, env=env)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        selector = selectors.DefaultSelector()
        selector.register(process.stdout, selectors.EVENT_READ)
        rest, slow = b"", ""
        deadline = time.monotonic() + limit
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                slow = f"not done after {limit:.0f} s"
                process.terminate()
                break
            data = process.stdout.read()
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for text in lines:
                if not text.startswith(b"{"):
                    continue
                found = json.loads(text)
                deadline = time.monotonic() + limit
                if "start" in found:
                    current = found["start"]
                    continue
                records.append(Record(**found))
                say(records[-1])
                current = ""
        try:
            code = process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        errors.seek(0)
        text_of_errors = errors.read().decode(errors="replace").strip()[-1500:]
    if current:
        records.append(Record(current, failed=slow or f"the program ended with code {code}: {text_of_errors}"))
        say(records[-1])
    elif not records:
        raise RuntimeError(f"the program ended with code {code} before its first case: {slow} {text_of_errors}")
    return records


def run(
    library: str,
    ids: Iterable[str],
    folder: Path,
    *,
    fault: str = "",
    cache: Path | None = None,
    more: dict[str, str] | None = None,
    limit: float = 120,
    say: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Runs the cases; those after one that took its process down run in another."""
    folder.mkdir(parents=True, exist_ok=True)
    todo = list(ids)
    records: list[Record] = []
    while todo:
        log = folder / f"kernels-{library}-{len(records)}.jsonl"
        records += _once(library, todo, environment(log, fault, cache, more), limit, say)
        done = {r.id for r in records}
        left = [i for i in todo if i not in done]
        if len(left) == len(todo):
            records += [Record(i, failed="not run") for i in left]
            break
        todo = left
    return records
