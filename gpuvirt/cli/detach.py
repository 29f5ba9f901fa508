"""`gpuvirt detach`: gives the GPUs of an attached shell back."""

from __future__ import annotations

import click


@click.command(epilog="\b\nExample:\n  gpuvirt detach")
def detach() -> None:
    """Give the GPUs of this shell back.

    Programs that use them lose them, and are told so; the shell goes on without GPUs.
    """
    from gpuvirt.client.named_lease import ask_lease
    from gpuvirt.client.settings import resolve
    from gpuvirt.errors import GpuvirtError
    from gpuvirt.transport.pool import check_pool

    settings = resolve({})
    if settings.lease is None or settings.pool is None:
        raise GpuvirtError("this shell is not attached (GPUVIRT_LEASE is not set); `gpuvirt attach` starts one that is")
    ended = ask_lease(check_pool(settings.pool, settings.token), "lease_release", settings.lease)[0]["sessions"]
    lost = f"; {ended} program{'s' if ended > 1 else ''} lost them" if ended else ""
    click.echo(f"gpuvirt: the GPUs were given back to {settings.pool.url}{lost}", err=True)
