"""Writes everything that follows from the headers and the tables: see README.md.

python native/api/generate.py --headers DIR13 --headers DIR12 --nvml DIR --out BUILDDIR
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import command_spec
import emit_client
import emit_commands
import emit_dispatch
from writing import write

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--headers", action="append", default=[], type=Path, help="a folder with cuda.h and cudaTypedefs.h, newest first")
    parser.add_argument("--nvml", type=Path, help="a folder with nvml.h")
    parser.add_argument("--out", type=Path, help="where the generated files go")
    args = parser.parse_args()
    commands = command_spec.load(HERE / "commands.toml")
    write(args.out / "gv_commands.h", emit_commands.header(commands))
    write(args.out / "gv_commands.c", emit_commands.source(commands))
    write(args.out / "gv_client.h", emit_client.header(commands))
    write(args.out / "gv_dispatch.h", emit_dispatch.header(commands))
    write(args.out / "gv_dispatch.c", emit_dispatch.source(commands))
    return 0


if __name__ == "__main__":
    sys.exit(main())
