"""What a token allows whoever holds it: as whom the policy counts it, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass

from gpuvirt.server.policy.events import PLACEMENTS, PRIORITIES, UserSet

WEIGHTS = 0.001, 1000.0
GPUS_MOST = 1 << 16


@dataclass(frozen=True)
class Rights:
    """Attributes:
        user: all tokens of one user are one in the policy: they have their share and their quota together. "": the token is a user of its own.
        memory: the most that a session may have on each GPU, bytes, 0: no limit of its own.
        weight, gpus, priority, placement: as in `events.UserSet`.

    Raises:
        ValueError: one of them is out of its range; the text is for the user.
    """

    user: str = ""
    memory: int = 0
    weight: float = 1.0
    gpus: int = 0
    priority: int = 0
    placement: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.user, str) or len(self.user) > 64 or not self.user.isprintable():
            raise ValueError("a token's user is a name of at most 64 printable characters")
        if type(self.memory) is not int or not 0 <= self.memory < 1 << 63:
            raise ValueError("a token's memory is a number of bytes")
        if type(self.weight) not in (int, float) or not WEIGHTS[0] <= self.weight <= WEIGHTS[1]:
            raise ValueError(f"a token's weight is a number from {WEIGHTS[0]:g} to {WEIGHTS[1]:g}")
        if type(self.gpus) is not int or not 0 <= self.gpus <= GPUS_MOST:
            raise ValueError(f"a token's GPUs are a number up to {GPUS_MOST}")
        if type(self.priority) is not int or not -PRIORITIES <= self.priority <= PRIORITIES:
            raise ValueError(f"a token's priority is a number from -{PRIORITIES} to {PRIORITIES}")
        if self.placement not in PLACEMENTS:
            raise ValueError("a token's placement is pack or spread")

    @classmethod
    def of(cls, event: UserSet) -> Rights:
        """What a user has that the policy was told of, by itself."""
        return cls("", event.memory, event.weight, event.gpus, event.priority, event.placement)

    def event(self, at: float, user: str) -> UserSet:
        """What the policy is told of a user who has these."""
        return UserSet(at, user, self.weight, self.gpus, self.priority, self.memory, self.placement)
