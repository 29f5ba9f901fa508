"""Errors of the software GPU's compiler, each with the CUresult that a program is to see."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
INVALID_IMAGE = 200
NO_BINARY_FOR_GPU = 209
INVALID_PTX = 218
UNSUPPORTED_PTX_VERSION = 222
NOT_FOUND = 500
LAUNCH_FAILED = 719
NOT_SUPPORTED = 801
UNKNOWN = 999


class SoftError(Exception):
    """Something the compiler cannot do; `code` is a CUresult."""

    code = UNKNOWN


class BadPtx(SoftError):
    """The text is not PTX as the language defines it."""

    code = INVALID_PTX


class BadImage(SoftError):
    """Neither PTX nor a container of it that is whole."""

    code = INVALID_IMAGE


class TooNew(SoftError):
    """PTX of a version that this compiler does not know."""

    code = UNSUPPORTED_PTX_VERSION


class Unsupported(SoftError):
    """Valid PTX that the software GPU lacks; the message names the instruction."""

    code = NOT_SUPPORTED


class NoPtx(SoftError):
    """The image holds nothing that can run here."""

    code = NO_BINARY_FOR_GPU


class BadCall(SoftError):
    """The caller named a module or kernel that does not exist."""

    code = INVALID_VALUE


class LinkFailed(SoftError):
    """Modules that do not fit together; the message names the symbol."""

    code = INVALID_IMAGE


@contextlib.contextmanager
def as_invalid_ptx(what: str) -> Iterator[None]:
    """Maps unexpected exceptions on untrusted PTX to CUDA_ERROR_INVALID_PTX; the worker goes on."""
    try:
        yield
    except SoftError:
        raise
    except Exception as error:
        raise BadPtx(f"cannot make sense of {what}: {type(error).__name__}: {str(error)[:300]}") from error
