"""Finds the PTX text in what a program hands to cuModuleLoadData: PTX itself or a fatbin container."""

from __future__ import annotations

import struct
from typing import NamedTuple

from gpuvirt.soft.errors import BadPtx, NoPtx

FATBIN_MAGIC = 0xBA55ED50
WRAPPER_MAGIC = 0x466243B1
ELF_MAGIC = b"\x7fELF"
KIND_PTX, KIND_ELF = 1, 2
FLAG_LZ4, FLAG_ZSTD = 0x2000, 0x8000
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")


class Entry(NamedTuple):
    """One member of a fatbin: `kind` 1 is PTX, 2 is machine code; `arch` is 10 * major + minor."""

    kind: int
    arch: int
    flags: int
    payload: bytes
    raw_size: int


def entries(image: bytes) -> list[Entry]:
    """The members of a fatbin, in file order."""
    found: list[Entry] = []
    position = 0
    while position + _HEADER.size <= len(image):
        magic, _version, header_size, size = _HEADER.unpack_from(image, position)
        if magic != FATBIN_MAGIC:
            break
        start = position + header_size
        end = min(start + size, len(image))
        while start + _ENTRY.size <= end:
            kind, _ver, entry_header, entry_size, packed, _o, _minor, _major, arch, _n, _l, flags, _z, raw = _ENTRY.unpack_from(image, start)
            if entry_header < _ENTRY.size or start + entry_header > end:
                raise BadPtx("the fatbin's entry header is damaged")
            body = image[start + entry_header : start + entry_header + entry_size]
            found.append(Entry(kind, arch, flags, body[:packed] if packed and flags & (FLAG_LZ4 | FLAG_ZSTD) else body, raw))
            start += entry_header + entry_size
        position = end
    return found


def unpack(entry: Entry) -> bytes:
    """The payload of an entry, decompressed."""
    try:
        if entry.flags & FLAG_ZSTD:
            import zstandard

            return zstandard.ZstdDecompressor().decompress(entry.payload, max_output_size=max(entry.raw_size, 1 << 20) * 2)
        if entry.flags & FLAG_LZ4:
            import lz4.block

            return bytes(lz4.block.decompress(entry.payload, uncompressed_size=entry.raw_size))
    except Exception as error:
        raise BadPtx(f"the fatbin's compressed PTX does not unpack: {error}") from error
    return entry.payload


def ptx_of(image: bytes) -> str:
    """The PTX text of an image; of several PTX entries in a fatbin, the one for the newest architecture."""
    if image[:4] == ELF_MAGIC:
        raise NoPtx(
            "the image is machine code (a cubin) without PTX; the software GPU runs PTX: build with -arch=compute_XX or keep PTX in the fatbin"
        )
    if len(image) >= 4 and struct.unpack_from("<I", image)[0] == FATBIN_MAGIC:
        ptx = [e for e in entries(image) if e.kind == KIND_PTX]
        if not ptx:
            raise NoPtx("the fatbin holds machine code but no PTX; the software GPU runs PTX: build with code=compute_XX")
        image = unpack(max(ptx, key=lambda e: e.arch))
    text = image.rstrip(b"\0")
    nul = text.find(b"\0")
    if nul >= 0:
        text = text[:nul]
    decoded = text.decode("latin-1")
    if ".version" not in decoded[:65536]:
        raise NoPtx("the image is neither PTX text (no .version directive) nor a fatbin with PTX in it")
    return decoded
