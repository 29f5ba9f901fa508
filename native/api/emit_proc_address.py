"""The tables behind cuGetProcAddress, and CUresult's names and texts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from function_spec import Function, SpecError
from headers import Api, Result, Symbol
from writing import BANNER, c_string


def versions(functions: list[Function], api: Api) -> dict[str, list[tuple[int, Symbol]]]:
    """Base name -> (first CUDA version, symbol). The k-th version of a name is the k-th of its symbols; both must take the same arguments."""
    found: dict[str, list[tuple[int, Symbol]]] = {}
    for f in functions:
        if not f.declared:
            continue  # no header says under which versions it is asked for
        rows: list[tuple[int, Symbol]] = []
        for stream in ("", "_ptsz", "_ptds"):
            symbols = sorted((s for s in f.symbols if s.stream == stream), key=lambda s: s.revision)
            numbers = sorted(v for base, v, kind in api.versions if base == f.base and kind == stream)
            if len(symbols) != len(numbers):
                raise SpecError(f"{f.base}{stream}: {[s.name for s in symbols]} are the symbols of versions {numbers}")
            for number, symbol in zip(numbers, symbols, strict=True):
                if len(api.versions[f.base, number, stream]) != len(symbol.parameters):
                    raise SpecError(f"{symbol.name}: version {number} takes other arguments")
                rows.append((number, symbol))
        # Of two with one version the per-thread one comes last, so that the last fitting row is the answer.
        found[f.base] = sorted(rows, key=lambda row: (row[0], row[1].stream))
    return found


def source(functions: list[Function], api: Api) -> str:
    table = versions(functions, api)
    out = [BANNER, '#include "abi/proc_address.h"\n\n']
    out += [f'extern CUresult stub_{s.name}(void) __asm__("{s.name}");\n' for _, rows in sorted(table.items()) for _, s in rows]
    out.append("\nconst struct proc_version proc_versions[] = {\n")
    names, at = [], 0
    for base, rows in sorted(table.items()):
        names.append(f"    {{{c_string(base)}, {at}, {len(rows)}}},\n")
        at += len(rows)
        out += [f"    {{{number}, {1 if s.stream else 0}, (void *)stub_{s.name}}},\n" for number, s in rows]
    out += ["};\n\nconst struct proc_name proc_names[] = {\n", *names, "};\n"]
    out.append(f"const unsigned proc_names_count = {len(names)};\nconst int proc_newest_version = {api.version};\n")
    return "".join(out)


def sentence(result: Result) -> str:
    """A message out of a comment: without the words that only a manual needs."""
    text = re.sub(r"^This (error )?(indicate[sd]|indiciates|signifies|means)( that)? ", "", result.text)
    text = re.sub(r"^The API call failed because it was unable", "unable", text)
    if result.name == text:
        text = result.name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()
    if len(text) > 160:
        text = text[:160].rsplit(" ", 1)[0] + " ..."
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def errors(api: Api, texts: Path) -> str:
    """texts: TOML, the driver's own text of each error that has one."""
    own: dict[str, str] = tomllib.loads(texts.read_text())
    unknown = own.keys() - {r.name for r in api.results}
    if unknown:
        raise SpecError(f"{texts.name}: the headers have no {', '.join(sorted(unknown))}")
    results = sorted(api.results, key=lambda r: r.value)
    rows = [f"    {{{r.value}, {c_string(r.name)}, {c_string(own.get(r.name) or sentence(r))}}},\n" for r in results]
    return "".join(
        [
            BANNER,
            '#include "abi/error_table.h"\n\nconst struct error_row error_rows[] = {\n',
            *rows,
            "};\n",
            f"const unsigned error_rows_count = {len(rows)};\n",
        ]
    )
