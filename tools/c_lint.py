"""clang-format and clang-tidy over our C: exits 1 and names every finding.

Format is checked on all of native/ and the C tests; clang-tidy runs on the sources of the built libraries, with the flags of the build
(build/*/compile_commands.json, written by the editable install).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise SystemExit(f"{name} is not installed: pip install {name}")
    return found


def sources() -> list[Path]:
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.c", "*.h"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in tracked.stdout.splitlines() if (ROOT / line).exists()]


def format_all(fix: bool) -> int:
    files = list(map(str, sources()))
    return subprocess.run([tool("clang-format"), *(["-i"] if fix else ["--dry-run", "-Werror"]), *files], cwd=ROOT, check=False).returncode


def compile_database() -> Path | None:
    found = sorted(ROOT.glob("build/*/compile_commands.json"), key=lambda p: p.stat().st_mtime)
    return found[-1].parent if found else None


def tidy(folder: Path) -> int:
    entries = {Path(e["file"]) for e in json.loads((folder / "compile_commands.json").read_text())}
    ours = sorted(p for p in entries if p.is_relative_to(ROOT / "native"))
    if not ours:
        raise SystemExit("no sources of ours in the compile database")

    def one(path: Path) -> int:
        done = subprocess.run([tool("clang-tidy"), "--quiet", "-p", str(folder), str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stdout, end="", flush=True)
        return done.returncode

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return max(threads.map(one, ours))


def main() -> int:
    if "--fix" in sys.argv[1:]:
        return format_all(fix=True)
    failed = format_all(fix=False)
    database = compile_database()
    if database is None:
        print("c_lint: no build/*/compile_commands.json; build first: make setup", file=sys.stderr)
        return 1
    return 1 if tidy(database) or failed else 0


if __name__ == "__main__":
    sys.exit(main())
