"""`gpuvirt serve`: the daemon."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuvirt.capability import parse_capability
from gpuvirt.cli.options import address, pool_address, size
from gpuvirt.cli.options import capability as capability_text
from gpuvirt.server.options import BOX_MODES
from gpuvirt.transport.table import NAMES

if TYPE_CHECKING:
    from gpuvirt.transport.pool import PoolAddress


def links_offered(text: str) -> tuple[str, ...]:
    """Link names separated by commas."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in NAMES:
            raise click.BadParameter(f"{name!r} is not a link this version offers; choose from {', '.join(NAMES)}")
    return names


def rack_name(text: str) -> str:
    """A name that fits into a table."""
    if not re.fullmatch(r"[\w.:/-]{1,40}", text):
        raise click.BadParameter(f"{text!r} is no name of a rack; it has up to 40 letters, digits, and -_.:/")
    return text


def duration(text: str) -> int:
    """A time in seconds, from 60, 60s, 2m or 1h."""
    match = re.fullmatch(r"(\d{1,6})\s*([smh]?)", text.strip())
    if not match:
        raise click.BadParameter(f"{text!r} is not a time such as 60s or 2m")
    seconds = int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
    if seconds > 7 * 24 * 3600:
        raise click.BadParameter(f"{text!r} is more than a week")
    return seconds


@click.command(
    epilog="\b\nExamples:\n  gpuvirt serve --backend soft --gpus 2\n  gpuvirt serve --listen 0.0.0.0:7070\n"
    "  gpuvirt serve --head --listen 0.0.0.0:7070\n  gpuvirt serve --join tcp://gpu-host:7070 --listen 0.0.0.0:7070\n"
    "  gpuvirt serve --ray auto --listen 0.0.0.0:7070"
)
@click.option(
    "--listen", type=address, default="127.0.0.1:7070", show_default=True, metavar="HOST:PORT", help="Address to listen on; port 0 takes a free port."
)
@click.option("--backend", type=click.Choice(["auto", "cuda", "soft"]), default="auto", show_default=True, help="Real GPUs or software GPUs.")
@click.option("--driver", type=click.Path(path_type=Path), help="cuda: the driver library, an absolute path.  [default: the system's]")
@click.option("--gpus", type=click.IntRange(1, 16), help="How many GPUs.  [default: soft 1, cuda all]")
@click.option("--gpu-memory", type=size, metavar="SIZE", help="soft: memory of one GPU.  [default: an equal share of half the RAM]")
@click.option("--capability", type=capability_text, metavar="X.Y", help="soft: compute capability.  [default: 13.0]")
@click.option("--strict", is_flag=True, help="soft: imitate what a real driver is free to do, for tests.")
@click.option(
    "--grace",
    type=duration,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="How long a session is kept after its connection was cut, and a lease without its agent: 30s, 2m, 0.",
)
@click.option(
    "--idle",
    type=duration,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Park a session that has done nothing for so long, its memory goes to a file until its next call: 30s, 2m, 0 (only to make room).",
)
@click.option(
    "--overrun",
    type=duration,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="cuda: end a session whose kernels run on for so long after its turn on a shared GPU (--compute), while others wait: 10s, 5m.",
)
@click.option(
    "--sessions-per-token",
    type=click.IntRange(1, 1024),
    default=128,
    show_default=True,
    metavar="N",
    help="Sessions, and leases, that one token may have at the same time.",
)
@click.option(
    "--box",
    type=click.Choice(BOX_MODES),
    default="auto",
    show_default=True,
    help="Confine workers: by what this kernel has; only if it has all that counts; not at all (for debuggers).",
)
@click.option("--memory-per-session", type=size, metavar="SIZE", help="The most that a session may have on each GPU.  [default: all of it]")
@click.option(
    "--host-memory-per-session",
    type=size,
    default="8g",
    show_default=True,
    metavar="SIZE",
    help="The most of this machine's memory that a session may take beside its GPUs' memory.",
)
@click.option(
    "--disk-per-token",
    type=size,
    default="8g",
    show_default=True,
    metavar="SIZE",
    help="The most of this machine's disk that sessions of one token may keep: compiled kernels, images of modules.",
)
@click.option("--link", "links", type=links_offered, default=",".join(NAMES), show_default=True, metavar="LINKS", help="Links that clients may use.")
@click.option("--plain", is_flag=True, help="Let clients that ask for --link 'tcp(plain)' have links that are not sealed.")
@click.option(
    "--metrics",
    type=address,
    metavar="HOST:PORT",
    help="Serve figures for Prometheus at this address (/metrics, of a whole pool /metrics/pool), without a token.  [default: nowhere]",
)
@click.option("--head", is_flag=True, help="Begin a pool of many hosts: this one decides who gets which GPUs of all that join it.")
@click.option("--join", type=pool_address, metavar="POOL", help="Be one more host of a pool: tcp://HOST:PORT of any that is in it already, or find.")
@click.option(
    "--ray",
    metavar="CLUSTER",
    help="Be a host of the pool of a Ray cluster, of which this machine is a node: auto, or HOST:PORT; the first begins it.",
)
@click.option("--rack", type=rack_name, metavar="NAME", help="In a pool of many hosts: where this host is; hosts of one rack are near each other.")
@click.option(
    "--rebalance",
    type=click.IntRange(0, 1000),
    metavar="N",
    help="With --head, or the first with --ray: have up to N leases move to a host that joins, from GPUs that more leases share.  [default: 0]",
)
@click.option("--announce", is_flag=True, help="Say in this network, by multicast DNS, that this server is there; clients find it with --pool find.")
@click.option("--name", help="Name of this server, shown by other verbs.  [default: the host's name]")
@click.option("--ready-file", type=click.Path(path_type=Path, dir_okay=False), help="Write JSON with pool, ports and pid to this file when ready.")
@click.option("--parent-fd", type=int, hidden=True)
@click.option("--private-folder", type=click.Path(path_type=Path), hidden=True)
def serve(
    listen: tuple[str, int],
    backend: str,
    driver: Path | None,
    gpus: int | None,
    gpu_memory: int | None,
    capability: str | None,
    strict: bool,
    grace: int,
    idle: int,
    overrun: int,
    sessions_per_token: int,
    box: str,
    memory_per_session: int | None,
    host_memory_per_session: int,
    disk_per_token: int,
    links: tuple[str, ...],
    plain: bool,
    metrics: tuple[str, int] | None,
    head: bool,
    join: PoolAddress | None,
    ray: str | None,
    rack: str | None,
    rebalance: int | None,
    announce: bool,
    name: str | None,
    ready_file: Path | None,
    parent_fd: int | None,
    private_folder: Path | None,
) -> None:
    """Offer GPUs to other programs and machines.

    Runs in the foreground until Ctrl-C or SIGTERM. Clients of the same user on the same host need no token; others need the one that
    `gpuvirt token show` prints. --head and --join make many hosts one pool, of which any host's address is as good as another's; who joins needs an
    admin's token in GPUVIRT_TOKEN. --ray does so with the nodes of a Ray cluster. Links over tcp are sealed; SECURITY.md says what a token amounts
    to: read it before listening on another address.
    """
    if head + (join is not None) + (ray is not None) > 1:
        raise click.UsageError("--head begins a pool, --join makes this host one of another, --ray one of a Ray cluster's; give one of them")
    if ray is not None and not re.fullmatch(r"auto|[\w.-]+:\d{1,5}|\[[\da-fA-F:]+\]:\d{1,5}", ray):
        raise click.UsageError(f"{ray!r} is no Ray cluster: give auto, or HOST:PORT of its head as `ray start --address` has it")
    if rack and not head and join is None and ray is None:
        raise click.UsageError("--rack is of a host in a pool of many; give --head, --join or --ray with it")
    if rebalance is not None and not head and ray is None:
        raise click.UsageError("--rebalance is for the host that decides; give it to the one with --head, or to the first with --ray")
    if driver is not None and not driver.is_absolute():
        raise click.UsageError("--driver needs an absolute path: a bare name could find gpuvirt's own libcuda.so.1")
    if driver is not None and backend == "soft":
        raise click.UsageError("--driver goes with --backend cuda")
    soft_only = {"--gpu-memory": gpu_memory, "--capability": capability, "--strict": strict}
    wrong = [option for option, value in soft_only.items() if value]
    if backend == "cuda" and wrong:
        raise click.UsageError(f"{', '.join(wrong)} goes with --backend soft")

    from gpuvirt.server.daemon import serve as run
    from gpuvirt.server.options import ServeOptions

    options = ServeOptions(
        host=listen[0],
        port=listen[1],
        backend=backend,
        driver=driver,
        gpus=gpus,
        gpu_memory=gpu_memory,
        capability=parse_capability(capability) if capability else 0,
        strict=strict,
        links=links,
        plain=plain,
        grace=grace,
        idle=idle,
        overrun=overrun,
        sessions_per_token=sessions_per_token,
        box=box,
        memory_per_session=memory_per_session or 0,
        host_memory_per_session=host_memory_per_session,
        disk_per_token=disk_per_token,
        ready_file=ready_file,
        metrics=metrics,
        head=head,
        join=join,
        ray=ray or "",
        rack=rack or "",
        rebalance=rebalance or 0,
        announce=announce,
        parent_fd=parent_fd,
        private_folder=private_folder,
        **({"name": name} if name else {}),
    )
    run(options)
