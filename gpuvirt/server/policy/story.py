"""The story of a lease in words, from the events and the instructions that the policy machine keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuvirt.server.policy.events import COMPUTE, Asked, Event, HostJoined, HostLeft, Migrated, Released, Stays, Suspended, UserRevoked, UserSet
from gpuvirt.server.policy.instructions import (
    Destination,
    Elsewhere,
    End,
    Grant,
    Hold,
    Instruction,
    Lost,
    NoDestination,
    Preempt,
    Queue,
    Refuse,
    Relocate,
    Resume,
    TimedOut,
)
from gpuvirt.sizes import format_size


def tell(history: Iterable[tuple[Event, Sequence[Instruction]]], lease: int) -> list[str]:
    """A line for each thing that has happened to the lease, with the seconds since it was asked for."""
    lines: list[str] = []
    began: float | None = None
    granted, later, overtaken = False, set[int](), 0
    for event, instructions in history:
        if isinstance(event, Asked) and event.lease == lease:  # of two leases of one name the later
            lines, began, granted, overtaken = [], event.at, False, 0
            later.clear()
            lines.append(f"+0.0 s: {_asks(event)}")
        elif isinstance(event, Asked) and began is not None:
            later.add(event.lease)
        mine = [one for one in instructions if one.lease == lease]
        if not granted:
            overtaken += sum(isinstance(one, Grant) and one.lease in later for one in instructions)
        ends = isinstance(event, Released) and event.lease == lease
        migrated = isinstance(event, Migrated) and event.lease == lease
        stays = isinstance(event, Stays) and event.lease == lease
        suspended = isinstance(event, Suspended) and event.lease == lease
        if not mine and not ((ends or migrated or stays or suspended) and lines):
            continue
        if began is None:
            began = event.at
            lines.append("(what was before is forgotten)")
        since = f"+{event.at - began:.1f} s: "
        if suspended:
            lines.append(since + "it has given way: its GPUs are others'")
        lines += [since + _cause(event, lease) + _words(one, overtaken) for one in mine]
        granted = granted or any(isinstance(one, Grant) for one in mine)
        if migrated or stays:
            lines.append(since + ("it has migrated" if isinstance(event, Migrated) and event.done else "it stays"))
        if ends:
            lines.append(since + ("it is over" if granted else "it does not wait any more"))
    return lines


def _asks(event: Asked) -> str:
    each = [format_size(event.memory)] if event.memory else []
    each += [f"{event.compute / COMPUTE:g} of the compute"] if event.compute else []
    text = f"{event.user} asks for {event.gpus} GPU{'s' if event.gpus > 1 else ''}"
    text += f" with {' and '.join(each)} each" if each else ""
    text += f", priority {event.priority}" if event.priority else ""
    return text + (f", for {event.wait:g} s at most" if event.wait else "") + (", without waiting" if event.no_wait else "")


def _cause(event: Event, lease: int) -> str:
    match event:
        case Released() if event.lease != lease:
            return f"as lease {event.lease:x} is over, "
        case Asked() if event.lease != lease:
            return f"as {event.user} asks for lease {event.lease:x}, "
        case UserSet():
            return f"as the rights of {event.user} change, "
        case UserRevoked():
            return f"as {event.user} is revoked, "
        case HostJoined():
            return "as a host has joined, "
        case HostLeft():
            return "as a host has left, "
    return ""


def _words(one: Instruction, overtaken: int) -> str:
    match one:
        case Grant():
            past = f"; {overtaken} that came later had been granted before it" if overtaken else ""
            return f"it gets GPU {_names(one.devices)}{past}"
        case Queue():
            return f"it waits at place {one.place} of {one.queued}: {one.why}"
        case Hold():
            return f"GPU {_names(one.devices)} {'take' if len(one.devices) > 1 else 'takes'} no other lease until it is granted: {one.text}"
        case End():
            return f"it is to end: {one.text}"
        case Preempt():
            return f"it is to give way: {one.text}"
        case Resume():
            return "it has its GPUs again"
        case Destination():
            return f"it migrates to GPU {_names(one.devices)}"
        case NoDestination():
            return f"it stays: {one.text}"
        case Relocate():
            return f"it is to move to another host: {one.text}"
        case Elsewhere():
            return f"it is at {one.url}"
        case Lost():
            return f"it is over: {one.text}"
        case Refuse() | TimedOut():
            return f"it gets nothing: {one.text}"


def _names(devices: tuple[int, ...]) -> str:
    return ", ".join(map(str, devices))
