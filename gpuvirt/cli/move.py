"""`gpuvirt move`: a session goes on on other GPUs."""

from __future__ import annotations

import json

import click

from gpuvirt.cli.options import JSON, POOL, gpu_list, seconds

SLOWEST = 600.0  # seconds for the image to pass, beyond the limit


@click.command(epilog="\b\nExample:\n  gpuvirt move 1f2e3d4c5b6a7988 --gpu 1 --pool tcp://gpu-host:7070")
@click.argument("session")
@click.option("--gpu", "gpus", required=True, type=gpu_list, metavar="N[,N...]", help="The GPUs it goes to, as many as it has.")
@click.option("--limit", default="10s", show_default=True, type=seconds, help="How long it may take to come to rest.")
@POOL
@JSON
def move(session: str, gpus: list[int], limit: float, pool: str | None, as_json: bool) -> None:
    """Move a session to other GPUs of its pool, while its program runs.

    SESSION is its id, as `gpuvirt ps` shows it. The program waits meanwhile: its memory, modules and all else come back in another worker, at the
    same addresses. A session moves between two kernels. One that does not come to rest within the limit stays where it is, and so does one that has
    what cannot move.
    """
    from gpuvirt.client.connect import ask_pool
    from gpuvirt.client.settings import resolve

    answer = ask_pool(resolve({"pool": pool}), "move", session=session, devices=gpus, rest=limit, limit=limit + SLOWEST)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    was, now = (",".join(map(str, answer[key])) for key in ("from", "devices"))
    click.echo(f"{session}: from GPU {was} (worker {answer['from_pid']}) to GPU {now} (worker {answer['worker_pid']}) in {answer['seconds']:.2f} s")
