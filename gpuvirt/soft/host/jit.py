"""Machine code: compiling IR to an object, loading objects."""

from __future__ import annotations

import ctypes
import re

import llvmlite.binding as llvm

from gpuvirt.soft.codegen.target import host, set_terminal_rule
from gpuvirt.soft.errors import SoftError

QUICK, GOOD = 1, 2  # levels of optimization
LARGE = 8 << 20  # bytes of IR from which on it is compiled without what takes the square of its size
HELPERS = (
    "soft_barrier_sync", "soft_barrier_arrive", "soft_barrier_red", "soft_yield", "soft_nanosleep", "soft_globaltimer", "soft_vprintf", "soft_malloc",
    "soft_free", "soft_assert_fail", "soft_trap", "soft_unsupported", "soft_mbarrier", "soft_mbarrier_test", "soft_bulk_copy", "soft_bulk_zero",
    "soft_bulk_reduce", "soft_st_async", "soft_red_async", "soft_tensor_copy", "soft_tensor_replace", "soft_f64", "soft_tex", "soft_turn",
    "soft_spin_wait", "soft_fallback_frame", "soft_fall_back", "soft_lane_exchange_area", "soft_lane_exchange_begin", "soft_lane_exchange_end",
    "soft_lane_active", "soft_lane_barrier", "soft_lane_begin", "soft_lane_point", "soft_lane_spin_round", "soft_lane_enter", "soft_lane_leave",
    "soft_misaligned", "soft_surface_load", "soft_surface_store", "soft_surface_reduce", "soft_child_buffer", "soft_child_launch", "soft_last_error",
    "soft_preempt", "soft_set_condition", "soft_cluster_arrive", "soft_cluster_wait", "soft_cancel_answer", "soft_warpgroup_sync", "soft_matrix_load",
    "soft_tensor_im2col", "soft_tensor_memory_alloc", "soft_tensor_memory_dealloc", "soft_tensor_memory_relinquish", "soft_tensor_memory_load",
    "soft_tensor_memory_store", "soft_tensor_memory_copy", "soft_tensor_product", "soft_tensor_commit",
)  # fmt: skip
_known_symbols: set[str] = set()


def register_library(library: ctypes.CDLL) -> list[str]:
    """Makes the engine's helper functions known to generated code; returns the names that the library lacks."""
    missing = []
    for name in HELPERS:
        try:
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            missing.append(name)
            continue
        register_symbol(name, address or 0)
    return missing


def register_symbol(name: str, address: int) -> None:
    """Makes one address known under a name."""
    host()
    llvm.add_symbol(name, address)
    _known_symbols.add(name)


# What is run over the IR. Chosen by measurement: LLVM's own O1 and O2 take as long again or longer, and make register-tiled matrix products half as
# fast (they reorder what the emitter has arranged for few live vectors).
_CLEAN = ("always_inliner", "sroa", "simplify_cfg", "instruction_combine")
_PASSES = {
    1: (*_CLEAN, "simplify_cfg", "global_dead_code_eliminate"),
    2: (*_CLEAN, "dead_store_elimination", "instruction_combine", "aggressive_dce", "simplify_cfg", "global_dead_code_eliminate"),
}
_CODEGEN = {1: 0, 2: 2}
_ONCE = re.compile(r"^define internal void @([\w.$]+)\((.*)\) #0 \{$", re.M)


def compile_object(text: str, level: int) -> bytes:
    """IR to a relocatable object. Level 1 (QUICK) compiles fast, level 2 (GOOD) optimizes."""
    h = host()
    try:
        module = llvm.parse_assembly(_inline_once(text) if level > 1 else text)
        module.triple = h.triple
        machine = h.machine(_CODEGEN[level])
        module.data_layout = str(machine.target_data)
        module.verify()
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=level))
        passes = llvm.create_new_module_pass_manager()
        for name in _PASSES[level]:
            getattr(passes, f"add_{name}_pass")()
        passes.run(module, builder)
        set_terminal_rule(len(text) < LARGE)
        return bytes(machine.emit_object(module))
    except RuntimeError as error:
        raise SoftError(f"internal: LLVM refused the generated code: {str(error)[:600]}") from error


# What a frame of more than some pages begins with, and its whole pages: mov r11, rsp; sub r11, bytes.
_LARGE_FRAME = re.compile(rb"\x49\x89\xe3\x49\x81\xeb(....)", re.S)


def large_frames(code: bytes) -> int:
    """Bytes of stack that the large frames of an object's functions take together."""
    return sum(int.from_bytes(found, "little") for found in _LARGE_FRAME.findall(code))


def _inline_once(text: str) -> str:
    """Marks the device functions that one place calls to be put there."""

    def mark(match: re.Match[str]) -> str:
        name = match.group(1)
        uses = len(re.findall(rf"@{re.escape(name)}(?![\w.$])", text))
        return f"define internal void @{name}({match.group(2)}) #{2 if uses == 2 else 0} {{"

    return _ONCE.sub(mark, text)


class Loaded:
    """An object in memory. Code stays valid while this lives."""

    def __init__(self, data: bytes) -> None:
        machine = host().machine(2)
        # llvmlite's own memory manager keeps all of an object in one piece: the code reaches its constants by 32-bit offsets.
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine, use_lmm=True)
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self.engine.finalize_object()

    def address(self, name: str) -> int:
        found = self.engine.get_function_address(name)
        if not found:
            raise SoftError(f"internal: the compiled object lacks {name}")
        return int(found)

    def set_globals(self, values: list[int]) -> None:
        """Writes the address table that the code reads."""
        if values:
            table = self.engine.get_global_value_address("gv_globals")
            ctypes.memmove(table, (ctypes.c_uint64 * len(values))(*values), 8 * len(values))
