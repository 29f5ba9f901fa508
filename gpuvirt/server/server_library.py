"""The server library (native/server/acceptor.h) through ctypes. The structures here mirror that header field by field."""

from __future__ import annotations

import ctypes
from functools import cache

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.handshake import MESSAGE_MAX, NONCE_SIZE

HELLO, LATE, EXHAUSTED = 1, 2, 3  # kinds of events


class AdmissionLimits(ctypes.Structure):
    """struct admission_limits. rate 0: no limit."""

    _fields_ = [
        ("share", ctypes.c_uint32),
        ("total", ctypes.c_uint32),
        ("rate", ctypes.c_uint32),
        ("burst", ctypes.c_uint32),
    ]


class AcceptorConfig(ctypes.Structure):
    """struct acceptor_config"""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("listening", ctypes.c_int32),
        ("pending", AdmissionLimits),
        ("head_ms", ctypes.c_uint32),
        ("rest_ms", ctypes.c_uint32),
        ("greeting", ctypes.c_char_p),
        ("greeting_size", ctypes.c_uint32),
        ("nonce_at", ctypes.c_uint32),
        ("behind", ctypes.c_char_p),
        ("proved", AdmissionLimits),
        ("unproved_bytes", ctypes.c_uint64),
    ]


class AcceptorEvent(ctypes.Structure):
    """struct acceptor_event"""

    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("fd", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("size", ctypes.c_uint32),
        ("peer", ctypes.c_char * 108),
        ("nonce", ctypes.c_uint8 * NONCE_SIZE),
        ("hello", ctypes.c_uint8 * MESSAGE_MAX),
    ]


@cache
def server_library() -> ctypes.CDLL:
    """libgpuvirt_server.so, loaded.

    Raises:
        GpuvirtError: it is not there, or cannot be loaded.
    """
    path = paths.program(paths.SERVER)
    try:
        lib = ctypes.CDLL(str(path), use_errno=True)
    except OSError as error:
        raise GpuvirtError(f"{path} cannot be loaded: {error}; build it anew: make setup") from None
    handle = ctypes.c_void_p
    lib.acceptor_open.argtypes, lib.acceptor_open.restype = [ctypes.POINTER(AcceptorConfig)], handle
    lib.acceptor_descriptor.argtypes, lib.acceptor_descriptor.restype = [handle], ctypes.c_int
    lib.acceptor_take.argtypes, lib.acceptor_take.restype = [handle, ctypes.POINTER(AcceptorEvent)], ctypes.c_int
    lib.acceptor_close.argtypes, lib.acceptor_close.restype = [handle], None
    return lib
