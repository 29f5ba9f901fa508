"""How much of a library's PTX the software GPU's compiler takes: every fatbin in the files is opened, every kernel is indexed, and as many as
time allows are translated to LLVM IR.

    python tests/soft/libraries/scan.py .venv/lib/python3*/site-packages/nvidia/cublas/lib/libcublas.so.12 --seconds 60

Kernels are drawn at random (--seed), so that a short run says something of the whole. What is refused is listed by reason. Files of PTX, and folders
with such files anywhere below (Triton's cache, what a program wrote with nvrtcGetPTX, `nvcc -keep`), do as well.

    python tests/soft/libraries/scan.py --forms FILE...

looks at every instruction of every kernel instead, without translating any: how often each opcode occurs with its modifiers, and which of them the table
of opcodes (gpuvirt/soft/ptx/opcode_table.py) lacks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import random
import re
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuvirt.soft import pipeline
from gpuvirt.soft.errors import SoftError
from gpuvirt.soft.ptx.image import FATBIN_MAGIC, KIND_PTX, entries, unpack
from gpuvirt.soft.ptx.module import Func, Module
from gpuvirt.soft.ptx.opcodes import OPCODES, unknown


@dataclass
class Result:
    """One file's figures."""

    file: str
    containers: int = 0
    with_ptx: int = 0
    modules: int = 0
    kernels: int = 0
    tried: int = 0
    translated: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def containers(data: mmap.mmap) -> Iterator[bytes]:
    """Every fatbin in a file: its magic is looked for, since it lies in whatever section its linker chose."""
    magic = struct.pack("<I", FATBIN_MAGIC)
    at = data.find(magic)
    while at >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", data, at)
        if version == 1 and header == 16 and size <= len(data) - at - header:
            yield data[at : at + header + size]
            at = data.find(magic, at + header + size)
        else:
            at = data.find(magic, at + 4)


def ptx_texts(path: Path, result: Result) -> Iterator[str]:
    """The PTX that the loader would choose from each container, without repeats."""
    if path.is_dir() or path.suffix == ".ptx":
        yield from _plain(path, result)
        return
    seen: set[bytes] = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for container in containers(data):
            result.containers += 1
            try:
                ptx = [e for e in entries(container) if e.kind == KIND_PTX]
                if not ptx:
                    continue
                result.with_ptx += 1
                raw = unpack(max(ptx, key=lambda e: e.arch)).rstrip(b"\0")
            except SoftError as error:
                result.refused[str(error)[:100]] += 1
                continue
            digest = hashlib.sha256(raw).digest()
            if digest not in seen:
                seen.add(digest)
                yield raw.decode("latin-1")


def _plain(path: Path, result: Result) -> Iterator[str]:
    """Files of PTX, without repeats."""
    seen: set[str] = set()
    for file in sorted(path.rglob("*.ptx")) if path.is_dir() else [path]:
        result.containers += 1
        text = file.read_text("latin-1")
        if ".version" in text and text not in seen:
            result.with_ptx += 1
            seen.add(text)
            yield text


_OPCODE = re.compile(r"^\s*(?:[\w$]+:\s*)?(?:@!?%?[\w$]+\s+)?\{?\s*([a-z][a-z0-9]*(?:\.[\w:]+)*)(?=[\s;])", re.M)


def forms(path: Path, result: Result) -> Counter[str]:
    """Every opcode with its modifiers and how often it occurs; what the table lacks is added to what is refused."""
    found: Counter[str] = Counter()
    for text in ptx_texts(path, result):
        result.modules += 1
        for opcode in _OPCODE.findall(text):
            if opcode.split(".")[0] in OPCODES or opcode.count("."):
                found[opcode] += 1
    for opcode, count in found.items():
        op, *mods = opcode.split(".")
        lacking = "" if op not in OPCODES else unknown(op, tuple(mods))
        if lacking is not None:
            result.refused[f"{opcode}: " + (f".{lacking}" if lacking else "the opcode")] += count
    return found


def block_of(func: Func) -> tuple[int, int, int]:
    """The block shape that the kernel asks for, or one of 128 threads."""
    found = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", func.directives)
    if not found:
        return 128, 1, 1
    x, y, z = (int(n) if n else 1 for n in found.groups())
    return (x, y, z) if x * y * z <= 1024 else (128, 1, 1)


def reason(error: Exception) -> str:
    """An error's text without what differs from kernel to kernel."""
    text = re.sub(r"\(.*", "", str(error), flags=re.S) if "unsupported" in str(error) else str(error)
    return re.sub(r"%\w+|\$?\w*\d{3,}\w*", "*", text).strip()[:140]


def scan(path: Path, seconds: float, seed: int, digests: set[str] | None = None) -> Result:
    """Indexes everything, then translates kernels drawn at random until `seconds` are over. Adds the SHA-256 of each module's PTX to `digests`."""
    result = Result(path.name)
    modules: list[Module] = []
    for text in ptx_texts(path, result):
        if digests is not None:
            digests.add(hashlib.sha256(text.encode("latin-1")).hexdigest())
        try:
            modules.append(Module(text))
        except SoftError as error:
            result.refused[reason(error)] += 1
    result.modules = len(modules)
    todo = [(m, f) for m in modules for f in m.kernels]
    result.kernels = len(todo)
    random.Random(seed).shuffle(todo)
    end = time.monotonic() + seconds
    for module, func in todo:
        if time.monotonic() > end:
            break
        result.tried += 1
        try:
            pipeline.translate(module, func.name, block_of(func))
            result.translated += 1
        except SoftError as error:
            result.refused[reason(error)] += 1
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=30, help="to translate for, each file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--forms", action="store_true", help="count opcodes with their modifiers; translate nothing")
    args = parser.parse_args()
    refused = False
    for path in args.files:
        if args.forms:
            result = Result(path.name)
            found = forms(path, result)
            refused = refused or bool(result.refused)
            if args.json:
                print(json.dumps({"file": path.name, "forms": found, "lacking": result.refused}), flush=True)
                continue
            print(
                f"{path.name}: {result.modules} modules, {sum(found.values())} instructions of {len(found)} forms, {len(result.refused)} lacking",
                flush=True,
            )
            for why, count in result.refused.most_common():
                print(f"    {count:7d}  {why}", flush=True)
            continue
        result = scan(path, args.seconds, args.seed)
        refused = refused or bool(result.refused)
        if args.json:
            print(json.dumps({**result.__dict__, "refused": dict(result.refused)}), flush=True)
            continue
        print(
            f"{result.file}: PTX in {result.with_ptx} of {result.containers} containers, {result.modules} different modules, {result.kernels} kernels; "
            f"{result.tried} tried, {result.translated} translated",
            flush=True,
        )
        for why, count in result.refused.most_common():
            print(f"    {count:5d}  {why}", flush=True)
    return int(refused)


if __name__ == "__main__":
    sys.exit(main())
