"""The software GPU's compiler as the C side sees it (native/backend/soft/compiler.h), without ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from gpuvirt.soft.codegen import preemption, target
from gpuvirt.soft.codegen.symbols import ENTRY
from gpuvirt.soft.errors import BadCall, SoftError, as_invalid_ptx
from gpuvirt.soft.host import jit, kernel_compiler, kernel_log
from gpuvirt.soft.host.compile_time import WATCH
from gpuvirt.soft.host.precompile import NotCompiled, Precompiler
from gpuvirt.soft.host.tiering import Improver, Tier, Wish
from gpuvirt.soft.pipeline import Description
from gpuvirt.soft.ptx import metadata
from gpuvirt.soft.ptx.block_shape import Shape, class_of
from gpuvirt.soft.ptx.image import ptx_of
from gpuvirt.soft.ptx.initializers import initial_bytes
from gpuvirt.soft.ptx.module import Module


@dataclass(eq=False)
class Code:
    """A kernel ready to run: its entry and its description. With a `tier`, better code may come, and the entry is taken from there.

    `needs` is the description's list as C has it (struct soft_need).
    """

    entry: int
    description: Description
    loaded: list[jit.Loaded]
    tier: Tier | None = None
    needs: ctypes.Array[ctypes.c_uint32] | None = None


CAREFUL = 1 << 31  # beside a kernel's number
IMPROVER = Improver()
PRECOMPILER = Precompiler()


class _Slot:
    """One kernel for one block shape, or class of shapes: whoever comes first compiles, the others wait."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.code: Code | None = None
        self.error: SoftError | None = None


class LoadedModule:
    """A module in a context: its index, where its globals live, its compiled kernels."""

    def __init__(self, text: str, digest: str) -> None:
        self.index = Module(text)
        self.digest = digest
        self.addresses: dict[str, int] = {}
        self.slots: dict[tuple[int, Shape, bool], _Slot] = {}
        self.lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class _Asked:
    """A kernel that is asked for: its number in the module, the launch's block, and the shape, or class of shapes, for which it is compiled."""

    loaded: LoadedModule
    number: int
    block: Shape
    shape: Shape
    careful: bool
    slot: _Slot


class Compiler:
    """All modules of a process. Methods may be called from any thread; they raise SoftError."""

    def __init__(self) -> None:
        self.modules: dict[int, LoadedModule] = {}
        self.lock = threading.Lock()
        self.improver, self.precompiler = IMPROVER, PRECOMPILER

    def module_load(self, module: int, image: bytes) -> bytes:
        """Indexes an image; returns its metadata (native/wire/module_meta.h)."""
        with as_invalid_ptx("the module"):
            text = ptx_of(image)
            loaded = LoadedModule(text, hashlib.sha256(text.encode("latin-1")).hexdigest())
            blob = metadata.pack(loaded.index)
        with self.lock:
            self.modules[module] = loaded
        return blob

    def _module(self, module: int) -> LoadedModule:
        with self.lock:
            found = self.modules.get(module)
        if found is None:
            raise BadCall(f"there is no module {module:#x}")
        return found

    def module_bind(self, module: int, addresses: list[int]) -> None:
        """Says where the globals live (metadata order) and writes their initial values there."""
        loaded = self._module(module)
        index = loaded.index
        if len(addresses) != len(index.globals):
            raise BadCall(f"{len(addresses)} addresses for {len(index.globals)} globals")
        loaded.addresses = {v.name: a for v, a in zip(index.globals, addresses, strict=True)}
        for variable, address in zip(index.globals, addresses, strict=True):
            with as_invalid_ptx(f"the initial value of '{variable.name}'"):
                data = initial_bytes(index, variable, loaded.addresses)
            if data:
                ctypes.memmove(address, data[: variable.size], min(len(data), variable.size))

    def kernel_get(self, module: int, number: int, block: Shape) -> Code:
        """The code of a kernel for a block shape; compiles it if need be. With CAREFUL: code that takes nothing for granted."""
        asked = self._asked(module, number, block)
        with asked.slot.lock:
            return self._ready(asked)

    def kernel_precompile(self, module: int, number: int, block: Shape) -> None:
        """The same in the background, for a launch that will ask for it: nobody waits for it, or hears of an error."""
        self.precompiler.add(lambda: self._precompile(module, number, block))

    def _precompile(self, module: int, number: int, block: Shape) -> None:
        with contextlib.suppress(SoftError):
            asked = self._asked(module, number, block)
            if asked.slot.lock.acquire(blocking=False):  # else somebody compiles it
                try:
                    with WATCH.bounded():
                        self._ready(asked, self.precompiler.compile)
                finally:
                    asked.slot.lock.release()

    def _asked(self, module: int, number: int, block: Shape) -> _Asked:
        loaded = self._module(module)
        careful = bool(number & CAREFUL)
        number &= CAREFUL - 1
        if not 0 <= number < len(loaded.index.kernels):
            raise BadCall(f"module {module:#x} has no kernel {number}")
        if min(block) < 1 or block[0] * block[1] * block[2] > 1024:
            raise BadCall(f"a block of {block[0]} x {block[1]} x {block[2]} threads")
        shape = block if metadata.required_block(loaded.index.kernels[number]) else class_of(block)
        with loaded.lock:
            slot = loaded.slots.setdefault((number, shape, careful), _Slot())
        return _Asked(loaded, number, block, shape, careful, slot)

    def _ready(self, asked: _Asked, compiled: kernel_compiler.Compile | None = None) -> Code:
        """Its code, which is made if need be. The slot is locked.

        Args:
            compiled: as of kernel_compiler.build.
        """
        slot, loaded = asked.slot, asked.loaded
        if slot.error is not None:
            raise slot.error
        if slot.code is None:
            begin = time.monotonic()
            try:
                slot.code = self._compile(asked, compiled)
            except NotCompiled:
                raise
            except SoftError as error:
                slot.error = error
                raise
            kernel_log.ready(loaded.digest, loaded.index.kernels[asked.number].name, asked.block, time.monotonic() - begin)
        return slot.code

    def _compile(self, asked: _Asked, compiled: kernel_compiler.Compile | None) -> Code:
        loaded, shape, careful = asked.loaded, asked.shape, asked.careful
        func = loaded.index.kernels[asked.number]
        modes = f"{';careful' if careful else ''}{';preemptible' if preemption.wanted() else ''}"
        identity = f"{loaded.digest};{func.name};{shape};{target.key_of_machine()};{own_version()}{modes}"
        with as_invalid_ptx(f"the kernel '{func.name}'"):
            built = kernel_compiler.build(loaded.index, func.name, shape, identity, careful, compiled)
        description = built.description
        missing = [g for g in description.globals if g not in loaded.addresses]
        if missing:
            raise BadCall(f"the module's globals are not placed yet ({missing[0]})")
        addresses = [loaded.addresses[g] for g in description.globals]
        code = Code(0, description, [])
        if description.needs:
            flat = [n for need in description.needs for n in need]
            code.needs = (ctypes.c_uint32 * len(flat))(*flat)
        code.entry = _load(code, built.code, addresses)
        if built.level < jit.GOOD:
            code.tier = self.improver.tier(code.entry)
            weak = weakref.ref(code)

            def improve(better: bytes) -> None:
                found = weak()
                if found is not None and found.tier is not None:
                    found.tier.entry = _load(found, better, addresses)
                    kernel_compiler.keep_good(identity, description, better)

            self.improver.wish(Wish(code, code.tier, built.ir, improve))
        return code

    def module_unload(self, module: int) -> None:
        with self.lock:
            self.modules.pop(module, None)


def _load(code: Code, data: bytes, addresses: list[int]) -> int:
    """Puts an object into memory, for as long as `code` lives; the address of its entry."""
    ready = jit.Loaded(data)
    ready.set_globals(addresses)
    code.loaded.append(ready)
    return ready.address(ENTRY)


_version: str | None = None


def own_version() -> str:
    """A digest of the compiler itself: code of another version of it is not reused."""
    global _version
    if _version is None:
        _version = digest_of_sources(Path(__file__).parents[1])
    return _version


def digest_of_sources(root: Path) -> str:
    """A digest of every Python source below a folder, and of their places in it."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)};".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
