"""What the host that a lease leaves and the one to which it comes say to each other. The source connects, and begins with `Bring`.

Images pass in parts, of which no more are under way than the destination has given credit for. Each end says something at least once in
`messages.ALIVE_EVERY`. The destination does not let anything begin before it has heard `Begin`, which the source says when nothing of the lease runs
there any more; what it has made it throws away when it hears nothing for `PATIENCE`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuvirt.cluster.messages import Message
from gpuvirt.server.migration.departure import SessionRecord

PART = 512 << 10  # bytes of an image in one message
WINDOW = 8 << 20  # bytes that are under way
MAX_MESSAGE = 1 << 20
PATIENCE = 10.0  # seconds without a word, after which the other end is gone
DECISION = 60.0  # the same, once everything is made: the source is deciding


def sessions_text(count: int) -> str:
    """For people: how many."""
    return "1 session" if count == 1 else f"{count} sessions"


# ---- the source's -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bring(Message):
    """A lease comes, with these sessions, whose images follow in this order."""

    lease: int
    sessions: tuple[SessionRecord, ...]


@dataclass(frozen=True)
class ImagePart(Message):
    """The next bytes of a session's image; none: it was whole."""

    session: int
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Begin(Message):
    """It is yours."""


@dataclass(frozen=True)
class Abandon(Message):
    """It stays."""

    why: str


# ---- the destination's --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Credit(Message):
    """So many more bytes may come."""

    bytes: int


@dataclass(frozen=True)
class Made(Message):
    """Everything has been made from the images, and waits for `Begin`."""


@dataclass(frozen=True)
class Begun(Message):
    """It works."""


@dataclass(frozen=True)
class Failed(Message):
    """It cannot come; `text` is for people."""

    text: str
