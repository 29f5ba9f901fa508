"""Why a lease waits, or can never be had: one line for people."""

from __future__ import annotations

from gpuvirt.server.policy.events import COMPUTE
from gpuvirt.server.policy.holding import Holdings
from gpuvirt.server.policy.hosts import Hosts
from gpuvirt.server.policy.lease import Lease
from gpuvirt.server.policy.room import Shape
from gpuvirt.server.policy.shares import Account
from gpuvirt.sizes import format_size


def count_text(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def impossible(room: Hosts, account: Account, limit: int, shape: Shape, priority: int) -> str | None:
    """The reason why a user can never get that, even if nobody else had anything; None when it can.

    Args:
        limit: the most that a lease of the user may have on each device, bytes, 0: all of it.
    """
    if account.revoked:
        return "the token has been revoked; ask the server's owner for another"
    if shape.gpus < 1:
        return "a session needs at least 1 GPU; ask for --gpus 1 or more"
    gpus, memory, part, have, count = shape.gpus, shape.memory, shape.part, room.most, room.count
    if part and gpus > (able := room.most_of_size(0, part)):
        which = f"this pool has {count_text(count)}" if gpus > count else f"its hosts have {part} together for {able} of them only"
        return f"{count_text(gpus)} were asked for and {which}; ask for fewer"
    if not part and gpus > have:
        which = f"this pool has {count_text(have)}" if have == count else f"no host of this pool has more than {count_text(have)}"
        return f"{count_text(gpus)} were asked for and {which}; ask for fewer with --gpus"
    if account.quota and gpus > account.quota:
        return f"{count_text(gpus)} were asked for and this token may have {account.quota} at a time; ask for fewer with --gpus"
    if shape.compute > COMPUTE:
        return f"{shape.compute / COMPUTE:g} of each GPU's compute were asked for and there is 1; ask for less with --compute"
    if priority > account.priority:
        return f"priority {priority} was asked for and this token may ask for {account.priority} at most; ask for less with --priority"
    if limit and memory > limit:
        whose = "with this token" if limit == account.memory else "on this server"
        return f"{format_size(memory)} per GPU were asked for and a session {whose} may have {format_size(limit)}; ask for less with --memory"
    fitting = room.most_of_size(memory, part)
    if fitting < gpus:
        text = f"{format_size(memory)} per GPU were asked for and the pool's GPUs have {format_size(max(room.total))}"
        if fitting:
            where = "the pool's GPUs" if have == count or part else "one host's GPUs"
            text = f"only {fitting} of {where} have the {format_size(memory)} asked for"
        return f"{text}; ask for less with --memory"
    return None


def waits(room: Hosts, holdings: Holdings, lease: Lease) -> str:
    """Why a lease, or a gang, waits."""
    account, shape = lease.account, lease.shape
    if account.quota and account.gpus + shape.gpus > account.quota:
        return f"its token has {account.gpus} of the {count_text(account.quota)} that it may have at a time"
    holding = holdings.of(lease.id)
    if holding is not None:
        return f"GPU {_names(holding.devices)} will be free for it: {len(holding.devices) - len(holding.missing)} of {shape.gpus} are"
    if room.most_of_size(shape.memory, shape.part) < shape.gpus:
        return "the hosts that are there now have not so many such GPUs" if shape.part else "no host that is there now has such GPUs"
    free = room.most_free(shape)
    if free == shape.gpus:
        return "it is not its turn yet"
    text = f"{free} of the {count_text(shape.gpus)} that it needs {'is' if free == 1 else 'are'} free"
    held, others = holdings.devices, len(holdings)
    return text + (f", {held} held for {'one that has' if others == 1 else f'{others} that have'} waited longer" if held else "")


def _names(devices: set[int]) -> str:
    return ", ".join(map(str, sorted(devices)))
