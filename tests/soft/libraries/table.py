"""Writes the tables of docs/SOFTWARE_LIBRARIES.md: what was run on the software GPU and how far off it was, and how many of each library's kernels
the compiler takes and the cases ran.

    python -m tests.soft.libraries.table cublas cufft    # these sections; without names: all

Each section lies between markers of its own; the others stay as they are.
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


def kernel_table(library: str, records: list[running.Record], seconds: float) -> list[str]:
    """What the library's files hold, what of it the compiler takes, what ran. Modules are known by their PTX."""
    ran = {(module, name) for record in records for module, name in record.kernels}
    lines = ["| file | kernels in PTX | translated of those tried | run by the cases |", "|---|---|---|---|"]
    known: set[str] = set()
    for path in files_of(library):
        digests: set[str] = set()
        result = scan.scan(path, seconds, 1, digests)
        if not result.containers:
            continue
        known |= digests
        mine = sum(module in digests for module, _ in ran)
        lines.append(f"| {path.name} | {result.kernels} | {result.translated} of {result.tried} | {mine} |")
        for why, count in result.refused.most_common():
            lines.append(f"| | | refused ({count}): {why} | |".replace("\n", " "))
    rest = sum(module not in known for module, _ in ran)
    lines.append(f"| compiled while running, and other libraries' | | | {rest} |")
    return lines


def section(library: str, records: list[running.Record], count: int, seconds: float) -> str:
    wrong, note = sum(not r.right for r in records), case.LIBRARIES[library].note
    of = f" of {count}" if len(records) < count else ""
    said = f"{len(records)}{of} cases run, {wrong} of them fail{'s' * (wrong == 1)}." if wrong else f"{len(records)}{of} cases run, all within the limit."
    return "\n".join(
        [
            f"## {case.LIBRARIES[library].title}",
            "",
            said,
            *(["", note] if note else []),
            "",
            *kernel_table(library, records, seconds),
            "",
            *error_table(records),
        ]
    )


def recall(folder: Path | None, library: str, everything: bool) -> dict[str, running.Record]:
    """What an earlier run, perhaps one that did not get to its end, found right, or found at all."""
    path = folder / f"{library}.jsonl" if folder else None
    if path is None or not path.exists():
        return {}
    records = [running.Record(**json.loads(line)) for line in path.read_text().splitlines() if line.endswith("}")]
    return {r.id: r for r in records if r.right or everything}


def remember(folder: Path | None, library: str, record: running.Record) -> None:
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{library}.jsonl").open("a") as file:
            file.write(json.dumps(dataclasses.asdict(record)) + "\n")


def put(library: str, text: str) -> None:
    """Replaces the library's section, or adds it at the end."""
    begin, end = f"<!-- {library}: begin -->", f"<!-- {library}: end -->"
    before = DOCUMENT.read_text()
    block = f"{begin}\n{text}\n{end}"
    if begin in before:
        head, rest = before.split(begin, 1)
        after = head + block + rest.split(end, 1)[1]
    else:
        after = before.rstrip("\n") + f"\n\n{block}\n"
    DOCUMENT.write_text(after)


def turn_by_turn(ids: list[str]) -> list[str]:
    """One of each operation, then another of each, in an order that always is the same: a run that is cut has seen something of everything."""
    by_operation: dict[str, list[str]] = defaultdict(list)
    for one in sorted(ids, key=lambda i: hashlib.sha256(i.encode()).digest()):
        by_operation[one.split("/")[1]].append(one)
    return [one for turn in itertools.zip_longest(*by_operation.values()) for one in turn if one is not None]


def make(library: str, args: argparse.Namespace) -> int:
    """Runs a library's cases and writes its section; returns how many are wrong."""
    ids = [c.id for c in case.cases_of(library) if args.only in c.id]
    begin = time.monotonic()
    kept = recall(args.records, library, args.recorded)

    def say(record: running.Record) -> None:
        remember(args.records, library, record)
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
    else:
        put(library, section(library, records, len(ids), args.scan_seconds))
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("libraries", nargs="*", help="without any: all")
    parser.add_argument("--scan-seconds", type=float, default=60, help="to translate kernels for, each file")
    parser.add_argument("--records", type=Path, help="a folder where records are kept: cases that were right are not run again")
    parser.add_argument("--recorded", action="store_true", help="run nothing: the table is made of what --records has")
    parser.add_argument("--only", default="", help="only cases with this in their name; nothing is written")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a case")
    args = parser.parse_args()
    return int(any([make(library, args) for library in args.libraries or sorted(case.LIBRARIES)]))


if __name__ == "__main__":
    sys.exit(main())
