"""Where lanes of a warp converge: blocks that begin with a barrier or an exchange between lanes, to which lanes may come one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Set

from gpuvirt.soft.analysis.basic_blocks import Block
from gpuvirt.soft.analysis.cfg import Cfg
from gpuvirt.soft.analysis.sync_kinds import ALIGNED, BLOCK, FULL, GATHERING, PART, collective, reads_again
from gpuvirt.soft.ptx.opcodes import BARRIERS, Sync
from gpuvirt.soft.ptx.parser import Imm


def find_convergence_points(cfg: Cfg) -> dict[int, str]:
    """The blocks that begin with a convergence point, and its kind. Kinds that are not OPEN matter only where lanes diverge for another reason."""
    found: dict[int, str] = {}
    for block in cfg.order:
        if not block.ins:
            continue
        first = block.ins[0]
        if collective(first):
            named = first.ops[-1]
            found[block.idx] = FULL if isinstance(named, Imm) and named.value & 0xFFFFFFFF == 0xFFFFFFFF else PART
        elif first.traits.sync in BARRIERS:
            found[block.idx] = BLOCK if first.traits.sync is Sync.LOOSE else ALIGNED
    return found


def converges_next(cfg: Cfg, convergence_points: Mapping[int, str], number: int) -> bool:
    """Whether lanes that are at a block come to a convergence point of the whole warp before they do anything that others notice."""
    block = cfg.order[number]
    while convergence_points.get(block.idx) not in GATHERING:
        if len(block.succs) != 1 or block.succs[0].idx <= block.idx or any(i.traits.acts or reads_again(i) for i in block.ins):
            return False
        block = block.succs[0]
    return True


def exchanges(cfg: Cfg) -> bool:
    """Whether lanes exchange something anywhere."""
    return any(collective(i) for block in cfg.order for i in block.ins)


def find_divided(cfg: Cfg, convergence_points: Mapping[int, str], masked: Set[int]) -> set[int]:
    """Blocks in which only some of the warp's lanes may exchange something, while others that it names come to another such place: in a branch beside
    it; for a __syncwarp, which may pair with any other, anywhere."""
    places: dict[str, list[Block]] = {}
    for block in cfg.order:
        for op in dict.fromkeys(i.op for i in block.ins if collective(i)):
            places.setdefault("bar" if op == "barrier" else op, []).append(block)
    found: set[int] = set()
    if not any(b.idx in masked for blocks in places.values() for b in blocks):
        return found
    after: list[int] | None = None
    for op, blocks in places.items():
        if len(blocks) > 1 and any(b.idx in masked for b in blocks):
            after = after or _reach(cfg)
            for a in blocks:
                if any(b is not a and not after[a.idx] >> b.idx & 1 and not after[b.idx] >> a.idx & 1 for b in blocks):
                    found.add(a.idx)
        if op == "bar":
            found.update(b.idx for b in blocks if not convergence_points and (len(blocks) > 1 or cfg.loop_of[b.idx] is not None))
    return found & masked


def _reach(cfg: Cfg) -> list[int]:
    """For each block the blocks ahead that can be reached from it without going back."""
    after = [0] * len(cfg.order)
    for block in reversed(cfg.order):
        for succ in block.succs:
            if succ.idx > block.idx:
                after[block.idx] |= 1 << succ.idx | after[succ.idx]
    return after
