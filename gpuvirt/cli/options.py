"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gpuvirt.capability import format_capability, parse_capability
from gpuvirt.sizes import parse_size

if TYPE_CHECKING:
    from gpuvirt.client.connect import Connected
    from gpuvirt.client.settings import Settings


def size(text: str) -> int:
    """A size of memory: 512m, 4g."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def address(text: str) -> tuple[str, int]:
    """HOST:PORT, [IPV6]:PORT."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, such as 127.0.0.1:7070")
    return host, int(port)


def link(text: str) -> str:
    """A link as native/transport/link_spec.h has the grammar; what else it knows is refused by name."""
    from gpuvirt.client.settings import parse_link

    try:
        return parse_link(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def capability(text: str) -> str:
    """A compute capability: 8.0."""
    try:
        return format_capability(parse_capability(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def pool_url(text: str) -> str:
    """tcp://HOST:PORT."""
    from gpuvirt.errors import GpuvirtError
    from gpuvirt.transport.pool import parse_pool

    try:
        return parse_pool(text).url
    except GpuvirtError as error:
        raise click.BadParameter(str(error)) from None


class ProgramCommand(click.Command):
    """A verb with ``--stats[=FILE]``: a bare ``--stats`` never takes the word behind it for its file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with_value = {
            name for param in self.params if isinstance(param, click.Option) and not param.is_flag and not param.count for name in param.opts
        }
        changed: list[str] = []
        rest = iter(args)
        for arg in rest:
            if arg == "--" or not arg.startswith("-"):
                changed += [arg, *rest]
                break
            changed.append("--stats=-" if arg == "--stats" else arg)
            if arg in with_value and arg != "--stats":
                changed += [value for value in [next(rest, None)] if value is not None]
        left = super().parse_args(ctx, changed)
        if ctx.params.get("local") and ctx.params.get("pool"):
            raise click.UsageError("--pool and --local contradict each other; give one of them", ctx)
        return left


POOL = click.option("--pool", type=pool_url, metavar="URL", help="The server: tcp://HOST:PORT.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_PROGRAM = (
    POOL,
    click.option("--local", is_flag=True, default=None, help="A private pool on this machine, whatever is configured."),
    click.option("--gpus", type=click.IntRange(1, 16), metavar="N", help="How many GPUs.  [default: 1]"),
    click.option("--memory", type=size, metavar="SIZE", help="Memory per GPU, such as 4g.  [default: what there is]"),
    click.option(
        "--link",
        type=link,
        metavar="LINK",
        help="How to reach the server: auto, shm, tcp, tcp(channels=4), or as from afar: 'delay(rtt=30ms,rate=10gbit,tcp)'.  [default: auto]",
    ),
    click.option(
        "--capability", type=capability, metavar="X.Y", help="Compute capability that software GPUs tell the program.  [default: the server's]"
    ),
    click.option("--stats", metavar="[=FILE]", help="Write the figures at exit: calls, waits, bytes. To stderr without a file."),
)


def program_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what a program gets; the function takes them as keywords and hands them to `settings.resolve`."""
    for option in reversed(_PROGRAM):
        function = option(function)
    return function


def announce(found: Connected, settings: Settings) -> None:
    """Says on stderr that a private pool is used because none is set."""
    if not found.private or settings.chosen_local:
        return
    kind = "software " if found.status.software else ""
    plural = "s" if settings.gpus > 1 else ""
    click.echo(f"gpuvirt: no pool is set; using a private local pool of {settings.gpus} {kind}GPU{plural} at {found.status.address.url}", err=True)
