"""Defects of the engine's scheduling that seeded schedules must find: each is a change of one of its sources, and cases that it makes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import c_build

ENGINE = c_build.NATIVE / "backend" / "soft" / "engine"


@dataclass(frozen=True)
class Bug:
    """`old` stands once in the engine's `file`, and becomes `new`; `case` is then wrong under some of the first `seeds` seeds."""

    name: str
    file: str
    old: str
    new: str
    case: str
    seeds: int = 20

    def text(self) -> str:
        """The source with the defect, for a folder of its own."""
        return c_build.with_defect(ENGINE / self.file, self.old, self.new)

    def write(self, folder: Path) -> Path:
        """Puts it where SOFT_ENGINE_INSTEAD looks."""
        folder.mkdir(exist_ok=True)
        (folder / self.file).write_text(self.text())
        return folder


BUGS = [
    Bug(
        "a barrier wakes also the warps that wait at another one",
        "helpers_barrier.c",
        "    b->runnable |= bar->waiting;\n    memset",
        "    b->runnable = b->alive;\n    memset",
        "named_barriers",
    ),
    Bug(
        "blocks that are resident together share local memory",
        "block.c",
        "w->local = b->local ? b->local +",
        "w->local = b->local ? b->runner->resident[0]->local +",
        "blocks_keep_memory_of_their_own",
    ),
    Bug(
        "a barrier that only waits for a warp that ends is forgotten",
        "helpers_barrier.c",
        "if (bar->waiting && bar->all && bar->arrived >= b->live) complete(b, bar);",
        "if (bar->waiting && bar->all && bar->arrived > b->live) complete(b, bar);",
        "barriers_after_exits_and_with_partial_warps",
    ),
    Bug(
        "a cluster's barrier waits for the warps of one block",
        "helpers_cluster.c",
        "if (++lead->cluster.arrived >= lead->cluster.live) complete(lead);",
        "if (++lead->cluster.arrived >= lead->live) complete(lead);",
        "clusters_exchange_round_after_round",
    ),
    Bug(
        "a warp that ends after its arrival is counted all the same",
        "helpers_cluster.c",
        "if (f->arrived && f->arrived_phase == bar->phase) bar->arrived--;",
        "",
        "who_has_exited_is_not_awaited_by_the_cluster",
    ),
]
