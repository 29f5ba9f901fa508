"""Decides which GPUs a session gets. Events in, decisions out; no I/O, no clock.

Devices are shared: any number of sessions use one device at the same time, and a new session gets the devices with the fewest sessions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpuvirt.sizes import format_size


@dataclass(frozen=True)
class Wanted:
    """A client asks for a session. memory: bytes on each device, 0: all that it may have. owner: its token. most: what the token
    allows, bytes on each device, 0: no limit of its own."""

    session: int
    gpus: int
    memory: int = 0
    owner: bytes = b""
    most: int = 0


@dataclass(frozen=True)
class Ended:
    """A session has ended, for whatever reason."""

    session: int


@dataclass(frozen=True)
class Moved:
    """A session has other devices now."""

    session: int
    devices: tuple[int, ...]


@dataclass(frozen=True)
class Grant:
    """The session gets these devices (pool ordinals, ascending), this slot of the memory usage table, and at most `memory` bytes a device, 0: all."""

    session: int
    devices: tuple[int, ...]
    slot: int
    owner: bytes = b""
    memory: int = 0


@dataclass(frozen=True)
class Refuse:
    """The session gets no devices; `text` is one line for the user."""

    session: int
    text: str


@dataclass
class Policy:
    """The devices of one server and the sessions that use them.

    Args:
        memory: bytes of each device; its length is the number of devices.
        slots: the largest number of sessions at the same time.
        owner_slots: the largest number of sessions of one token at the same time, None: all.
        session_memory: the most that any session may have on each device, bytes, 0: all of it.
    """

    memory: list[int]
    slots: int
    owner_slots: int | None = None
    session_memory: int = 0
    sessions: dict[int, Grant] = field(default_factory=dict)

    def load(self, device: int) -> int:
        """The number of sessions on this device."""
        return sum(device in grant.devices for grant in self.sessions.values())

    def handle(self, event: Wanted | Moved | Ended) -> Grant | Refuse | None:
        """Handles one event. A `Wanted` is decided at once; the others have no decision."""
        if isinstance(event, Ended):
            self.sessions.pop(event.session, None)
            return None
        if isinstance(event, Moved):
            self.sessions[event.session] = replace(self.sessions[event.session], devices=event.devices)
            return None
        return self._decide(event)

    def most(self, token: int) -> int:
        """The most that a session may have on each device, by the server's limit and its token's; bytes, 0: all of it."""
        return min((limit for limit in (self.session_memory, token) if limit), default=0)

    def impossible(self, gpus: int, memory: int, token: int = 0) -> str | None:
        """The reason why this server can never grant the request, even without other sessions; None when it can. token: its limit, 0: none."""
        if gpus < 1:
            return "a session needs at least 1 GPU; ask for --gpus 1 or more"
        if gpus > len(self.memory):
            have = "1 GPU" if len(self.memory) == 1 else f"{len(self.memory)} GPUs"
            return f"{gpus} GPUs were asked for and this pool has {have}; ask for fewer with --gpus"
        most = self.most(token)
        if most and memory > most:
            whose = "with this token" if most == token else "on this server"
            return f"{format_size(memory)} per GPU were asked for and a session {whose} may have {format_size(most)}; ask for less with --memory"
        fitting = sum(size >= memory for size in self.memory)
        if fitting < gpus:
            text = f"{format_size(memory)} per GPU were asked for and the pool's GPUs have {format_size(max(self.memory))}"
            if fitting:
                text = f"only {fitting} of the pool's GPUs have the {format_size(memory)} asked for"
            return f"{text}; ask for less with --memory"
        return None

    def _decide(self, wanted: Wanted) -> Grant | Refuse:
        if wanted.session in self.sessions:
            raise ValueError(f"session {wanted.session:x} has its devices already")
        never = self.impossible(wanted.gpus, wanted.memory, wanted.most)
        if never is not None:
            return Refuse(wanted.session, never)
        fitting = [d for d, size in enumerate(self.memory) if size >= wanted.memory]
        own = sum(grant.owner == wanted.owner for grant in self.sessions.values())
        if self.owner_slots is not None and own >= self.owner_slots:
            what = f"this token has {own} sessions on this server, as many as one token may"
            return Refuse(wanted.session, f"{what}; end one, or have the server run with a higher --sessions-per-token")
        taken = {grant.slot for grant in self.sessions.values()}
        slot = next((s for s in range(self.slots) if s not in taken), None)
        if slot is None:
            return Refuse(wanted.session, f"this server has its limit of {self.slots} sessions; try again when one has ended")
        devices = sorted(sorted(fitting, key=lambda d: (self.load(d), d))[: wanted.gpus])
        grant = self.sessions[wanted.session] = Grant(wanted.session, tuple(devices), slot, wanted.owner, wanted.memory or self.most(wanted.most))
        return grant
