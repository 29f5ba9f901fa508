"""The processor that code is made for."""

from __future__ import annotations

import os
import threading

import llvmlite.binding as llvm

from gpuvirt.errors import GpuvirtError
from gpuvirt.soft import abi

_lock = threading.Lock()
_state: Host | None = None
_terminal_rule = True  # as LLVM 22 has it
ISAS = ("avx512", "avx2", "baseline")
_BASELINE = {"64bit", "cmov", "cx16", "cx8", "fxsr", "mmx", "sse", "sse2", "x87"}  # every x86-64 there is


def forced_isa() -> str:
    """GPUVIRT_SOFT_ISA, one of `ISAS`; empty: what the processor has.

    Raises:
        GpuvirtError: it is something else.
    """
    forced = os.environ.get("GPUVIRT_SOFT_ISA", "")
    if forced not in ("", *ISAS):
        raise GpuvirtError(f"GPUVIRT_SOFT_ISA={forced} is none of {', '.join(ISAS)}")
    return forced


class Host:
    """The machine that the code is for."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        forced = forced_isa()
        self.cpu = "x86-64" if forced else llvm.get_host_cpu_name()
        self.features = self._features(forced)
        self.feature_set = frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))
        self.triple = llvm.get_process_triple()
        self.target = llvm.Target.from_triple(self.triple)

    @staticmethod
    def _features(forced: str) -> str:
        """What the host has, or less of it: to test what older machines get."""
        try:
            found = dict(llvm.get_host_cpu_features())
        except RuntimeError:
            return ""
        for name in found:
            if (forced == "avx2" and name.startswith(("avx512", "avx10", "amx"))) or (forced == "baseline" and name not in _BASELINE):
                found[name] = False
        return ",".join(("+" if on else "-") + name for name, on in sorted(found.items()))

    def machine(self, level: int) -> llvm.TargetMachine:
        # Constants lie within reach of the code (Loaded), so that an instruction names them itself; the large code model takes two more for each.
        return self.target.create_target_machine(cpu=self.cpu, features=self.features, opt=level, codemodel="small", reloc="pic", jit=True)


def host() -> Host:
    """The one Host of the process."""
    global _state
    with _lock:
        if _state is None:
            _state = Host()
        return _state


def set_terminal_rule(on: bool) -> None:
    """Whether LLVM's register coalescer looks, for each copy, at all other copies of its registers.

    LLVM 22 does so on x86. It makes tiled matrix products an eighth faster (cuBLAS's sgemm, tests.bench.soft on two cores: 73 GFLOP/s without it, 84
    with it); a kernel with very many matrix fragments (NVIDIA's cudaTensorCoreGemm, while its products were written out) took minutes in it. The
    option is the process's: of two threads that compile at the same time both may get what one has asked for.
    """
    global _terminal_rule
    with _lock:
        if _terminal_rule != on:
            llvm.set_option("gpuvirt", f"--terminal-rule={int(on)}")
            _terminal_rule = on


def key_of_machine() -> str:
    """What of the machine the object code depends on."""
    h = host()
    return f"{abi.VERSION};{llvm.llvm_version_info};{h.cpu};{h.features}"
