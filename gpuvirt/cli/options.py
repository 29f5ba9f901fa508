"""Kinds of options that several verbs share."""

from __future__ import annotations

from typing import Any

import click

from gpuvirt.sizes import parse_size


class Size(click.ParamType):
    """A size of memory: 512m, 4g."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Address(click.ParamType):
    """HOST:PORT, [IPV6]:PORT."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, colon, port = str(value).rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            self.fail(f"{value!r} is not HOST:PORT, such as 127.0.0.1:7070", param, ctx)
        return host, int(port)
