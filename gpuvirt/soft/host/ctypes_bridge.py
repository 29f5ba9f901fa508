"""Fills the C side's `struct soft_compiler` (native/backend/soft/compiler.h) with callbacks into a Compiler."""

from __future__ import annotations

import ctypes
import traceback
from typing import Any

from gpuvirt.soft.cuda_results import CUDA_ERROR_UNKNOWN
from gpuvirt.soft.errors import SoftError, as_invalid_ptx
from gpuvirt.soft.host import precompile
from gpuvirt.soft.host.compile_time import WATCH
from gpuvirt.soft.host.module_registry import Code, Compiler
from gpuvirt.soft.ptx.linker import Input, link


class SoftCode(ctypes.Structure):
    """struct soft_code"""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("static_shared", ctypes.c_uint32),
        ("dynamic_offset", ctypes.c_uint32),
        ("local_bytes", ctypes.c_uint32),
        ("uses_barrier", ctypes.c_uint32),
        ("param_bytes", ctypes.c_uint32),
        ("flush", ctypes.c_uint32),
        ("loops", ctypes.c_uint32),
        ("tier", ctypes.c_void_p),
        ("pace", ctypes.c_uint64),
        ("needs", ctypes.c_void_p),
        ("n_needs", ctypes.c_uint32),
    )

    @staticmethod
    def of(code: Code) -> SoftCode:
        """What C is told of a kernel; `code` must outlive it."""
        d = code.description
        tier = ctypes.addressof(code.tier) if code.tier is not None else None
        needs = ctypes.addressof(code.needs) if code.needs is not None else None
        sizes = (d.static_shared, d.dynamic_offset, d.local_bytes, d.uses_barrier, d.param_bytes)
        return SoftCode(code.entry, *sizes, int(d.flush), int(d.loops), tier=tier, needs=needs, n_needs=len(d.needs))


_P = ctypes.c_void_p
LOAD = ctypes.CFUNCTYPE(
    ctypes.c_int, _P, ctypes.c_uint64, _P, ctypes.c_size_t, ctypes.POINTER(_P), ctypes.POINTER(ctypes.c_size_t), _P, ctypes.c_size_t
)
RELEASE = ctypes.CFUNCTYPE(None, _P, _P)
BIND = ctypes.CFUNCTYPE(ctypes.c_int, _P, ctypes.c_uint64, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64), _P, ctypes.c_size_t)
GET = ctypes.CFUNCTYPE(
    ctypes.c_int, _P, ctypes.c_uint64, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(SoftCode), _P, ctypes.c_size_t
)
PRECOMPILE = ctypes.CFUNCTYPE(None, _P, ctypes.c_uint64, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32))
UNLOAD = ctypes.CFUNCTYPE(None, _P, ctypes.c_uint64)


class SoftLinkInput(ctypes.Structure):
    """struct soft_link_input"""

    _fields_ = (("type", ctypes.c_uint32), ("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


LINK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    _P,
    ctypes.c_uint32,
    ctypes.POINTER(SoftLinkInput),
    ctypes.POINTER(_P),
    ctypes.POINTER(ctypes.c_size_t),
    _P,
    ctypes.c_size_t,
)


class SoftCompiler(ctypes.Structure):
    """struct soft_compiler"""

    _fields_ = (
        ("self", ctypes.c_void_p),
        ("module_load", LOAD),
        ("release_meta", RELEASE),
        ("module_bind", BIND),
        ("kernel_get", GET),
        ("kernel_precompile", PRECOMPILE),
        ("module_unload", UNLOAD),
        ("link", LINK),
    )


class Bridge:
    """Owns the struct and what its callbacks need; must outlive every use of `table` in C."""

    def __init__(self, compiler: Compiler | None = None) -> None:
        self.compiler = compiler or Compiler()
        self._blobs: dict[int, Any] = {}
        self._callbacks = (
            LOAD(self._load),
            RELEASE(self._release),
            BIND(self._bind),
            GET(self._get),
            PRECOMPILE(self._precompile) if precompile.threads() else PRECOMPILE(),
            UNLOAD(self._unload),
            LINK(self._link),
        )
        self.table = SoftCompiler(None, *self._callbacks)

    @property
    def address(self) -> int:
        """The address of the struct, for C."""
        return ctypes.addressof(self.table)

    @staticmethod
    def _fail(error: BaseException, text: int | None, size: int) -> int:
        if isinstance(error, SoftError):
            code, line = error.code, str(error)
        else:
            traceback.print_exception(error)
            code, line = CUDA_ERROR_UNKNOWN, f"internal error in the compiler: {type(error).__name__}: {error}"
        if text and size:
            data = " ".join(line.split()).encode("utf-8", "replace")[: size - 1] + b"\0"
            ctypes.memmove(text, data, len(data))
        return code

    def _load(self, _self: int, module: int, image: int, size: int, out: Any, out_size: Any, err: int, err_size: int) -> int:
        try:
            with WATCH.bounded():
                self._hand_over(self.compiler.module_load(module, ctypes.string_at(image, size)), out, out_size)
        except BaseException as error:
            return self._fail(error, err, err_size)
        return 0

    def _hand_over(self, blob: bytes, out: Any, out_size: Any) -> None:
        """Gives C bytes that stay where they are until `_release`."""
        buffer = ctypes.create_string_buffer(blob, len(blob))
        address = ctypes.addressof(buffer)
        self._blobs[address] = buffer
        out[0] = address
        out_size[0] = len(blob)

    def _link(self, _self: int, count: int, inputs: Any, out: Any, out_size: Any, err: int, err_size: int) -> int:
        try:
            given = [Input(i.type, (i.name or b"").decode("utf-8", "replace"), ctypes.string_at(i.data, i.size)) for i in inputs[:count]]
            with WATCH.bounded(), as_invalid_ptx("what is to be linked"):
                image = link(given)
            self._hand_over(image, out, out_size)
        except BaseException as error:
            return self._fail(error, err, err_size)
        return 0

    def _release(self, _self: int, blob: int) -> None:
        self._blobs.pop(blob, None)

    def _bind(self, _self: int, module: int, count: int, addresses: Any, err: int, err_size: int) -> int:
        try:
            self.compiler.module_bind(module, [addresses[i] for i in range(count)])
        except BaseException as error:
            return self._fail(error, err, err_size)
        return 0

    def _get(self, _self: int, module: int, number: int, block: Any, out: Any, err: int, err_size: int) -> int:
        try:
            with WATCH.bounded():
                out[0] = SoftCode.of(self.compiler.kernel_get(module, number, (block[0], block[1], block[2])))
        except BaseException as error:
            return self._fail(error, err, err_size)
        return 0

    def _precompile(self, _self: int, module: int, number: int, block: Any) -> None:
        self.compiler.kernel_precompile(module, number, (block[0], block[1], block[2]))

    def _unload(self, _self: int, module: int) -> None:
        self.compiler.module_unload(module)
