"""The filter's program, run as the kernel would run it, against the rules that it was made of."""

from __future__ import annotations

import errno
import random
import struct

import pytest

from gpuvirt.server.box import bpf, calls
from gpuvirt.server.box.numbers import NUMBER

X86_64 = 0xC000003E
PID = 4711


def run(program: bytes, number: int, arguments: tuple[int, ...] = (), architecture: int = X86_64) -> int:
    """The verdict of classic BPF over struct seccomp_data."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    at, word = 0, 0
    while True:
        operation, yes, no, value = code[at]
        at += 1
        match operation:
            case 0x20:
                (word,) = struct.unpack_from("<I", data, value)
            case 0x54:
                word &= value
            case 0x15:
                at += yes if word == value else no
            case 0x35:
                at += yes if word >= value else no
            case 0x05:
                at += value
            case 0x06:
                return value
            case _:
                raise AssertionError(f"operation {operation:#x}")


ALLOWED, DENIED, ABSENT = bpf.ALLOW, bpf.fails(errno.EPERM), bpf.fails(errno.ENOSYS)


@pytest.mark.parametrize("backend", ["soft", "cuda"])
def test_every_number(backend: str) -> None:
    program, rules = calls.program(PID, backend), calls.rules(PID, backend)
    for number in range(600):
        cases = rules.get(number)
        if cases is None:
            assert run(program, number) == ABSENT, number
        elif len(cases) == 1:
            assert run(program, number) == cases[0].verdict, number
    assert not set(calls.NEEDED) & set(calls.FORBIDDEN) and len(calls.FORBIDDEN) == len(set(calls.FORBIDDEN))


@pytest.mark.parametrize(
    ("name", "arguments", "verdict"),
    [
        ("kill", (PID, 9), ALLOWED),
        ("kill", (PID + 1, 9), DENIED),
        ("kill", (0, 9), DENIED),  # the whole group
        ("kill", (2**64 - 1, 9), DENIED),  # everybody
        ("kill", (2**32 + PID, 9), ALLOWED),  # of an int the kernel takes the lower half, and so does the filter
        ("tgkill", (PID, 1, 9), ALLOWED),
        ("tgkill", (1, PID, 9), DENIED),
        ("clone", (0x3D0F00,), ALLOWED),  # pthread_create
        ("clone", (0x1200011,), DENIED),  # fork
        ("clone", (0x3D0F00 | 0x10000000,), DENIED),  # a thread in a namespace of its own
        ("clone3", (), ABSENT),
        ("prctl", (4, 1), DENIED),
        ("prctl", (15,), ALLOWED),
        ("fcntl", (0, 8, 1), DENIED),
        ("fcntl", (0, 1030), ALLOWED),
        ("ioctl", (0, 0x5412), DENIED),
        ("ioctl", (0, 0x541B), ALLOWED),
        ("ioctl", (0, 0xC020462A), DENIED),
        ("utimensat", (3, 0, 0, 0), ALLOWED),
        ("utimensat", (3, 1 << 40, 0, 0), DENIED),
        ("sendto", (3, 1, 1, 0, 0), ALLOWED),
        ("sendto", (3, 1, 1, 0, 1 << 33), DENIED),
        ("sendmsg", (3, 1, 0x4000), ALLOWED),
        ("sendmsg", (3, 1, 0x20000000), DENIED),
        ("prlimit64", (0, 7), ALLOWED),
        ("prlimit64", (1, 7), DENIED),
        ("socket", (1, 1), DENIED),
    ],
)
def test_arguments_on_soft(name: str, arguments: tuple[int, ...], verdict: int) -> None:
    assert run(calls.program(PID, "soft"), NUMBER[name], arguments) == verdict


@pytest.mark.parametrize(
    ("name", "arguments", "verdict"),
    [
        ("ioctl", (0, 0xC020462A), ALLOWED),  # one of the driver's
        ("ioctl", (0, 0x5412), DENIED),
        ("ioctl", (0, 2**32 + 0x5412), DENIED),
        ("socket", (1, 1), ALLOWED),
        ("socket", (2, 1), DENIED),
        ("connect", (), bpf.fails(errno.ENOENT)),  # as where no daemon shares the GPU: after any other error the driver does not start
    ],
)
def test_arguments_on_cuda(name: str, arguments: tuple[int, ...], verdict: int) -> None:
    assert run(calls.program(PID, "cuda"), NUMBER[name], arguments) == verdict


def test_other_architectures_end_the_process() -> None:
    program = calls.program(PID, "soft")
    assert run(program, NUMBER["read"], architecture=0x40000003) == bpf.KILL
    assert run(program, 0x40000000 | NUMBER["read"]) == bpf.KILL


def test_a_page_that_stays_where_it_is() -> None:
    program = calls.program(PID, "soft", fixed_page=0x7F12_3456_7000)
    assert run(program, NUMBER["mremap"], (0x7F12_3456_7000,)) == run(program, NUMBER["mremap"], (0x7F12_3456_7FFF,)) == DENIED
    assert run(program, NUMBER["mremap"], (0x7F12_3456_8000,)) == run(program, NUMBER["mremap"], (0x3456_7000,)) == ALLOWED


def test_large_trees_are_searched_right() -> None:
    """More instructions than a conditional jump reaches."""
    chance = random.Random(5)
    rules = {n: [bpf.Case(bpf.fails(chance.randrange(1, 4000)))] for n in range(0, 900, 2)}
    program = bpf.assemble(rules, bpf.ALLOW)
    for number in range(1000):
        assert run(program, number) == (rules[number][0].verdict if number in rules else bpf.ALLOW)


def test_what_cannot_be_a_filter_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        bpf.assemble({n: [bpf.Case(bpf.fails(1 + n % 2))] for n in range(5000)}, bpf.ALLOW)
    with pytest.raises(ValueError, match="hold always"):
        bpf.assemble({1: [bpf.Case(bpf.ALLOW, (bpf.Condition(0, 1, 1),))]}, bpf.ALLOW)
    with pytest.raises(ValueError, match="no system call nothing"):
        calls.program(PID, "soft", leave_out=frozenset({"nothing"}))
