"""Fuzzes the worker for a long time: `make fuzz`. The corpus in the tree grows, and is thinned out at the end."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import c_build
from fuzz.worker.build_fuzzer import HERE, SANITIZERS, build


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", default="3600", help="how long")
    parser.add_argument("--seed", default="1", help="of the sessions")
    parser.add_argument("--replay", help="runs one session instead, a file")
    parser.add_argument("--patience", default="60", help="seconds after which a session that has not ended hangs: more beside other work")
    options = parser.parse_args()
    folder = c_build.STORE / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    fuzzer = build(folder)
    line = [str(fuzzer.program), "--driver", str(fuzzer.driver), "--folder", str(folder), "--corpus", str(HERE / "corpus")]
    line += ["--seed", options.seed, "--patience", options.patience]
    todo = [["--runs", "20", "replay", options.replay]] if options.replay else [["--seconds", options.seconds, "grow"], ["reduce"]]
    for command in todo:
        if status := subprocess.run([*line, *command], env={**os.environ, **SANITIZERS}, check=False).returncode:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
