"""The command line: one file per verb, imported when the verb is used."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from gpuvirt import __version__
from gpuvirt.errors import GpuvirtError

OWN_ERROR = 125  # exit code of gpuvirt's own errors; usage errors are 2; otherwise the program's exit code
INTERRUPTED = 128 + 2  # as a shell shows Ctrl-C

# Verb: the module that defines a click command of the same name, and the verb's line in `gpuvirt --help`.
VERBS = {
    "run": ("gpuvirt.cli.run", "Run a program with remote GPUs."),
    "attach": ("gpuvirt.cli.attach", "Start a shell with remote GPUs."),
    "batch": ("gpuvirt.cli.batch", "Run programs of several ranks in the background, when their GPUs are free."),
    "detach": ("gpuvirt.cli.detach", "Give the GPUs of an attached shell back."),
    "env": ("gpuvirt.cli.env", "Print the variables a program needs without the launcher."),
    "serve": ("gpuvirt.cli.serve", "Offer this machine's GPUs, or software GPUs, to others."),
    "pools": ("gpuvirt.cli.pools", "List the pools that announce themselves in this network."),
    "devices": ("gpuvirt.cli.devices", "List a pool's GPUs."),
    "ps": ("gpuvirt.cli.ps", "List a pool's leases and their sessions."),
    "top": ("gpuvirt.cli.top", "Show what a pool does: GPUs, sessions, who waits."),
    "report": ("gpuvirt.cli.report", "Show what users have had in a month."),
    "park": ("gpuvirt.cli.park", "Have an idle session give its GPU's memory back until it is needed."),
    "move": ("gpuvirt.cli.move", "Move a session to other GPUs while its program runs."),
    "drain": ("gpuvirt.cli.drain", "Have a host of the pool give all it has to the others."),
    "token": ("gpuvirt.cli.token", "Show, create, list and revoke tokens."),
    "doctor": ("gpuvirt.cli.doctor", "Check the installation, the token and the connection."),
    "bench": ("gpuvirt.cli.bench", "Measure driver calls, copies and launches beside the bare transport."),
    "demo": ("gpuvirt.cli.demo", "Run the examples on two software GPUs and compare with NumPy."),
}


class Verbs(click.Group):
    """Imports a verb's module only when that verb runs, so that `gpuvirt --help` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = getattr(importlib.import_module(VERBS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, line) for verb, (_, line) in VERBS.items()])


@click.command(cls=Verbs, epilog="\b\nExamples:\n  gpuvirt run -- python train.py\n  gpuvirt run --pool tcp://gpu-host:7070 -- python train.py")
@click.version_option(__version__, prog_name="gpuvirt")
def cli() -> None:
    """Remote GPUs for unmodified CUDA programs.

    Each option of run, attach, env and bench can also be given as an environment variable GPUVIRT_<NAME> or as a key of
    ~/.config/gpuvirt/config.toml.
    An option takes precedence over the environment, the environment over the file.
    """


def main(arguments: list[str] | None = None) -> Any:
    """The `gpuvirt` command. Exits with 125 and one line on stderr after an error of gpuvirt's own, with 2 after wrong usage."""
    try:
        return cli.main(arguments, prog_name="gpuvirt")
    except (GpuvirtError, OSError) as error:
        click.echo(f"gpuvirt: {error}", err=True)
        sys.exit(OWN_ERROR)
