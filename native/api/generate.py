"""Writes everything that follows from the headers and the tables: see README.md.

python native/api/generate.py --headers DIR13 --headers DIR12 --nvml DIR --out BUILDDIR
python native/api/generate.py --coverage docs/COVERAGE.md [--check]
python native/api/generate.py --results gpuvirt/soft/cuda_results.py [--check]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import backend_spec
import command_spec
import conformance_cases
import emit_backend
import emit_client
import emit_commands
import emit_coverage
import emit_dispatch
import emit_impl
import emit_nvml
import emit_objects
import emit_proc_address
import emit_results
import emit_stubs
import function_spec
import headers
from writing import write

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parents[1] / "tests" / "conformance" / "programs"


def installed_headers() -> list[Path]:
    """Where the wheels of this Python put the headers: CUDA 13, CUDA 12, NVML."""
    finder = HERE.parents[1] / "tools" / "find_headers.py"
    done = subprocess.run([sys.executable, str(finder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return [Path(part) for part in done.stdout.strip().split(";")]


def generate(folders: list[Path], nvml: Path, out: Path) -> None:
    """Writes all generated sources into `out`."""
    api = headers.read(folders)
    functions = function_spec.load(HERE / "functions", api)
    commands = command_spec.load(HERE / "commands.toml")
    backend = backend_spec.load(HERE / "backend.toml")
    files = {
        "gv_commands.h": emit_commands.header(commands),
        "gv_commands.c": emit_commands.source(commands),
        "gv_client.h": emit_client.header(commands, api),
        "gv_objects.h": emit_objects.header(commands),
        "gv_objects.c": emit_objects.source(commands, backend),
        "gv_dispatch.h": emit_dispatch.header(commands),
        "gv_dispatch.c": emit_dispatch.source(commands, backend),
        "gv_backend_ops.h": emit_backend.header(backend.values()),
        "gv_impl.h": emit_impl.header(functions),
        "gv_symbols.h": emit_stubs.header(functions),
        "gv_stubs.c": emit_stubs.source(functions, api),
        "gv_proc_table.c": emit_proc_address.source(functions, api),
        "gv_results.h": emit_results.header(api),
        "gv_errors.c": emit_proc_address.errors(api, HERE / "error_texts.toml"),
        "gv_nvml.h": emit_nvml.header(nvml),
        "gv_nvml_stubs.c": emit_nvml.source(nvml, HERE / "nvml.toml"),
    }
    for name, text in files.items():
        write(out / name, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--headers", action="append", type=Path, help="a folder with cuda.h and cudaTypedefs.h, newest first (default: those of the installed wheels)"
    )
    parser.add_argument("--nvml", type=Path, help="a folder with nvml.h")
    parser.add_argument("--out", type=Path, help="where the generated files go")
    parser.add_argument("--coverage", type=Path, help="the page to write")
    parser.add_argument("--results", type=Path, help="the Python module of CUresult's values to write")
    parser.add_argument("--check", action="store_true", help="with --coverage, --results: write nothing, exit 1 when a file is stale")
    args = parser.parse_args()
    if not args.headers or not args.nvml:
        *folders, nvml = installed_headers()
        args.headers, args.nvml = args.headers or folders, args.nvml or nvml
    try:
        if args.out:
            generate(args.headers, args.nvml, args.out)
        committed: dict[Path, tuple[str, str]] = {}  # text, what makes it
        if args.coverage or args.results:
            api = headers.read(args.headers)
        if args.coverage:
            functions = function_spec.load(HERE / "functions", api)
            observers = conformance_cases.observers(PROGRAMS, functions)
            page = emit_coverage.page(functions, api, command_spec.load(HERE / "commands.toml"), observers)
            committed[args.coverage] = page, "make coverage"
        if args.results:
            committed[args.results] = emit_results.python(api), "make results"
        for path, (text, makes_it) in committed.items():
            if not args.check:
                write(path, text)
            elif not path.exists() or path.read_text() != text:
                print(f"{path} is not what the tables and headers say: {makes_it}", file=sys.stderr)
                return 1
    except (function_spec.SpecError, command_spec.SpecError, backend_spec.BackendSpecError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
