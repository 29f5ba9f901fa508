"""`gpuvirt move`: a session goes on on other GPUs."""

from __future__ import annotations

import json

import click

from gpuvirt.cli.options import JSON, POOL, gpu_list, seconds

SLOWEST = 600.0  # seconds for the image to pass, beyond the limit


@click.command(epilog="\b\nExamples:\n  gpuvirt move 1f2e3d4c5b6a7988 --gpu 1 --pool tcp://gpu-host:7070\n  gpuvirt move 1f2e3d4c5b6a7988 --host oak")
@click.argument("session")
@click.option("--gpu", "gpus", type=gpu_list, metavar="N[,N...]", help="The GPUs of its host that it goes to, as many as it has.")
@click.option("--host", metavar="NAME", help="Another host of the pool that it goes to, which chooses the GPUs.")
@click.option("--limit", default="10s", show_default=True, type=seconds, help="How long it may take to come to rest.")
@POOL
@JSON
def move(session: str, gpus: list[int] | None, host: str | None, limit: float, pool: str | None, as_json: bool) -> None:
    """Move a session to other GPUs of its pool, while its program runs.

    SESSION is its id, as `gpuvirt ps` shows it. The program waits meanwhile: its memory, modules and all else come back in another worker, at the
    same addresses. A session moves between two kernels. One that does not come to rest within the limit stays where it is, and so does one that has
    what cannot move. To another host it goes with all programs that work under its lease; their links must be tcp.
    """
    from gpuvirt.client.connect import ask_pool
    from gpuvirt.client.settings import resolve

    if (gpus is None) == (host is None):
        raise click.UsageError("name the GPUs of its host with --gpu, or another host with --host")
    to = {"host": host} if host is not None else {"devices": gpus}
    answer = ask_pool(resolve({"pool": pool}), "move", session=session, **to, rest=limit, limit=limit + SLOWEST)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    if host is not None:
        others = f", with {answer['sessions'] - 1} more of its lease" if answer["sessions"] > 1 else ""
        click.echo(f"{session}: from {answer['from_host']} to {answer['host']} in {answer['seconds']:.2f} s{others}")
        return
    was, now = (",".join(map(str, answer[key])) for key in ("from", "devices"))
    click.echo(f"{session}: from GPU {was} (worker {answer['from_pid']}) to GPU {now} (worker {answer['worker_pid']}) in {answer['seconds']:.2f} s")
