"""Command line of the virtual machine: see `python -m tests.vm --help`."""

from __future__ import annotations

import shlex
import signal
import sys

import click

from . import rdma as rdma_checks
from .machine import Machine, NoAnswer
from .packages import Missing

NOT_RUN = 77  # something is missing: neither passed nor failed
GAVE_UP = 124  # the machine did not end in time, or without having ended the command


@click.group(help="Runs things in a virtual machine; exits with 77 where that is not possible here.")
def main() -> None:
    pass


@main.command()
@click.option("--package", multiple=True, help="A package of Debian's that the guest has beside what the host has.")
@click.option("--seconds", default=600.0, show_default=True)
@click.argument("command", nargs=-1, required=True)
def run(package: tuple[str, ...], seconds: float, command: tuple[str, ...]) -> None:
    """Runs COMMAND as root, and exits with its status."""
    sys.exit(Machine(package).run(shlex.join(command), seconds=seconds).status)


@main.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(rdma_checks.PARTS), help="Only this one; may be given several times.")
@click.option("--program", help="A shell command that uses a GPU, in place of the program that adds two vectors.")
def rdma(parts: tuple[str, ...], program: str | None) -> None:
    """Links over verbs on the kernel's Soft-RoCE: ibv_rc_pingpong, the C tests of the transport, a program with a software GPU."""
    sys.exit(rdma_checks.run(parts or rdma_checks.PARTS, program))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the machine ends, too
    try:
        main()
    except (Missing, NoAnswer) as error:
        print(error, file=sys.stderr)
        sys.exit(NOT_RUN if isinstance(error, Missing) else GAVE_UP)
