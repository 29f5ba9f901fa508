"""Builds the C programs of the tests. Each translation unit is compiled once, however many programs it is linked into.

An object is known by the text that the preprocessor makes of its source, the flags that concern code, and the compiler: so the objects in build-tests
are those of the code that is there, and stay from one run to the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "native"
STORE = ROOT / "build-tests"
DAYS_KEPT = 7
# g1: the lines, which is all that a sanitizer tells. PIC: programs and libraries share objects.
STRICT = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g1", "-fPIC", "-pthread")
SANITIZED = ("-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": ("-O2",),
    "fortified": ("-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"),
    "address": (*SANITIZED, "-fsanitize=address,undefined"),
    "thread": (*SANITIZED, "-fsanitize=thread"),
    "undefined": (*SANITIZED, "-fsanitize=undefined"),
}


_compilers = ThreadPoolExecutor(os.cpu_count() or 2)
_lock = threading.Lock()
_objects: dict[tuple[Path, tuple[str, ...]], Future[Path]] = {}
_linked: dict[Path, Future[Path]] = {}


@cache
def compiler() -> str:
    found = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    assert found, "no C compiler"
    return found


@cache
def _compiler_version() -> str:
    return subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout


def _run(line: list[str]) -> bytes:
    done = subprocess.run(line, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(line)}\n{done.stderr.decode(errors='replace')[-4000:]}"
    return done.stdout


def _replace(made: Path, target: Path) -> Path:
    os.replace(made, target)  # two runs beside each other may make the same
    return target


def _object(source: Path, flags: tuple[str, ...]) -> Path:
    text = _run([compiler(), *flags, "-E", str(source)])
    code = [f for f in flags if not f.startswith(("-I", "-D", "-U")) or "FORTIFY" in f]  # what the others do is in the text
    identity = "\0".join([_compiler_version(), *code, str(source)]).encode() + b"\0" + text
    target = STORE / "objects" / f"{hashlib.sha256(identity).hexdigest()[:32]}.o"
    if target.exists():
        os.utime(target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}")
    _run([compiler(), *flags, "-c", str(source), "-o", str(made)])
    return _replace(made, target)


def objects(sources: Iterable[Path], flags: Sequence[str]) -> list[Path]:
    """The sources' objects, compiled with `flags` where they are not there yet. Safe in several threads: as many compilers run as there are cores."""
    asked = []
    with _lock:
        _forget_old()
        for key in [(source, tuple(flags)) for source in sources]:
            if key not in _objects:
                _objects[key] = _compilers.submit(_object, *key)
            asked.append(_objects[key])
    return [future.result() for future in asked]


def _link(target: Path, sources: Iterable[Path], flags: Sequence[str], link_flags: Sequence[str], libraries: Sequence[str]) -> Path:
    with _lock:
        mine = target not in _linked
        linked = _linked.setdefault(target, Future())
    if mine:
        try:
            made = objects(sources, [*STRICT, *flags])
            target.parent.mkdir(parents=True, exist_ok=True)
            _run([compiler(), "-pthread", *link_flags, *map(str, made), "-o", str(target), *libraries])
            linked.set_result(target)
        except BaseException as error:
            linked.set_exception(error)
    return linked.result()


def program(target: Path, sources: Iterable[Path], *, variant: str = "plain", flags: Sequence[str] = (), libraries: Sequence[str] = ()) -> Path:
    """Links `target` from C sources, compiled with the product's warnings in one of the variants; `flags` (-D, -I, -include) are for all of them.

    A target is made once a run, whoever asks for it again."""
    return _link(target, sources, [*VARIANTS[variant], *flags], VARIANTS[variant], libraries)


def library(target: Path, sources: Iterable[Path], *, variant: str = "plain", flags: Sequence[str] = (), libraries: Sequence[str] = ()) -> Path:
    """As `program`, for a shared library."""
    return _link(target, sources, [*VARIANTS[variant], *flags], [*VARIANTS[variant], "-shared"], libraries)


def calls(macro: str, result: str, function: str) -> str:
    """The flag that makes a macro a call of a function, which is declared where it is called."""
    return f"-D{macro}=({{ {result} {function}(void); {function}(); }})"


def generated() -> Path:
    """The folder of what native/api/generate.py makes of the API's table and the CUDA headers."""
    with _lock:
        return _generated()


@cache
def _generated() -> Path:
    inputs = sorted(p for p in (NATIVE / "api").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    digest = hashlib.sha256(cuda_headers().encode())
    for path in inputs:
        digest.update(str(path).encode() + path.read_bytes())
    target = STORE / f"generated-{digest.hexdigest()[:16]}"
    if not target.exists():
        made = target.with_name(f"{target.name}.{os.getpid()}")
        made.mkdir(parents=True)
        _run([sys.executable, str(NATIVE / "api" / "generate.py"), "--out", str(made)])
        try:
            _replace(made, target)
        except OSError:  # another run was faster
            shutil.rmtree(made)
    os.utime(target)
    return target


@cache
def cuda_headers() -> str:
    """The folder of CUDA 13's cuda.h."""
    return _run([sys.executable, str(ROOT / "tools" / "find_headers.py")]).decode().split(";")[0]


@cache
def _forget_old() -> None:
    """Removes, once a run, what no test has asked for in a week."""
    before = time.time() - DAYS_KEPT * 86400
    for path in [*STORE.glob("objects/*"), *STORE.glob("cuda/*"), *STORE.glob("generated-*")]:
        with contextlib.suppress(FileNotFoundError):  # of another process of this run, which has given it its own name meanwhile
            if path.stat().st_mtime < before:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def soft_backend() -> tuple[list[Path], list[str]]:
    """The sources of the software GPU's backend, and the flags that it and what includes it are compiled with."""
    wire = [NATIVE / f"wire/{name}.c" for name in ("image_stream", "module_meta")]
    sources = [*sorted((NATIVE / "backend/soft").rglob("*.c")), *(NATIVE / "backend").glob("*.c"), *wire]
    places = [generated(), *(NATIVE / part for part in ("backend/soft", "backend", "worker", "wire"))]
    return sources, ["-fvisibility=hidden", *(f"-I{place}" for place in places)]


def with_defect(source: Path, old: str, new: str) -> str:
    """The text of a source in which `old`, which stands there once, is `new`. What is included from beside it has its whole path."""
    text = source.read_text()
    assert text.count(old) == 1, f"{source.name} has changed: seeded_bugs.py no longer fits"
    for name in set(re.findall(r'#include "([^"]+)"', text)):
        path = (source.parent / name).resolve()
        if path.exists():  # others are found by the include path
            text = text.replace(f'#include "{name}"', f'#include "{path}"')
    return text.replace(old, new)
