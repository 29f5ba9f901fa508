"""Machine code: the host's target, compiling IR to an object, the object cache on disk, loading objects."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
import threading
from pathlib import Path

import llvmlite.binding as llvm

from gpuvirt.soft import abi
from gpuvirt.soft.errors import SoftError

_lock = threading.Lock()
_state: Host | None = None
HELPERS = (
    "soft_barrier_sync", "soft_barrier_arrive", "soft_barrier_red", "soft_yield", "soft_nanosleep", "soft_globaltimer", "soft_vprintf", "soft_malloc",
    "soft_free", "soft_assert_fail", "soft_trap", "soft_unsupported", "soft_mbarrier", "soft_mbarrier_test", "soft_bulk_copy", "soft_bulk_zero",
    "soft_bulk_reduce", "soft_st_async", "soft_red_async", "soft_tensor_copy", "soft_tensor_replace", "soft_f64",
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


class Host:
    """The machine that the code is for."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.cpu = llvm.get_host_cpu_name()
        self.features = self._features()
        self.feature_set = frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))
        self.triple = llvm.get_process_triple()
        self.target = llvm.Target.from_triple(self.triple)

    def _features(self) -> str:
        try:
            found = dict(llvm.get_host_cpu_features())
        except RuntimeError:
            return ""
        if os.environ.get("GPUVIRT_SOFT_ISA") in ("avx2", "baseline"):  # to test what older machines get
            for name in found:
                if name.startswith("avx512") or (os.environ["GPUVIRT_SOFT_ISA"] == "baseline" and name.startswith(("avx", "fma", "f16c", "bmi"))):
                    found[name] = False
        return ",".join(("+" if on else "-") + name for name, on in sorted(found.items()))

    def machine(self, level: int) -> llvm.TargetMachine:
        cpu = "x86-64" if os.environ.get("GPUVIRT_SOFT_ISA") else self.cpu
        return self.target.create_target_machine(cpu=cpu, features=self.features, opt=level, codemodel="jitdefault", reloc="default", jit=True)


def host() -> Host:
    """The one Host of the process."""
    global _state
    with _lock:
        if _state is None:
            _state = Host()
        return _state


def key_of_machine() -> str:
    """What of the machine the object code depends on."""
    h = host()
    return f"{abi.VERSION};{llvm.llvm_version_info};{h.cpu};{h.features}"


def compile_object(text: str, size: int) -> bytes:
    """IR to a relocatable object. `size` (instructions of PTX) decides how hard to optimise."""
    h = host()
    level = 2 if size < 4000 else 1
    try:
        module = llvm.parse_assembly(text)
        module.triple = h.triple
        machine = h.machine(level)
        module.data_layout = str(machine.target_data)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=level)
        options.loop_vectorization = False
        options.slp_vectorization = False
        options.loop_unrolling = False
        builder = llvm.create_pass_builder(machine, options)
        passes = builder.getModulePassManager()
        passes.run(module, builder)
        return bytes(machine.emit_object(module))
    except RuntimeError as error:
        dump = os.environ.get("GPUVIRT_SOFT_DUMP")
        if dump:
            Path(dump).write_text(text)
        raise SoftError(f"internal: LLVM refused the generated code: {str(error)[:600]}") from error


class Loaded:
    """An object in memory. Code stays valid while this lives."""

    def __init__(self, data: bytes) -> None:
        machine = host().machine(2)
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
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


def cache_directory() -> Path:
    """Where compiled kernels are kept."""
    base = os.environ.get("GPUVIRT_CACHE")
    return Path(base) / "kernels" if base else Path.home() / ".cache" / "gpuvirt" / "kernels"


_HEADER = b"GVK1"


def cache_read(key: str) -> tuple[bytes, bytes] | None:
    """(description, object) of a cache entry, or None when there is none that is whole."""
    import hashlib

    try:
        data = (cache_directory() / key[:2] / key).read_bytes()
    except OSError:
        return None
    if len(data) < 44 or data[:4] != _HEADER or hashlib.sha256(data[36:]).digest() != data[4:36]:
        return None
    size = int.from_bytes(data[36:40], "little")
    return data[40 : 40 + size], data[40 + size :]


def cache_write(key: str, description: bytes, code: bytes) -> None:
    """Adds an entry; a cache that cannot be written is no error."""
    import hashlib

    body = len(description).to_bytes(4, "little") + description + code
    directory = cache_directory() / key[:2]
    temporary = ""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory)
        with os.fdopen(handle, "wb") as file:
            file.write(_HEADER + hashlib.sha256(body).digest() + body)
        os.replace(temporary, directory / key)
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
