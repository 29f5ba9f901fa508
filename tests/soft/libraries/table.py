"""Writes what was run of each library on the software GPU and how far off it was, and how many of its kernels the compiler takes and the cases ran.

    python -m tests.soft.libraries.table cublas cufft    # runs their cases; without names: all, two hours on two cores
    python -m tests.soft.libraries.table --recorded      # runs nothing: what was recorded, by `make test-long` or by this

A page for each library in build/software-libraries, with a line for each operation and type; --summary writes the libraries' lines in
docs/SOFTWARE_LIBRARIES.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import math
import site
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from . import case, native, running, scan

DOCUMENT = running.ROOT / "docs" / "SOFTWARE_LIBRARIES.md"
FOLDER = running.ROOT / "build" / "software-libraries"  # pages, and records of single cases
BEGIN, END = "<!-- summary: begin -->\n", "<!-- summary: end -->\n"
SUMMARY = ["| library | cases | kernels in PTX | run by the cases | largest error, float | double | others |", "|---|--:|--:|--:|---|---|---|"]
EPS_NAMES = {value: name for name, value in [("f64", 2.0**-52), ("f32", 2.0**-23), ("bf16", 2.0**-7), ("f16, tf32", 2.0**-10)]}


def files_of(library: str) -> list[Path]:
    """The library's files that are installed."""
    places = [*native.folders(), Path(sysconfig.get_paths()["purelib"]), *map(Path, [p for p in sys.path if p.endswith("site-packages")])]
    places += [Path(p) for p in site.getsitepackages()]
    found: dict[str, Path] = {}
    for folder, pattern in case.LIBRARIES[library].files:
        for place in places:
            for path in sorted((place / folder).glob(pattern)):
                found.setdefault(path.name, path)
    return list(found.values())


def number(error: float) -> str:
    return "0" if error == 0 else f"{error:.2f}" if error >= 0.01 else f"{error:.0e}"


def error_table(records: list[running.Record]) -> list[str]:
    """A line for each operation and type: the worst of its cases."""
    groups: dict[tuple[str, str], list[running.Record]] = defaultdict(list)
    for record in records:
        _, operation, kind, _ = record.id.split("/", 3)
        groups[operation, kind].append(record)
    lines = ["| operation | type | cases | largest k | ε | error in √k·ε |", "|---|---|---|---|---|---|"]
    for (operation, kind), group in groups.items():
        bad = [r for r in group if not r.right]
        refused = [r for r in group if r.refused]
        worst = max(group, key=lambda r: (not r.right, bool(r.failed), not r.refused, r.error))
        exact = all(r.exact for r in group if not r.refused)
        k = max(r.k for r in group)
        text = "exact" if exact and not bad else number(worst.error) if math.isfinite(worst.error) else "wrong"
        if bad:
            text = f"**{len(bad)} fail**: {worst.failed[:120] or text} ({worst.id.split('/', 3)[3]})".replace("|", "\\|")
        if refused:
            text = f"{text}; no PTX in the library for {', '.join(r.id.split('/', 3)[3] for r in refused[:4])}{' ...' if len(refused) > 4 else ''}"
        eps = "" if exact else EPS_NAMES.get(worst.eps, f"2^{math.log2(worst.eps):.0f}" if worst.eps else "")
        lines.append(f"| {operation} | {kind} | {len(group)} | {'' if exact else f'{k:.0f}'} | {eps} | {text} |")
    return lines


@dataclasses.dataclass
class Kernels:
    """A library's kernels: for each file its name, what a scan found, and how many the cases ran; `rest` ran and were in none."""

    files: list[tuple[str, scan.Result, int]]
    rest: int

    @property
    def count(self) -> int:
        return sum(result.kernels for _, result, _ in self.files)

    @property
    def run(self) -> int:
        return sum(ran for _, _, ran in self.files) + self.rest


def kernels_of(library: str, records: list[running.Record], seconds: float) -> Kernels:
    """Reads the library's files and translates kernels drawn at random, for `seconds` a file. Modules are known by their PTX."""
    ran = {(module, name) for record in records for module, name in record.kernels}
    files = []
    known: set[str] = set()
    for path in files_of(library):
        digests: set[str] = set()
        result = scan.scan(path, seconds, 1, digests)
        if result.containers:
            known |= digests
            files.append((path.name, result, sum(module in digests for module, _ in ran)))
    return Kernels(files, sum(module not in known for module, _ in ran))


def kernel_table(kernels: Kernels) -> list[str]:
    lines = ["| file | kernels in PTX | translated of those tried | run by the cases |", "|---|---|---|---|"]
    for name, result, ran in kernels.files:
        lines.append(f"| {name} | {result.kernels} | {result.translated} of {result.tried} | {ran} |")
        for why, count in result.refused.most_common():
            lines.append(f"| | | refused ({count}): {why} | |".replace("\n", " "))
    lines.append(f"| compiled while running, and other libraries' | | | {kernels.rest} |")
    return lines


def page(library: str, records: list[running.Record], count: int, kernels: Kernels) -> str:
    wrong, note = sum(not r.right for r in records), case.LIBRARIES[library].note
    of = f" of {count}" if len(records) < count else ""
    said = f"{len(records)}{of} cases run, {wrong} of them fail{'s' * (wrong == 1)}." if wrong else f"{len(records)}{of} cases run, all within the limit."
    parts = [f"# {case.LIBRARIES[library].title} on the software GPU", "", said, *(["", note] if note else [])]
    return "\n".join([*parts, "", *kernel_table(kernels), "", *error_table(records), ""])


def summary_line(library: str, records: list[running.Record], kernels: Kernels) -> str:
    """A library's line of the summary: the largest error of each precision, and whose it is."""
    cells = []
    for wanted in ({"f32"}, {"f64"}, None):
        of_type = [r for r in records if not r.exact and not r.refused and r.eps]
        name = [EPS_NAMES.get(r.eps, "") for r in of_type]
        chosen = [r for r, n in zip(of_type, name, strict=True) if (n in wanted if wanted else n not in ("f32", "f64"))]
        worst = max(chosen, key=lambda r: r.error, default=None)
        cells.append(f"{number(worst.error)} ({worst.id.split('/')[1]})" if worst else "")
    return f"| {case.LIBRARIES[library].title} | {len(records)} | {kernels.count} | {kernels.run} | {' | '.join(cells)} |"


def summary_cases(text: str) -> dict[str, int]:
    """The cases of each library that the summary speaks of."""
    rows = [line.split("|") for line in text.split(BEGIN)[1].split(END)[0].splitlines()[len(SUMMARY) :]]
    return {row[1].strip(): int(row[2]) for row in rows}


def put_summary_line(library: str, line: str) -> None:
    head, rest = DOCUMENT.read_text().split(BEGIN)
    old, tail = rest.split(END)
    title = f"| {case.LIBRARIES[library].title} |"
    lines = [line if row.startswith(title) else row for row in old.splitlines()[len(SUMMARY) :]]
    DOCUMENT.write_text(head + BEGIN + "\n".join([*SUMMARY, *lines]) + "\n" + END + tail)


def write_page(library: str, records: list[running.Record], scan_seconds: float) -> Kernels:
    """Writes a library's page; the kernels that its files have."""
    kernels = kernels_of(library, records, scan_seconds)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{library}.md").write_text(page(library, records, sum(1 for _ in case.cases_of(library)), kernels))
    return kernels


def recall(library: str) -> dict[str, running.Record]:
    """What was recorded last of each case, perhaps by a run that did not get to its end."""
    path = FOLDER / f"{library}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = [running.Record(**json.loads(line)) for line in lines if line.endswith("}")]
    return {r.id: r for r in records}


def remember(library: str, record: running.Record) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{library}.jsonl").open("a") as file:
        file.write(json.dumps(dataclasses.asdict(record)) + "\n")


def turn_by_turn(ids: list[str]) -> list[str]:
    """One of each operation, then another of each, in an order that always is the same: a run that is cut has seen something of everything."""
    by_operation: dict[str, list[str]] = defaultdict(list)
    for one in sorted(ids, key=lambda i: hashlib.sha256(i.encode()).digest()):
        by_operation[one.split("/")[1]].append(one)
    return [one for turn in itertools.zip_longest(*by_operation.values()) for one in turn if one is not None]


def make(library: str, args: argparse.Namespace) -> int:
    """Runs a library's cases and writes its page; returns how many are wrong."""
    ids = [c.id for c in case.cases_of(library) if args.only in c.id]
    begin = time.monotonic()
    if args.anew:
        (FOLDER / f"{library}.jsonl").unlink(missing_ok=True)
    kept = {i: r for i, r in recall(library).items() if r.right or args.recorded}

    def say(record: running.Record) -> None:
        remember(library, record)
        if not record.right or args.only:
            print(f"{'' if record.right else 'WRONG '}{record} [{record.seconds} s]", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        todo = [] if args.recorded else turn_by_turn([i for i in ids if i not in kept])
        new = {r.id: r for r in running.run(library, todo, Path(folder), limit=args.limit, say=say)}
    records = [new.get(i) or kept[i] for i in ids if i in new or i in kept]
    wrong = sum(not r.right for r in records)
    print(f"{library}: {len(records)} cases, {wrong} wrong, {time.monotonic() - begin:.0f} s", flush=True)
    if args.only:
        worst = sorted(records, key=lambda r: -r.error)[:5]
        print("worst: " + "; ".join(map(str, worst)))
    elif records:
        kernels = write_page(library, records, args.scan_seconds)
        if args.summary:
            put_summary_line(library, summary_line(library, records, kernels))
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("libraries", nargs="*", help="without any: all")
    parser.add_argument("--scan-seconds", type=float, default=60, help="to translate kernels for, each file")
    parser.add_argument("--anew", action="store_true", help="run all cases, also those that were recorded as right")
    parser.add_argument("--recorded", action="store_true", help="run nothing: the pages are made of what was recorded")
    parser.add_argument("--summary", action="store_true", help="write the lines of docs/SOFTWARE_LIBRARIES.md, too")
    parser.add_argument("--only", default="", help="only cases with this in their name; nothing is written")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a case")
    args = parser.parse_args()
    return int(any([make(library, args) for library in args.libraries or sorted(case.LIBRARIES)]))


if __name__ == "__main__":
    sys.exit(main())
