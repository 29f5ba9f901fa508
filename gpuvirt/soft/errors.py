"""Errors of the software GPU's compiler, each with the CUresult that a program is to see."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gpuvirt.soft.cuda_results import (
    CUDA_ERROR_INVALID_IMAGE,
    CUDA_ERROR_INVALID_PTX,
    CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_UNKNOWN,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
)


class SoftError(Exception):
    """Something the compiler cannot do; `code` is a CUresult."""

    code = CUDA_ERROR_UNKNOWN


class BadPtx(SoftError):
    """The text is not PTX as the language defines it."""

    code = CUDA_ERROR_INVALID_PTX


class BadImage(SoftError):
    """Neither PTX nor a container of it that is whole."""

    code = CUDA_ERROR_INVALID_IMAGE


class TooNew(SoftError):
    """PTX of a version that this compiler does not know."""

    code = CUDA_ERROR_UNSUPPORTED_PTX_VERSION


class Unsupported(SoftError):
    """Valid PTX that the software GPU lacks; the message names the instruction."""

    code = CUDA_ERROR_NOT_SUPPORTED


class NoPtx(SoftError):
    """The image holds nothing that can run here."""

    code = CUDA_ERROR_NO_BINARY_FOR_GPU


class BadCall(SoftError):
    """The caller named a module or kernel that does not exist."""

    code = CUDA_ERROR_INVALID_VALUE


class LinkFailed(SoftError):
    """Modules that do not fit together; the message names the symbol."""

    code = CUDA_ERROR_INVALID_IMAGE


@contextlib.contextmanager
def as_invalid_ptx(what: str) -> Iterator[None]:
    """Maps unexpected exceptions on untrusted PTX to CUDA_ERROR_INVALID_PTX; the worker goes on."""
    try:
        yield
    except SoftError:
        raise
    except Exception as error:
        raise BadPtx(f"cannot make sense of {what}: {type(error).__name__}: {str(error)[:300]}") from error
