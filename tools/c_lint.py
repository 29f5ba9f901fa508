"""clang-format and clang-tidy over our C: exits 1 and names every finding.

Format is checked on all of native/ and the tests in C and C++; clang-tidy runs on the sources of the built libraries, with the flags of the build
(build/*/compile_commands.json, written by the editable install). A source that it has found clean is not looked at again until the source, what it
includes, the flags, .clang-tidy or clang-tidy itself change: build-lint keeps a digest of each.

    python tools/c_lint.py          # what the gate runs
    python tools/c_lint.py --deep   # the static analyzer follows each function three times as far
    python tools/c_lint.py --fix    # clang-format in place
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLEAN = ROOT / "build-lint"
NODES = 75_000  # states of a function that the analyzer looks at; 225,000 of its own accord


def tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise SystemExit(f"{name} is not installed: pip install {name}")
    return found


def sources() -> list[Path]:
    line = ["git", "ls-files", "-co", "--exclude-standard", "*.c", "*.h", "tests/*.cpp"]
    tracked = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in tracked.stdout.splitlines() if (ROOT / line).exists()]


def format_all(fix: bool) -> int:
    files = list(map(str, sources()))
    return subprocess.run([tool("clang-format"), *(["-i"] if fix else ["--dry-run", "-Werror"]), *files], cwd=ROOT, check=False).returncode


def compile_database() -> Path | None:
    found = sorted(ROOT.glob("build/*/compile_commands.json"), key=lambda p: p.stat().st_mtime)
    return found[-1].parent if found else None


def clean_mark(entry: dict[str, str], identity: str) -> Path | None:
    """The file that is there when this text, with its comments (NOLINT) and macros, was found clean; None when the preprocessor fails."""
    line = [word for word in shlex.split(entry["command"]) if word != "-c"]
    if "-o" in line:
        del line[line.index("-o") : line.index("-o") + 2]
    done = subprocess.run([*line, "-E", "-C", "-dD"], cwd=entry["directory"], capture_output=True, check=False)
    if done.returncode != 0:
        return None
    return CLEAN / hashlib.sha256("\0".join([identity, *line]).encode() + b"\0" + done.stdout).hexdigest()[:32]


def tidy(folder: Path, deep: bool) -> int:
    limit = [] if deep else ["-analyzer-config", f"max-nodes={NODES}"]
    options = ["--quiet", "-p", str(folder), *(f"--extra-arg={word}" for option in limit for word in ("-Xclang", option))]
    entries = {Path(e["file"]): e for e in json.loads((folder / "compile_commands.json").read_text())}
    ours = sorted(p for p in entries if p.is_relative_to(ROOT / "native"))
    version = subprocess.run([tool("clang-tidy"), "--version"], capture_output=True, text=True, check=True).stdout
    identity = version + (ROOT / ".clang-tidy").read_text() + " ".join(options)
    CLEAN.mkdir(exist_ok=True)
    old = set() if deep else set(CLEAN.iterdir())
    if not ours:
        raise SystemExit("no sources of ours in the compile database")

    def one(path: Path) -> int:
        mark = clean_mark(entries[path], identity)
        if mark is not None and mark.exists():
            old.discard(mark)
            return 0
        done = subprocess.run([tool("clang-tidy"), *options, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stdout, end="", flush=True)
        elif mark is not None:
            mark.touch()
        return done.returncode

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        worst = max(threads.map(one, ours))
    for mark in old:  # of texts that are no more
        mark.unlink(missing_ok=True)
    return worst


def main() -> int:
    if "--fix" in sys.argv[1:]:
        return format_all(fix=True)
    failed = format_all(fix=False)
    database = compile_database()
    if database is None:
        print("c_lint: no build/*/compile_commands.json; build first: make setup", file=sys.stderr)
        return 1
    return 1 if tidy(database, "--deep" in sys.argv[1:]) or failed else 0


if __name__ == "__main__":
    sys.exit(main())
