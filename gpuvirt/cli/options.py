"""Options that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gpuvirt.capability import format_capability, parse_capability
from gpuvirt.durations import parse_duration
from gpuvirt.sizes import parse_size

if TYPE_CHECKING:
    from gpuvirt.client.connect import Connected
    from gpuvirt.client.settings import Settings
    from gpuvirt.transport.pool import PoolAddress


def size(text: str) -> int:
    """A size in bytes, from 512m or 4g."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def address(text: str) -> tuple[str, int]:
    """Host and port, from HOST:PORT or [IPV6]:PORT."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, such as 127.0.0.1:7070")
    return host, int(port)


def pool_address(text: str) -> PoolAddress:
    """A pool's server, from tcp://HOST:PORT or find."""
    from gpuvirt.errors import GpuvirtError
    from gpuvirt.transport.pool import parse_choice

    try:
        return parse_choice(text)
    except GpuvirtError as error:
        raise click.BadParameter(str(error)) from None


def seconds(text: str) -> float:
    """A time in seconds, from 500ms, 10s, 2m, 12h or 30d."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def compute(text: str) -> str:
    """A part of a GPU's compute: 0.25."""
    from gpuvirt.client.settings import format_compute, parse_compute

    try:
        return format_compute(parse_compute(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def wait(text: str) -> float:
    """How long to wait for GPUs, in seconds."""
    from gpuvirt.client.settings import parse_wait

    try:
        return parse_wait(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def gpu_list(text: str) -> list[int]:
    """Numbers of GPUs, from 0 or 0,2."""
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", text):
        raise click.BadParameter(f"{text!r} names no GPUs; give their numbers, such as 0 or 0,2")
    return [int(number) for number in text.split(",")]


def link(text: str) -> str:
    """The text of a link; native/transport/link_spec.h has the grammar."""
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
    """What a user says of a pool, checked: tcp://HOST:PORT, or find."""
    from gpuvirt.errors import GpuvirtError
    from gpuvirt.transport.pool import FIND, parse_choice

    try:
        found = parse_choice(text)
        return "find" if found == FIND else found.url
    except GpuvirtError as error:
        raise click.BadParameter(str(error)) from None


class ProgramCommand(click.Command):
    """A verb with ``--stats[=FILE]``: a bare ``--stats`` does not take the following argument as its file."""

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


POOL = click.option("--pool", type=pool_url, metavar="URL", help="The server: tcp://HOST:PORT, or find: it announces itself.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_PROGRAM = (
    POOL,
    click.option("--local", is_flag=True, default=None, help="Start a private pool on this machine, even if a pool is configured."),
    click.option("--gpus", type=click.IntRange(1, 16), metavar="N", help="Number of GPUs, 1 to 16.  [default: 1]"),
    click.option("--memory", type=size, metavar="SIZE", help="Memory per GPU, such as 512m or 4g (powers of 1024).  [default: all of it]"),
    click.option(
        "--compute",
        type=compute,
        metavar="PART",
        help="Part of each GPU's compute that is reserved, such as 0.25: at least so much time while others compute.  [default: none]",
    ),
    click.option(
        "--link",
        type=link,
        metavar="LINK",
        help="How to reach the server: auto, shm, tcp, tcp(channels=4), verbs(rails=2), 'delay(rtt=30ms,rate=10gbit,tcp)'.  [default: auto]",
    ),
    click.option("--capability", type=capability, metavar="X.Y", help="Compute capability that software GPUs report.  [default: the server's]"),
    click.option(
        "--no-wait", is_flag=True, default=None, help="Be refused, with the place in the queue, instead of waiting for GPUs that others have."
    ),
    click.option("--wait", type=wait, metavar="TIME", help="How long to wait for them at most, such as 90s or 2m.  [default: no limit]"),
    click.option(
        "--priority", type=click.IntRange(-100, 100), metavar="P", help="Higher ones are served first, as far as the token allows.  [default: 0]"
    ),
    click.option("--stats", metavar="[=FILE]", help="Write calls, waits, launches and bytes when the program ends: to FILE, without one to stderr."),
)


def program_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a program's settings; the function passes its keyword arguments on to `settings.resolve`."""
    for option in reversed(_PROGRAM):
        function = option(function)
    return function


def announce(found: Connected, settings: Settings) -> None:
    """Prints on stderr that a private pool is used because no pool is set."""
    if not found.private or settings.chosen_local:
        return
    kind = "software " if found.status.software else ""
    plural = "s" if settings.gpus > 1 else ""
    click.echo(f"gpuvirt: no pool is set; using a private local pool of {settings.gpus} {kind}GPU{plural} at {found.status.address.url}", err=True)
