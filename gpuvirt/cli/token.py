"""`gpuvirt token`: on this machine's token file, or with --pool on a server's, over its control channel."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from gpuvirt.cli.options import JSON, POOL, size
from gpuvirt.errors import GpuvirtError
from gpuvirt.sizes import format_size


@click.group(epilog="\b\nExamples:\n  gpuvirt token show\n  gpuvirt token create alice\n  gpuvirt token revoke alice")
def token() -> None:
    """Show, create, list and revoke tokens.

    A token is a secret: its holder can run code on the server. Without --pool these verbs work on the tokens of this user's servers on this
    machine, whether a server runs or not.
    """


def _ask(pool: str, op: str, **arguments: Any) -> dict[str, Any]:
    from gpuvirt.client.connect import ask_pool
    from gpuvirt.client.settings import resolve

    return ask_pool(resolve({"pool": pool}), op, **arguments)


@token.command(epilog="\b\nExample:\n  export GPUVIRT_TOKEN=$(ssh gpu-host gpuvirt token show)")
@click.argument("name", default="default")
def show(name: str) -> None:
    """Print a token of this machine's servers; without NAME the one that was created at the first start."""
    from gpuvirt.server.tokens import DEFAULT_NAME, TokenStore

    store = TokenStore()
    if name == DEFAULT_NAME:
        click.echo(store.default().text())
        return
    for entry in store.entries():
        if entry.name == name:
            click.echo(store.token(entry).text())
            return
    raise GpuvirtError(f"no token is called {name!r}; see `gpuvirt token list`")


@token.command(epilog="\b\nExample:\n  gpuvirt token create alice --memory 4g")
@click.argument("name")
@click.option("--admin", is_flag=True, help="The token may also create and revoke tokens with --pool.")
@click.option("--memory", type=size, metavar="SIZE", help="The most that a session with it may have on each GPU.  [default: all of it]")
@POOL
def create(name: str, admin: bool, memory: int | None, pool: str | None) -> None:
    """Create a token called NAME and print it."""
    if pool:
        click.echo(_ask(pool, "token_create", name=name, admin=admin, memory=memory or 0)["token"])
        return
    from gpuvirt.server.tokens import TokenStore

    click.echo(TokenStore().create(name, admin, memory or 0).text())


@token.command(epilog="\b\nExample:\n  gpuvirt token revoke alice")
@click.argument("which", metavar="NAME|ID")
@POOL
def revoke(which: str, pool: str | None) -> None:
    """Revoke a token. Connected sessions continue; new connections are refused."""
    if pool:
        entry = _ask(pool, "token_revoke", which=which)["revoked"]
    else:
        from gpuvirt.server.tokens import TokenStore

        entry = TokenStore().revoke(which).public()
    click.echo(f"gpuvirt: the token {entry['name']} ({entry['id'][:8]}) is revoked", err=True)


@token.command(name="list", epilog="\b\nExample:\n  gpuvirt token list --json")
@POOL
@JSON
def list_tokens(pool: str | None, as_json: bool) -> None:
    """List the tokens without their secrets."""
    if pool:
        found: list[dict[str, Any]] = _ask(pool, "token_list")["tokens"]
    else:
        from gpuvirt.server.tokens import TokenStore

        found = [entry.public() for entry in TokenStore().entries()]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("id", "name", "rights", "memory", "created")
    for entry in found:
        memory = format_size(entry["memory"]) if entry.get("memory") else "all"
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["created"]))
        table.add_row(entry["id"][:8], entry["name"], "use GPUs, manage tokens" if entry["admin"] else "use GPUs", memory, created)
    Console(markup=False, emoji=False).print(table)  # names are others' texts
