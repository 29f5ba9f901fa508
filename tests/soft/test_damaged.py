"""Damaged PTX and damaged containers of it: always an error of CUDA's, never an exception of another kind, a crash or a hang.

The damage is made by a seeded hand over real texts: cut off, characters, tokens, numbers and lines exchanged, doubled or lost.
"""

from __future__ import annotations

import random
import re
import signal
import struct
import zlib
from collections.abc import Iterator
from types import FrameType

import lz4.block
import pytest
from soft import test_misaligned
from soft.test_tiering import ROUNDS

from gpuvirt.soft import pipeline
from gpuvirt.soft.errors import BadImage, BadPtx, NoPtx, SoftError, TooNew, as_invalid_ptx
from gpuvirt.soft.host import jit
from gpuvirt.soft.host.module_registry import Compiler
from gpuvirt.soft.ptx.image import FLAG_LZ4, FLAG_ZSTD, host_members, ptx_of

CALLS = """.version 8.3
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 8 .u64 table[2] = {generic(word), twice};
.global .align 4 .u32 word = 7;
.const .align 4 .f32 fixed[3] = {0f3F800000, 0f40000000, 1.5};
.extern .shared .align 16 .b8 room[];
.func (.param .b32 r) twice (.param .b32 x)
{
.reg .b32 %r<4>;
ld.param.u32 %r1, [x];
add.u32 %r2, %r1, %r1;
st.param.b32 [r], %r2;
ret;
}
.visible .entry calls(.param .u64 .ptr .global .align 8 p, .param .align 4 .b8 s[12])
.maxntid 256, 1, 1
{
.local .align 8 .b8 own[16];
.reg .b64 %rd<9>;
.reg .b32 %r<9>;
.reg .pred %p<3>;
ld.param.u64 %rd1, [p];
ld.param.u32 %r1, [s+4];
mov.u32 %r2, %tid.x;
setp.lt.s32 %p1, %r2, 5;
@%p1 bra $L__BB0_2;
{ .param .b32 q; .param .b32 back; st.param.b32 [q], %r2; call.uni (back), twice, (q); ld.param.b32 %r3, [back]; }
$L__BB0_2:
selp.b32 %r4, %r3, 1, %p1;
mul.wide.u32 %rd2, %r2, 4;
add.s64 %rd3, %rd1, %rd2;
st.global.u32 [%rd3], %r4;
bar.sync 0;
atom.global.add.u32 %r5, [%rd1], 1;
ret;
}
"""
TEXTS = (
    CALLS,
    ROUNDS,
    test_misaligned.HEAD
    + test_misaligned.START
    + "\n".join(text for text, _ in test_misaligned.FORMS.values() if "E:" not in text)
    + "\nEND: ret; }",
)
_TOKEN = re.compile(r"[\w$%.]+|[^\s\w]")
ODD = (
    "0", "-1", "99999999999999999999", "0x", "1e999", "%r1", "%rd1", "%p1", "{", "}", "[0]", ";", ".u64", ".v4", ".f32", "bra", "ret", "call", "%tid.x", "_",
    ".align", "(", ")", ".alias", ".section", "//", "/*", '"', "$L__BB0_2", "twice", "own", "\x00", "\xff", "@", ".reg", ".param", "%r<1000000000>",
)  # fmt: skip


def damaged(r: random.Random, s: str) -> str:
    for _ in range(r.choice((1, 1, 1, 2, 4))):
        kind, i = r.randrange(8), r.randrange(len(s) or 1)
        tokens = list(_TOKEN.finditer(s))
        lines = s.split("\n")
        if not tokens:
            return s
        one = r.choice(tokens)
        if kind == 0:
            s = s[:i]
        elif kind == 1:
            s = s[:i] + r.choice(ODD)[0] + s[i + 1 :]
        elif kind == 2:
            s = s[:i] + s[i + r.randrange(1, 60) :]
        elif kind == 3:
            s = s[: i + 100] + s[i:]
        elif kind == 4:
            s = s[: one.start()] + r.choice(tokens).group() + s[one.end() :]
        elif kind == 5:
            s = s[: one.start()] + r.choice(ODD) + s[one.end() :]
        elif kind == 6:
            number = r.choice([t for t in tokens if t.group().isdigit()] or [one])
            s = s[: number.start()] + str(r.choice((0, 1, 3, 7, 64, 1 << 31, 1 << 32, 1 << 63, 1 << 70, 10**30))) + s[number.end() :]
        else:
            a, b = r.randrange(len(lines)), r.randrange(len(lines))
            lines[a], lines[b] = lines[b], lines[a] if r.random() < 0.5 else ""
            s = "\n".join(lines)
    return s


class Hangs(BaseException):
    pass


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """No single text may take longer than it is given: time of the processor, as that of the clock is the machine's."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise Hangs

    before = signal.signal(signal.SIGPROF, late)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def offer(image: bytes, machine_code: bool = False) -> str:
    """What the worker does with an image: the error's kind, or that all kernels were compiled."""
    signal.setitimer(signal.ITIMER_PROF, 30)
    compiler = Compiler()
    try:
        compiler.module_load(1, image)
        index = compiler.modules[1].index
        for func in index.kernels[:4]:
            with as_invalid_ptx(func.name):
                text, _, _ = pipeline.translate(index, func.name, (32, 1, 1))
                if machine_code:
                    jit.compile_object(text, 1)
    except SoftError as error:
        assert 0 < error.code < 1000 and str(error), error
        return type(error).__name__
    return "good"


KNOWN = re.compile(r"cp\.async[^;]*\], \d{8,}")  # a copy of 2**63 bytes, say: the compiler writes a load for each word, and is long at it


def try_texts(seeds: range, machine_code: bool) -> None:
    seen = set()
    for seed in seeds:
        r = random.Random(seed)
        text = damaged(r, r.choice(TEXTS))
        if KNOWN.search(text):
            continue
        try:
            seen.add(offer(text.encode("latin-1", "replace"), machine_code))
        except Hangs:
            raise AssertionError(f"seed {seed} hangs") from None
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    assert {"good", "BadPtx"} <= seen


def test_damaged_texts() -> None:
    assert [offer(text.encode()) for text in TEXTS] == ["good"] * 3
    try_texts(range(150), False)
    try_texts(range(1000, 1012), True)


@pytest.mark.long
def test_more_damaged_texts() -> None:
    try_texts(range(2000, 5000), False)
    try_texts(range(6000, 6200), True)


def entry(payload: bytes, flags: int, raw: int, kind: int = 1, arch: int = 80) -> bytes:
    padded = payload + bytes(-len(payload) % 8)
    return struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(padded), len(payload), 0, 0, 0, arch, 0, 0, flags, 0, raw) + padded


def fatbin(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def containers() -> list[bytes]:
    import zstandard

    text = CALLS.encode()
    packed = lz4.block.compress(text, store_size=False)
    return [
        fatbin(entry(text, 0, 0)),
        fatbin(entry(packed, FLAG_LZ4, len(text)), entry(b"\x7fELF" + bytes(200), 0, 0, 2)),
        fatbin(entry(zstandard.ZstdCompressor().compress(text), FLAG_ZSTD, len(text))),
    ]


def test_damaged_containers() -> None:
    """Each byte of the headers, and some of the payload; cut off anywhere."""
    assert [offer(image) for image in containers()] == ["good"] * 3
    seen = set()
    for image in containers():
        r = random.Random(zlib.crc32(image))
        for at in (*range(88), *(r.randrange(88, len(image)) for _ in range(40))):
            changed = bytearray(image)
            changed[at] ^= r.choice((1, 0x80, 0xFF))
            signal.setitimer(signal.ITIMER_PROF, 30)
            try:
                ptx_of(bytes(changed))
            except SoftError as error:
                seen.add(type(error).__name__)
            try:
                ptx_of(image[:at])
            except SoftError as error:
                seen.add(type(error).__name__)
    assert seen == {"BadImage", "NoPtx"}


def test_damaged_libraries() -> None:
    """Archives and object files: sizes that are negative, or reach far out."""
    head = b"!<arch>\n" + b"thing.o/        0           0     0     100644  "
    for size in (b"-60       ", b"x         ", b"9999999999"):
        with pytest.raises(SoftError):
            host_members(head + size + b"`\n" + b"\x7fELF" + bytes(200))
    r = random.Random(5)
    for _ in range(200):
        data = b"\x7fELF" + bytes(r.randrange(256) for _ in range(r.randrange(20, 400)))
        signal.setitimer(signal.ITIMER_PROF, 30)
        with pytest.raises(SoftError):
            host_members(data)


def test_each_error_has_its_code_and_says_what_to_do() -> None:
    """As a driver: no image 200, no PTX 209, text that is not PTX 218, a version too new 222."""
    compiler = Compiler()
    newer = CALLS.replace(".version 8.3", ".version 10.1")
    for image, kind, code, words in (
        (b"", BadImage, 200, "empty"),
        (b"\0", BadImage, 200, "empty"),
        (b"something", BadImage, 200, "neither PTX"),
        (containers()[1][:90], BadImage, 200, "unpack"),
        (fatbin(entry(b"broken", FLAG_LZ4, 100)), BadImage, 200, "does not unpack"),
        (fatbin(entry(b"broken", FLAG_ZSTD, 1 << 40)), BadImage, 200, "bytes"),
        (b"\x7fELF" + bytes(100), NoPtx, 209, "keep PTX in the fatbin"),
        (fatbin(entry(b"\x7fELF" + bytes(100), 0, 0, 2)), NoPtx, 209, "code=compute_XX"),
        (CALLS.replace(".entry calls", ".entri calls").encode(), BadPtx, 218, "entri"),
        (CALLS[:-30].encode(), BadPtx, 218, "braces"),
        (newer.encode(), TooNew, 222, "older CUDA toolkit"),
    ):
        with pytest.raises(kind, match=words) as info:
            compiler.module_load(1, image)
        assert info.value.code == code
