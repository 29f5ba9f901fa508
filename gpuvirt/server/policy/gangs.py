"""Gangs: leases that are granted all at once or not at all, each of them on one host, which need not be the same.

They are asked for one by one; each says of which gang it is, and how many that has. Until the last of them is asked for, the gang *assembles*. Then
the machine queues it as a whole: one entry of the order, of so many parts, of which each is a lease again once it is granted. When one of them is
given up before that, the others assemble anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ASSEMBLY = 60.0  # s between two of them; who asks for all needs less, and who has gone is not waited for


@dataclass(eq=False)
class Gang:
    """One gang.

    Attributes:
        user, number: by which its leases know it.
        size: how many it has.
        parts: the numbers of those that wait or have GPUs, in the order in which they were asked for.
        whole: the number of its entry in the order, 0: it has none (it assembles, or has its GPUs).
        granted: it has its GPUs, or had them.
    """

    user: str
    number: int
    size: int
    parts: list[int] = field(default_factory=list)
    whole: int = 0
    granted: bool = False

    @property
    def assembles(self) -> bool:
        return not self.whole and not self.granted

    def missing(self) -> str:
        """Why it waits while it assembles, for people."""
        return f"{len(self.parts)} of the {self.size} leases of its gang {'has' if len(self.parts) == 1 else 'have'} been asked for"


def slices(devices: list[int], part: int) -> list[tuple[int, ...]]:
    """The devices of each part. devices: ascending, so many of each host that whole parts have room there."""
    return [tuple(devices[first : first + part]) for first in range(0, len(devices), part)]
