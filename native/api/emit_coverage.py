"""docs/COVERAGE.md: which functions of the driver API are supported, and how."""

from __future__ import annotations

from collections import Counter

from command_spec import CommandSpec
from conformance_cases import Observers
from emit_proc_address import versions
from function_spec import Function
from headers import Api

INTRO = """\
# Coverage of the CUDA driver API

Generated from `native/api/functions` by `make coverage`; do not edit.

Every function that NVIDIA's headers declare (up to CUDA {major}.{minor}) is exported and found by `cuGetProcAddress`. What is not supported returns
`CUDA_ERROR_NOT_SUPPORTED` and says so once on stderr. *local*: answered in the program's process. *async*: sent to the server, not awaited, but in
the cases that a remark names. *sync*: what is sent is awaited. *Versions* are the CUDA versions under which `cuGetProcAddress` gives a new form of
the function; a server with an older driver gives only the older ones. *Test*: the conformance cases (`tests/conformance/programs`: program/case) that
observe what the function does; of those that are marked † nothing can be seen but what they refuse.

"""


def cell(text: str) -> str:
    return text.replace("|", "\\|")


IMAGE = """
## What a session's image does not hold yet

A session that moves to another worker takes an image with it: memory by pages, and what lives. For each command `native/api/commands.toml`
says what of it the image keeps. A session that has some of the following does not move, and `gpuvirt move` says so.

| command | what is not kept yet |
|---|---|
"""


def page(functions: list[Function], api: Api, commands: CommandSpec, observers: Observers) -> str:
    known = versions(functions, api)
    out = [INTRO.format(major=api.version // 1000, minor=api.version % 1000 // 10)]
    counts = Counter(f.kind for f in functions if f.declared)
    supported = sum(n for kind, n in counts.items() if kind != "unsupported")
    symbols = sum(len(f.symbols) for f in functions)
    out.append("| functions | supported | local | async | sync | not supported | exported symbols | observed by a test |\n")
    out.append("|--:|--:|--:|--:|--:|--:|--:|--:|\n")
    kinds = " | ".join(str(counts[kind]) for kind in ("local", "async", "sync", "unsupported"))
    out.append(f"| {counts.total()} | {supported} | {kinds} | {symbols} | {len(observers)} |\n")
    for title in dict.fromkeys(f.title for f in functions if f.supported):
        out.append(f"\n## {title}\n\n| function | class | versions | remarks | test |\n|---|---|---|---|---|\n")
        for f in functions:
            if f.title == title:
                numbers = ", ".join(dict.fromkeys(f"{n // 1000}.{n % 1000 // 10}" for n, _ in known[f.base]))
                remarks = "; ".join(x for x in (f.reason, f.note) if x)
                out.append(f"| `{f.base}` | {f.kind} | {numbers} | {cell(remarks)} | {', '.join(observers.get(f.base, []))} |\n")
    out.append("\n## Not supported\n\n| reason | functions |\n|---|---|\n")
    for reason in dict.fromkeys(f.reason for f in functions if not f.supported):
        names = [f"`{f.base}`" for f in functions if not f.supported and f.reason == reason]
        out.append(f"| {cell(reason)} | {' '.join(names)} |\n")
    missing = [c for c in commands.commands if c.work.saved.startswith("todo: ")]
    out.append(IMAGE if missing else "")
    out += [f"| `{c.name}` | {cell(c.work.saved.removeprefix('todo: '))} |\n" for c in missing]
    return "".join(out)
