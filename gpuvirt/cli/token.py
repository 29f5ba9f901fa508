"""`gpuvirt token`: on this machine's token file, or with --pool on a server's, over its control channel."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from gpuvirt.cli.options import JSON, POOL, seconds, size
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


@token.command(
    epilog="\b\nExamples:\n  gpuvirt token create laptop --memory 4g\n  gpuvirt token create ci --user alice --gpus 2 --weight 0.5 --expires 30d"
)
@click.argument("name")
@click.option("--admin", is_flag=True, help="The token may also create and revoke tokens with --pool.")
@click.option("--memory", type=size, metavar="SIZE", help="The most that a session with it may have on each GPU.  [default: all of it]")
@click.option("--user", metavar="USER", help="Whose it is: all tokens of one user share its weight and its GPUs.  [default: nobody else's]")
@click.option("--weight", type=click.FloatRange(0.001, 1000), metavar="W", help="Its share over time where GPUs are short.  [default: 1]")
@click.option("--gpus", type=click.IntRange(1, 65536), metavar="N", help="The most GPUs at a time; a shared one counts as one.  [default: no limit]")
@click.option("--priority", type=click.IntRange(-100, 100), metavar="P", help="The highest priority that it may ask for.  [default: 0]")
@click.option(
    "--placement",
    type=click.Choice(["pack", "spread"]),
    help="Where its GPUs are: where most is taken, or the fewest work.  [default: pack with --compute, else spread]",
)
@click.option("--expires", type=seconds, metavar="TIME", help="How long it is valid: 30d, 12h, 90m.  [default: until it is revoked]")
@POOL
def create(name: str, admin: bool, expires: float | None, pool: str | None, **rights: Any) -> None:
    """Create a token called NAME and print it.

    A further token of a --user has the rights of that user's others, and cannot be given other ones.
    """
    given = {right: value for right, value in rights.items() if value is not None}
    if pool:
        click.echo(_ask(pool, "token_create", name=name, admin=admin, **({"lifetime": expires} if expires else {}), **given)["token"])
        return
    from gpuvirt.server.tokens import TokenStore

    click.echo(TokenStore().create(name, admin, lifetime=expires, **given).text())


@token.command(epilog="\b\nExample:\n  gpuvirt token revoke alice")
@click.argument("which", metavar="NAME|ID")
@POOL
def revoke(which: str, pool: str | None) -> None:
    """Revoke a token. What runs with it or waits in a queue ends within seconds, and is told why; new connections are refused."""
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

    table = Table("id", "name", "user", "rights", "memory", "GPUs", "weight", "priority", "placement", "created", "expires")
    for entry in found:
        memory = format_size(entry["memory"]) if entry.get("memory") else "all"
        rights = "use GPUs, manage tokens" if entry["admin"] else "use GPUs"
        policy = str(entry.get("gpus") or "all"), f"{entry.get('weight', 1):g}", str(entry.get("priority", 0)), entry.get("placement", "")
        table.add_row(
            entry["id"][:8], entry["name"], entry.get("user", ""), rights, memory, *policy, _time(entry["created"]), _expiry(entry.get("expires", 0))
        )
    Console(markup=False, emoji=False).print(table)  # names are others' texts


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _expiry(at: float) -> str:
    return "never" if not at else f"{_time(at)} (over)" if at <= time.time() else _time(at)
