"""`gpuvirt token`: what lets clients in. Works on this machine's server, or with --pool on another one by its control channel."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from gpuvirt.cli.options import JSON, POOL
from gpuvirt.errors import GpuvirtError


@click.group(epilog="\b\nExample:\n  gpuvirt token create alice")
def token() -> None:
    """Show, make, list and revoke tokens.

    A token is a secret: it gives the right to run code on the server. Without --pool these verbs work on this user's own server on this machine,
    running or not.
    """


def _ask(pool: str, op: str, **arguments: Any) -> dict[str, Any]:
    from gpuvirt.client.connect import ask_pool
    from gpuvirt.client.settings import resolve

    return ask_pool(resolve({"pool": pool}), op, **arguments)


@token.command(epilog="\b\nExample:\n  export GPUVIRT_TOKEN=$(ssh gpu-host gpuvirt token show)")
@click.argument("name", default="default")
def show(name: str) -> None:
    """Print a token of this machine's server; without NAME the one made at its first start."""
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


@token.command(epilog="\b\nExample:\n  gpuvirt token create alice")
@click.argument("name")
@click.option("--admin", is_flag=True, help="May also make and revoke tokens from afar.")
@POOL
def create(name: str, admin: bool, pool: str | None) -> None:
    """Make a token called NAME and print it."""
    if pool:
        click.echo(_ask(pool, "token_create", name=name, admin=admin)["token"])
        return
    from gpuvirt.server.tokens import TokenStore

    click.echo(TokenStore().create(name, admin).text())


@token.command(epilog="\b\nExample:\n  gpuvirt token revoke alice")
@click.argument("which", metavar="NAME|ID")
@POOL
def revoke(which: str, pool: str | None) -> None:
    """Take a token away. Sessions under way go on; nothing new is let in."""
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
    """List the tokens, without their secrets."""
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

    table = Table("id", "name", "may", "made")
    for entry in found:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["created"]))
        table.add_row(entry["id"][:8], entry["name"], "use GPUs, manage tokens" if entry["admin"] else "use GPUs", made)
    Console().print(table)
