"""seccomp filters: from rules to the program that the kernel runs at each system call, and its installation.

An assembler of its own, because libseccomp is not on every host and no wheel brings it; what it has to make is a search tree over numbers with short
tests of arguments at its leaves.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuvirt.server.box import kernel

ALLOW = 0x7FFF0000
KILL = 0x80000000  # the whole process
_ERRNO = 0x00050000

_LD, _JEQ, _JGE, _AND, _RET, _JA = 0x20, 0x15, 0x35, 0x54, 0x06, 0x05
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X86_64 = 0xC000003E
_X32 = 0x40000000  # the bit of x32's numbers, which have their own list
_MOST = 4096  # instructions that the kernel takes
_FAR = 255  # instructions that a conditional jump reaches
_MODE_FILTER = 2


def fails(code: int) -> int:
    """The verdict that lets a call fail with this errno."""
    return _ERRNO | code


@dataclass(frozen=True)
class Condition:
    """(argument `index` & mask) == value, both up to 64 bits. Arguments that the kernel takes as int need a mask of 32 bits."""

    index: int
    mask: int
    value: int


@dataclass(frozen=True)
class Case:
    """A verdict, if all its conditions hold."""

    verdict: int
    conditions: tuple[Condition, ...] = ()


Rules = Mapping[int, Sequence[Case]]  # by number; the first case that holds decides, the last one must have no conditions


def assemble(rules: Rules, default: int) -> bytes:
    """The filter's program. Calls of other architectures end the process."""
    start = [_op(_LD, _ARCHITECTURE), _op(_JEQ, _X86_64, 1, 0), _op(_RET, KILL), _op(_LD, _NUMBER), _op(_JGE, _X32, 0, 1), _op(_RET, KILL)]
    program = b"".join([*start, *_tree(_ranges(rules, default))])
    if len(program) // 8 > _MOST:
        raise ValueError("the filter is too long for the kernel")
    return program


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def _ranges(rules: Rules, default: int) -> list[tuple[int, tuple[Case, ...]]]:
    """Where each run of numbers with the same cases begins."""
    end = max(rules, default=-1) + 2
    found: list[tuple[int, tuple[Case, ...]]] = []
    for number in range(end):
        cases = tuple(rules.get(number, (Case(default),)))
        if not found or found[-1][1] != cases:
            found.append((number, cases))
    return found


def _tree(ranges: list[tuple[int, tuple[Case, ...]]]) -> list[bytes]:
    if len(ranges) == 1:
        return _leaf(ranges[0][1])
    half = len(ranges) // 2
    low, high = _tree(ranges[:half]), _tree(ranges[half:])
    if len(low) <= _FAR:
        return [_op(_JGE, ranges[half][0], len(low), 0), *low, *high]
    return [_op(_JGE, ranges[half][0], 0, 1), _op(_JA, len(low)), *low, *high]


def _leaf(cases: Sequence[Case]) -> list[bytes]:
    if cases[-1].conditions:
        raise ValueError("the last case must hold always")
    out: list[bytes] = []
    for case in cases:
        words = [
            (_ARGUMENTS + 8 * c.index + 4 * half, c.mask >> 32 * half & 0xFFFFFFFF, c.value >> 32 * half & 0xFFFFFFFF)
            for c in case.conditions
            for half in (0, 1)
            if c.mask >> 32 * half & 0xFFFFFFFF
        ]
        size = 3 * len(words) + 1
        for n, (offset, mask, value) in enumerate(words):
            out += [_op(_LD, offset), _op(_AND, mask), _op(_JEQ, value, 0, size - 3 * (n + 1))]
        out.append(_op(_RET, case.verdict))
    return out


class _Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install(program: bytes) -> None:
    """Puts this thread, and all that it starts, under the filter; needs no_new_privs. There is no way back.

    Raises:
        OSError: the kernel has no filters, or refuses this one.
    """
    code = ctypes.create_string_buffer(program, len(program))
    described = _Program(len(program) // 8, ctypes.addressof(code))
    kernel.prctl(kernel.PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(described))


def available() -> bool:
    """Whether the kernel takes filters: then it says that there is none at address 0 (EFAULT), else that it knows no such mode (EINVAL)."""
    if not kernel.known_machine():
        return False
    try:
        kernel.prctl(kernel.PR_SET_SECCOMP, _MODE_FILTER, 0)
    except OSError as error:
        return error.errno == errno.EFAULT
    return False
