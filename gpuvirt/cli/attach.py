"""`gpuvirt attach`: a shell with remote GPUs."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpuvirt.cli.options import ProgramCommand, program_options

if TYPE_CHECKING:
    from gpuvirt.client.settings import Settings


@click.command(
    cls=ProgramCommand,
    epilog="\b\nExamples:\n  gpuvirt attach --gpus 2\n  gpuvirt attach --pool tcp://gpu-host:7070 --gpus 2 --memory 4g --wait 10m\n"
    '  eval "$(gpuvirt attach --gpus 2 --print --pid $$)"',
)
@program_options
@click.option("-q", "--quiet", is_flag=True, default=None, help="Print only errors on stderr.")
@click.option("--print", "printed", is_flag=True, help="Start no shell: print its variables as shell commands, for a process that runs already.")
@click.option("--pid", type=click.IntRange(1), metavar="PID", help="With --print: the process whose end gives the GPUs back, such as $$ or an IDE's.")
def attach(printed: bool, pid: int | None, **options: Any) -> None:
    """Start a shell with remote GPUs.

    Every program started in it sees the same GPUs, which are yours until the shell ends, however it ends, or `gpuvirt detach` gives them back.
    Without a pool (--pool, GPUVIRT_POOL, configuration file) a private local one is started, and ended with the shell. Where others have the GPUs it
    waits, and says its place on stderr; --wait bounds that, --no-wait refuses it.

    Other shells and IDEs join by the variables that `gpuvirt env` prints in it. Exits with the shell's exit code, 125 when gpuvirt itself failed.
    """
    from gpuvirt.client import agent, shell
    from gpuvirt.client.environment import apply, variables
    from gpuvirt.client.named_lease import say_waiting
    from gpuvirt.client.settings import resolve
    from gpuvirt.transport.pool import check_pool

    if printed != (pid is not None):
        raise click.UsageError('--print and --pid belong together: eval "$(gpuvirt attach --print --pid $$)"')
    settings = _not_nested(resolve(options))
    kept = agent.start(settings, pid or os.getpid(), "gpuvirt attach", say_waiting(settings))
    found = kept.settings
    assert found.pool is not None
    wanted = variables(found, check_pool(found.pool, found.token, found.gpus, found.memory or 0, found.lease))
    if printed:
        for variable in wanted:
            click.echo(variable.exported())
        return
    if not settings.quiet:
        what = "1 GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
        whose = "a private local pool" if kept.private else found.pool.url
        click.echo(f"gpuvirt: this shell has {what} of {whose}; exit or `gpuvirt detach` gives them back", err=True)
    prepared = shell.prepare(wanted, found.gpus, os.environ, sys.stdin.isatty())
    for sig in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(sig, signal.SIG_DFL)  # Python ignores these two signals, and exec would keep them ignored
    os.execve(prepared.path, prepared.arguments, {**apply(wanted), **prepared.environment})


def _not_nested(settings: Settings) -> Settings:
    """The settings for a lease of its own.

    Raises:
        GpuvirtError: this shell has one.
    """
    from gpuvirt.client.named_lease import stands
    from gpuvirt.errors import GpuvirtError
    from gpuvirt.transport.pool import check_pool

    if settings.lease is None:
        return settings
    assert settings.pool is not None
    if stands(check_pool(settings.pool, settings.token), settings.lease):
        raise GpuvirtError(f"this shell has GPUs of {settings.pool.url} already (GPUVIRT_LEASE); `gpuvirt detach` gives them back")
    return replace(settings, lease=None, gpus=settings.gpus or 1)
