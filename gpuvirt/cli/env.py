"""`gpuvirt env`: the variables of `gpuvirt run`, for a shell or another launcher."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from gpuvirt.cli.options import JSON, ProgramCommand, program_options


@click.command(cls=ProgramCommand, epilog='\b\nExample:\n  eval "$(gpuvirt env --pool tcp://gpu-host:7070)"')
@program_options
@JSON
def env(as_json: bool, **options: Any) -> None:
    """Print every variable a program needs without the launcher, as shell commands.

    Asks the pool, because software GPUs need more variables. --local is refused: a private local pool ends with the program that started it.
    """
    from gpuvirt.client.connect import named_pool
    from gpuvirt.client.environment import variables
    from gpuvirt.client.settings import resolve
    from gpuvirt.transport.pool import check_pool

    settings = resolve(options)
    if settings.chosen_local:
        raise click.UsageError("--local: a private local pool lives with its program; use `gpuvirt run --local`, or start one with `gpuvirt serve`")
    wanted = variables(settings, check_pool(named_pool(settings), settings.token))
    if as_json:
        values = [{"name": v.name, "value": v.value, "prefix": v.prefix, "suffix": v.suffix, "flags": v.flags, "comment": v.comment} for v in wanted]
        click.echo(json.dumps(values, indent=2))
        return
    for variable in wanted:
        # Comments only on a terminal: an interactive zsh that evaluates the output would take them as arguments.
        comment = f"  # {variable.comment}" if sys.stdout.isatty() else ""
        click.echo(variable.exported() + comment)
