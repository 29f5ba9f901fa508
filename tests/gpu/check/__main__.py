"""`make gpu-check`: gpuvirt on this machine's NVIDIA GPU, in one command, without a network. `BACKEND=chained` tries the logic without a GPU.

Exit codes: 0 everything compared was right, 1 something was wrong, 77 there is no driver, 2 usage."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - any Python may start this
    sys.exit(f"gpu-check needs Python 3.11 or newer; this is {sys.version.split()[0]}")

import machine as machines
from conformance import conformance
from frameworks import frameworks
from machine import Machine, Missing
from outside import outside
from parts import PARTS, Check, start
from report import NOT_RUN, WRONG, Report, Row
from runs import Runs
from sharing import sharing

ALL = {**PARTS, "conformance": conformance, "sharing": sharing, "frameworks": frameworks, "outside": outside}


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--backend", choices=("cuda", "chained"), default=os.environ.get("BACKEND") or "cuda")
    parser.add_argument("--json", type=Path, default=machines.ROOT / "build" / "gpu-check.json", metavar="FILE")
    parser.add_argument("--budget", type=float, default=465, help="seconds for everything (default %(default)s)")
    parser.add_argument("--small", action="store_true", help="the shortest run that still shows everything")
    jobs = min(8, max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--jobs", type=int, default=jobs, help="programs at the same time (default %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave logs, programs and what failing runs said in this folder")
    parser.add_argument("--links", default="", help="only these, by commas, as native,shm,delay(rtt=1ms,tcp) (default: all that a part knows)")
    parser.add_argument("--only", default="", metavar="WORDS", help="only what has one of these in its name, by commas: --only graphs,virtual_memory")
    parser.add_argument("--checkout", type=Path, metavar="FOLDER", help="of NVIDIA's CUDA samples, or of lupine: for the part outside")
    parser.add_argument("--box", choices=("auto", "off"), default="auto", help="as of gpuvirt serve (default %(default)s)")
    parser.add_argument("--test-fault", choices=["launches"], help="workers with a deliberate fault (tests/fault): the check must fail; chained only")
    parser.add_argument("parts", nargs="*", choices=[*ALL, []], metavar="PART", help=f"of {', '.join(ALL)}; default: all")
    options = parser.parse_args()
    chained = options.backend == "chained"
    gpu = "software GPUs, strict, behind our own shim as the driver" if chained else machines.driver()
    if gpu is None:
        print("no NVIDIA driver found")
        return 77
    label = "chained on software GPUs" if chained else "real GPU"
    wanted = options.parts or list(ALL)
    try:
        python = machines.gpuvirt_python(chained)
        lib, how = machines.libraries(python)
    except (Missing, OSError) as error:
        print(f"gpu-check ({label}): {error}")
        return 1
    found = Machine(chained, gpu, python, lib, how, machines.nvcc(), machines.frameworks())
    report = Report(label, found.words(), options.budget, options.json)
    print(f"gpu-check ({label}): {gpu}")
    print(*(f"  {name}: {value}" for name, value in found.words().items()), sep="\n", flush=True)
    try:
        with Runs(found, options.test_fault, options.keep, options.box) as runs:
            only, links = tuple(filter(None, options.only.split(","))), tuple(re.findall(r"[^,(]+(?:\([^)]*\))?", options.links))
            check = Check(found, runs, report, options.small, options.jobs, links, only, options.checkout)
            report.add(*start(check))
            for name in wanted:
                if report.left() < 5:
                    report.add(Row(name, "", "", NOT_RUN, "the time was spent"))
                    continue
                for row in ALL[name](check):
                    report.add(row)
    except Missing as error:
        report.add(Row("start", "the server", "", WRONG, str(error)))
    report.table()
    print(f"as JSON: {options.json}")
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
