"""The CUDA programs of tests/soft/programs: building them, alone or many in one executable, and running them over the shim on a software GPU.

Each program is a plain one with a main(), which nvcc compiles as it is. Most of the time of that goes into CUDA's headers, so the tests put the light ones
together: each in a namespace of its own, its main() renamed, and one main() that runs those it is asked for, one after the other.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from e2e.harness import Server, run_program

from gpuvirt.demo.programs import find_nvcc

FOLDER = Path(__file__).parent / "programs"
# PTX alone: a software GPU needs no machine code, and making it takes longer.
OPTIONS = ["-std=c++17", "--extended-lambda", "-O2", "-cudart", "static", "-gencode", "arch=compute_90,code=compute_90"]
HEAVY = re.compile(r"#include <(cub/|thrust/|cuda/|curand)")
SYSTEM_INCLUDE = re.compile(r"^#include <.*>$", re.M)


def sources() -> dict[str, Path]:
    """All programs by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.cu"))}


def is_heavy(name: str) -> bool:
    """Whether the program's headers make it a long one to compile, or change what others would see."""
    return bool(HEAVY.search((FOLDER / f"{name}.cu").read_text()))


def subject(name: str) -> str:
    """What the program is about: its first line."""
    return (FOLDER / f"{name}.cu").read_text().split("\n", 1)[0].removeprefix("// ")


def together(names: list[str]) -> str:
    """One translation unit of several programs: SEED NAME... on its command line runs these, and says how each ended and when."""
    texts = {name: sources()[name].read_text() for name in names}
    headers = sorted({line for text in texts.values() for line in SYSTEM_INCLUDE.findall(text)})
    parts = [*headers, '#include "program.h"', "#include <chrono>"]
    parts += [f"namespace of_{name} {{\n#define main program\n{SYSTEM_INCLUDE.sub('', text)}\n#undef main\n}}" for name, text in texts.items()]
    table = ", ".join(f'{{"{name}", of_{name}::program}}' for name in names)
    parts.append(f"""
int main(int argc, char **argv) {{
    struct {{ const char *name; int (*program)(int, char **); }} table[] = {{{table}}};
    for (int i = 2; i < argc; i++)
        for (auto &entry : table)
            if (!std::strcmp(entry.name, argv[i])) {{
                auto start = std::chrono::steady_clock::now();
                char *arguments[] = {{argv[i], argv[1], nullptr}};
                int code = entry.program(2, arguments);
                std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
                std::printf("%s: exit %d after %.2f s\\n", entry.name, code, took.count());
                std::fflush(stdout);
            }}
    return 0;
}}
""")
    return "\n".join(parts)


def compile_text(text: str, folder: Path) -> Path:
    """Compiles a translation unit; the executable is kept in `folder` under the digest of all that it is made of."""
    nvcc = find_nvcc()
    include = [f"-I{FOLDER}"]
    if "<curand" in text:
        include.append(f"-I{curand_headers()}")
    stamp = nvcc.stat()
    identity = "\0".join([text, (FOLDER / "program.h").read_text(), *OPTIONS, str(nvcc), str(stamp.st_size), str(stamp.st_mtime_ns)])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:24]
    target = folder / digest
    if not target.exists():
        source, made = folder / f"{digest}.{os.getpid()}.cu", folder / f"{digest}.{os.getpid()}"
        source.write_text(text)
        done = subprocess.run([str(nvcc), *OPTIONS, *include, str(source), "-o", str(made)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        source.unlink()
        os.replace(made, target)
    return target


def curand_headers() -> Path:
    """Where the wheel nvidia-curand keeps curand_kernel.h."""
    import nvidia

    for place in nvidia.__path__:
        folder = Path(place) / "curand" / "include"
        if (folder / "curand_kernel.h").is_file():
            return folder
    raise AssertionError("curand_kernel.h is not installed (nvidia-curand-cu12)")


def compile_all(texts: list[str], folder: Path) -> list[Path]:
    """Compiles several units, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda text: compile_text(text, folder), texts))


def forget_old(folder: Path, days: float = 7) -> None:
    """Removes executables that no test has made for a while."""
    for path in folder.iterdir():
        if time.time() - path.stat().st_mtime > days * 86400:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@dataclass(frozen=True)
class Outcome:
    """How one program ended. `code` is None when its process ended with it, and then `text` is all that is known."""

    code: int | None
    seconds: float
    text: str


ENDED = re.compile(r"^(\w+): exit (-?\d+) after ([0-9.]+) s$", re.M)


def run_together(server: Server, executable: Path, names: list[str], seed: int, timeout: float = 300) -> dict[str, Outcome]:
    """Runs programs of one executable; when one takes the process with it, the others go on in another."""
    outcomes: dict[str, Outcome] = {}
    left = list(names)
    while left:
        try:
            done = run_program(server, [executable, str(seed), *left], "--gpus", "2", timeout=timeout)
            text = done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            text = "".join(t.decode(errors="replace") if isinstance(t, bytes) else t or "" for t in (late.stdout, late.stderr)) + "\ntoo late"
        start = 0
        for match in ENDED.finditer(text):
            outcomes[match[1]] = Outcome(int(match[2]), float(match[3]), text[start : match.start()].strip())
            left.remove(match[1])
            start = match.end()
        if left:
            outcomes[left[0]] = Outcome(None, 0, text[start:].strip())
            left.pop(0)
    return outcomes
