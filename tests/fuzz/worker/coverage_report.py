"""Which lines of the worker the fuzzer's sessions reach: a build that counts (gcov), and what it has counted."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import c_build
from fuzz.worker.build_fuzzer import FUZZER, LIMITS, NATIVE, PEERS, Fuzzer, build_driver, includes, product

# Counters of several threads, in processes that add up what they have counted when they exit.
COUNTED = ["-O1", "--coverage", "-fprofile-update=atomic"]


def counted(source: Path) -> bool:
    return source.is_relative_to(NATIVE / "worker") or source.is_relative_to(NATIVE / "backend")


def build_counted(folder: Path) -> Fuzzer:
    """The fuzzer without sanitizers; what is counted is compiled into folder/counted, where the counters will be."""
    places = folder / "counted"
    places.mkdir()
    flags = [*c_build.STRICT, "-fvisibility=hidden", *LIMITS, *includes(folder)]
    names = {source: places / f"{source.parent.name}-{source.stem}.o" for source in product() if counted(source)}

    def compile_one(source: Path) -> None:
        subprocess.run([c_build.compiler(), *flags, *COUNTED, "-c", str(source), "-o", str(names[source])], check=True, timeout=300)

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        list(pool.map(compile_one, names))
    others = [p for p in product() if p not in names] + [*PEERS, *FUZZER]
    objects = c_build.objects(others, [*c_build.VARIANTS["plain"], *flags])
    program = folder / "fuzzer"
    line = [c_build.compiler(), "-pthread", "--coverage", *map(str, [*names.values(), *objects]), "-o", str(program), "-ldl", "-lm"]
    subprocess.run(line, check=True, timeout=300)
    return Fuzzer(program, build_driver(folder, "plain"))


def lines_reached(folder: Path) -> dict[str, float]:
    """For each source of native/worker, by its name, the share of its lines that were reached, 0 to 1."""
    shares = {}
    for counters in sorted((folder / "counted").glob("*.gcda")):
        line = ["gcov", "--json-format", "--stdout", "--object-directory", str(counters.parent), str(counters)]
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=100)
        for file in json.loads(done.stdout)["files"]:
            path = Path(file["file"])
            if NATIVE / "worker" in path.parents and f"{path.parent.name}-{path.stem}" == counters.stem and file["lines"]:
                shares[path.name] = sum(line["count"] > 0 for line in file["lines"]) / len(file["lines"])
    return shares
