"""Mirror of native/backend/soft/engine/kernel_abi.h: where compiled code finds what in struct soft_warp."""

from __future__ import annotations

VERSION = 6
OFFSETS = {
    "ctaid": 0,
    "nctaid": 12,
    "ntid": 24,
    "first_thread": 36,
    "lanes": 40,
    "warp": 44,
    "warps": 48,
    "smid": 52,
    "nsmid": 56,
    "shared_bytes": 60,
    "shared": 64,
    "params": 72,
    "local": 80,
    "local_stride": 88,
    "grid_id": 96,
    "grid_workspace": 104,
    "dynamic_shared": 112,
    "exited": 116,
    "engine": 120,
    "blocks": 128,
    "stop": 136,
    "window": 144,
    "cluster": 152,
    "rank": 164,
    "explicit_cluster": 168,
}
RANK_SHIFT = 24
RED = {"and": 0, "or": 1, "popc": 2}
TRAP, TRAP_STACK, TRAP_BAD_PC = 0, 1, 2
