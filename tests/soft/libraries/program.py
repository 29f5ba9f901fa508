"""Runs a library's cases on the GPU that it is given: a line of JSON for each. Started by running.py under `gpuvirt run`."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from . import case, native


def kernels_seen(log: Path | None, position: int) -> tuple[list[list[str]], int]:
    """The kernels that were made ready to run since `position` in the software GPU's log: (module's digest, name)."""
    if log is None or not log.exists():
        return [], position
    with log.open("rb") as file:
        file.seek(position)
        data = file.read()
    lines = data[: data.rfind(b"\n") + 1]
    found = [json.loads(line) for line in lines.splitlines()]
    return [[f["module"], f["kernel"]] for f in found], position + len(lines)


def main() -> int:
    library, wanted = sys.argv[1], json.loads(sys.stdin.read())
    name = os.environ.get("GPUVIRT_SOFT_LOG")
    log, position = (Path(name), 0) if name else (None, 0)
    import cupy
    import numpy as np

    known = {one.id: one for one in case.cases_of(library)}
    for one in map(known.__getitem__, wanted):
        print(json.dumps({"start": one.id}), flush=True)
        begin = time.monotonic()
        record: dict[str, Any] = {"id": one.id}
        stop = False
        try:
            outcome = one.run()
            record["bits"] = hashlib.sha256(np.ascontiguousarray(outcome.result).tobytes()).hexdigest()
            record |= {"error": outcome.error(), "k": float(outcome.k), "eps": outcome.eps, "exact": outcome.exact}
        except Exception as error:
            record["refused" if one.no_ptx and isinstance(error, native.Refused) else "failed"] = f"{type(error).__name__}: {error}"[:600]
        record["seconds"] = round(time.monotonic() - begin, 3)
        try:
            cupy.cuda.runtime.deviceSynchronize()
        except Exception as error:  # a CUDA error that stays: the rest is for another process
            record.setdefault("failed", f"{type(error).__name__}: {error}"[:600])
            stop = True
        seen, position = kernels_seen(log, position)
        record["kernels"] = seen
        print(json.dumps(record), flush=True)
        if stop:
            return 3
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # libraries' own destructors after a CUDA error are nobody's business here
