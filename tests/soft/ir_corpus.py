"""Whether two versions of the software GPU's compiler make the same LLVM IR, for kernels drawn at random from NVIDIA's libraries and all test programs.

    python tests/soft/ir_corpus.py collect build/ir-corpus            # once: draws the kernels (--kernels, --seed)
    python tests/soft/ir_corpus.py compare build/ir-corpus HEAD~1 .   # each side is a git revision or a folder that holds gpuvirt/

`compare` exits with 1 when a kernel differs. With --normalize, unused declarations are dropped and values and labels numbered anew, in the order in
which they occur, before texts are compared. With --rename OLD=NEW (may be repeated) the first side's identifiers OLD are taken for NEW; a # in both stands for the same number. --count N takes
the corpus's first N kernels, which are a random sample too; --show N prints where the first N kernels that differ begin to.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import importlib
import json
import lzma
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
AT_MOST_OF_A_MODULE = 6  # kernels: a module's are alike
EXPENSIVE = 400_000  # characters of a kernel's PTX from which on it is left out: minutes each


# ---- drawing kernels ---------------------------------------------------------------------------------------------------


def draw(kernels: int, seed: int) -> Iterator[tuple[str, str, list[tuple[str, tuple[int, int, int]]]]]:
    """(origin, PTX, [(kernel, block shape)]): an equal share of each library file, then every kernel of every test program."""
    from soft import cuda_programs
    from soft.libraries import native, scan

    from gpuvirt.soft.errors import SoftError

    pick = random.Random(seed)
    files = sorted({p for f in native.folders() for p in f.glob("*/lib/lib*.so*") if p.stat().st_size > 1 << 20})
    module_type = find("Module", "ptx.module", "module")
    left = kernels
    for i, path in enumerate(pick.sample(files, len(files))):
        share = left // (len(files) - i)
        for text in texts_of(path, pick):
            if share <= 0:
                break
            try:
                module = module_type(text)
            except SoftError:
                continue
            fit = [f for f in module.kernels if f.end - f.start < EXPENSIVE]
            chosen = pick.sample(fit, min(AT_MOST_OF_A_MODULE, share, len(fit)))
            if chosen:
                share, left = share - len(chosen), left - len(chosen)
                yield path.name, text, [(f.name, scan.block_of(f)) for f in chosen]
    with tempfile.TemporaryDirectory() as folder:
        names = list(cuda_programs.sources())
        with ThreadPoolExecutor(2) as pool:
            made = pool.map(lambda n: cuda_programs.compile_text(cuda_programs.sources()[n].read_text(), Path(folder)), names)
            for name, executable in zip(names, made, strict=True):
                for text in scan.ptx_texts(executable, scan.Result(name)):
                    yield name, text, [(f.name, scan.block_of(f)) for f in module_type(text).kernels]


def texts_of(path: Path, pick: random.Random) -> Iterator[str]:
    """The PTX of a library file's containers, in random order, without repeats."""
    import mmap

    from soft.libraries import scan

    from gpuvirt.soft.errors import SoftError

    image = find_module("ptx.image", "image")
    seen = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = list(scan.containers(data))
    pick.shuffle(found)
    for container in found:
        try:
            ptx = [e for e in image.entries(container) if e.kind == image.KIND_PTX]
            raw = image.unpack(max(ptx, key=lambda e: e.arch)).rstrip(b"\0") if ptx else b""
        except SoftError:
            continue
        digest = hashlib.sha256(raw).digest()
        if raw and digest not in seen:
            seen.add(digest)
            yield raw.decode("latin-1")


def collect(corpus: Path, kernels: int, seed: int) -> None:
    """Writes the corpus: a file for each module, and kernels.json in random order."""
    corpus.mkdir(parents=True, exist_ok=True)
    listed: list[dict[str, Any]] = []
    origins: Counter[str] = Counter()
    for origin, text, chosen in draw(kernels, seed):
        name = hashlib.sha256(text.encode("latin-1")).hexdigest()[:20] + ".ptx.xz"
        (corpus / name).write_bytes(lzma.compress(text.encode("latin-1"), preset=1))
        listed += [{"origin": origin, "file": name, "kernel": kernel, "shape": shape} for kernel, shape in chosen]
        origins[origin] += len(chosen)
    random.Random(seed).shuffle(listed)
    (corpus / "kernels.json").write_text(json.dumps(listed, indent=0))
    print(f"{len(listed)} kernels: " + ", ".join(f"{o} {n}" for o, n in sorted(origins.items())))


# ---- one version's IR --------------------------------------------------------------------------------------------------


def find_module(*names: str) -> Any:
    """The first of some modules of gpuvirt.soft that is there: versions differ in where things lie."""
    for name in names:
        try:
            return importlib.import_module(f"gpuvirt.soft.{name}")
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("gpuvirt"):
                raise
    raise SystemExit(f"none of gpuvirt.soft.{{{', '.join(names)}}} is there")


def find(what: str, *modules: str) -> Any:
    return getattr(find_module(*modules), what)


def record(corpus: Path, count: int, only: set[int] | None, normal: bool, renames: list[str]) -> None:
    """For each kernel a line of JSON: its number and the digest of its IR and description, or, with `only`, the IR itself."""
    translate: Callable[..., Any] = find("translate", "pipeline", "kernel")
    module_type = find("Module", "ptx.module", "module")
    soft_error = find("SoftError", "errors")
    listed = json.loads((corpus / "kernels.json").read_text())[:count]
    by_file: dict[str, list[int]] = {}
    for number, row in enumerate(listed):
        if only is None or number in only:
            by_file.setdefault(row["file"], []).append(number)
    for file, numbers in by_file.items():
        module = module_type(lzma.decompress((corpus / file).read_bytes()).decode("latin-1"))
        for number in numbers:
            row = listed[number]
            try:
                text, description, _ = translate(module, row["kernel"], tuple(row["shape"]))
                text = f"{description.pack().decode()}\n{text}"
            except soft_error as error:
                text = f"{type(error).__name__}: {error}"
            for rename in renames:
                old, new = rename.split("=")
                old = re.escape(old).replace(r"\#", "([0-9]+)")
                text = re.sub(rf"(?<![\w.$]){old}(?![\w.$])", new.replace("#", r"\1"), text)
            if normal:
                text = normalized(text)
            out = {"number": number, "text": text} if only is not None else {"number": number, "digest": hashlib.sha256(text.encode()).hexdigest()}
            print(json.dumps(out), flush=True)


def normalized(text: str) -> str:
    """IR without declarations that nothing uses, its values and labels numbered in the order in which they occur in each function."""
    lines = text.split("\n")
    used = Counter(name for line in lines for name in re.findall(r"@[\w.$]+", line))
    declared = sorted(line for line in lines if line.startswith("declare") and used[re.findall(r"@[\w.$]+", line)[0]] > 1)
    out: list[str] = []
    numbers: dict[str, str] = {}
    for line in lines:
        if line.startswith("declare"):
            continue
        if line.startswith("define"):
            numbers = {}
        label = re.match(r"([\w.$]+):", line)
        if label and not line.startswith("{"):
            line = f"%{label[1]}:{line[label.end() :]}"
        for name in re.findall(r"%[\w.$]+", line):
            numbers.setdefault(name, f"%{len(numbers)}")
        out.append(re.sub(r"%[\w.$]+", lambda m, n=numbers: n[m[0]], line))
    return "\n".join(declared + out)


def own_version(tree: Path) -> None:
    """Lets gpuvirt be imported from `tree`, whatever is installed."""
    sys.meta_path = [f for f in sys.meta_path if "editable" not in type(f).__module__]
    sys.path.insert(0, str(tree))
    import gpuvirt

    assert Path(gpuvirt.__file__).is_relative_to(tree), gpuvirt.__file__


# ---- two versions ------------------------------------------------------------------------------------------------------


def tree_of(side: str, folder: Path) -> Path:
    """The folder itself, or a git revision's gpuvirt/ unpacked below `folder`."""
    if (Path(side) / "gpuvirt").is_dir():
        return Path(side).resolve()
    target = folder / re.sub(r"\W", "_", side)
    target.mkdir()
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", side, "gpuvirt"], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", str(target)], input=packed.stdout, check=True)
    return target


def records(tree: Path, corpus: Path, *options: str) -> dict[int, str]:
    """What a process of its own records of one version."""
    line = [sys.executable, __file__, "record", str(corpus), "--tree", str(tree), *options]
    env = {**os.environ, "PYTHONHASHSEED": "0"}  # revisions before the compiler's output was deterministic
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, cwd="/", env=env)
    return {row["number"]: row.get("digest", row.get("text")) for row in map(json.loads, done.stdout.splitlines())}


def compare(corpus: Path, before: str, after: str, count: int, show: int, normal: bool, renames: list[str]) -> int:
    """Prints how many kernels are the same; 1 when not all are."""
    begin = time.monotonic()
    listed = json.loads((corpus / "kernels.json").read_text())[:count]
    options = [f"--count={count}", *(["--normalize"] if normal else [])]
    sides = [[f"--rename={r}" for r in renames], []]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        trees = [tree_of(before, Path(folder)), tree_of(after, Path(folder))]
        old, new = pool.map(lambda t, more: records(t, corpus, *options, *more), trees, sides)
        assert set(old) == set(new) == set(range(len(listed)))
        different = [n for n in range(len(listed)) if old[n] != new[n]]
        if show and different:
            only = ",".join(map(str, different[:show]))
            was, now = pool.map(lambda t, more: records(t, corpus, *options, *more, f"--only={only}"), trees, sides)
            for n in different[:show]:
                print(f"--- {listed[n]['origin']} {listed[n]['kernel']} {listed[n]['shape']}")
                lines = difflib.unified_diff(was[n].split("\n"), now[n].split("\n"), before, after, lineterm="", n=2)
                print("\n".join(line[:220] for _, line in zip(range(40), lines, strict=False)))
    origins = Counter(listed[n]["origin"] for n in different)
    print(f"{len(listed)} kernels, {len(listed) - len(different)} the same, {len(different)} differ ({time.monotonic() - begin:.0f} s)")
    for origin, number in origins.most_common():
        print(f"  {origin}: {number}")
    return int(bool(different))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("collect")
    verb.add_argument("corpus", type=Path)
    verb.add_argument("--kernels", type=int, default=2000, help="of libraries; those of the test programs come on top")
    verb.add_argument("--seed", type=int, default=1)
    for name in ("record", "compare"):
        verb = verbs.add_parser(name)
        verb.add_argument("corpus", type=Path)
        if name == "compare":
            verb.add_argument("before")
            verb.add_argument("after")
            verb.add_argument("--show", type=int, default=1)
        else:
            verb.add_argument("--tree", type=Path, required=True)
            verb.add_argument("--only")
        verb.add_argument("--count", type=int, default=1 << 30)
        verb.add_argument("--normalize", action="store_true")
        verb.add_argument("--rename", action="append", default=[])
    args = parser.parse_args()
    if args.verb == "compare":
        return compare(args.corpus.resolve(), args.before, args.after, args.count, args.show, args.normalize, args.rename)
    own_version(args.tree.resolve() if args.verb == "record" else ROOT)
    if args.verb == "collect":
        sys.path.insert(0, str(ROOT / "tests"))
        collect(args.corpus, args.kernels, args.seed)
    else:
        only = {int(n) for n in args.only.split(",")} if args.only else None
        record(args.corpus, args.count, only, args.normalize, args.rename)
    return 0


if __name__ == "__main__":
    sys.exit(main())
