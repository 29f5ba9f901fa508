"""Finds the PTX text in what a program hands to the driver: PTX itself, a fatbin with PTX, and for cuLink* host objects and libraries too."""

from __future__ import annotations

import struct
from typing import NamedTuple

from gpuvirt.soft.errors import BadImage, NoPtx

FATBIN_MAGIC = 0xBA55ED50
WRAPPER_MAGIC = 0x466243B1
ELF_MAGIC = b"\x7fELF"
KIND_PTX, KIND_ELF = 1, 2
FLAG_LZ4, FLAG_ZSTD = 0x2000, 0x8000
_MOST_TEXT = 1 << 29  # bytes that a compressed entry may unpack to
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
        if header_size < _HEADER.size:
            raise BadImage("the fatbin's header is damaged")
        start = position + header_size
        end = min(start + size, len(image))
        while start + _ENTRY.size <= end:
            kind, _ver, entry_header, entry_size, packed, _o, _minor, _major, arch, _n, _l, flags, _z, raw = _ENTRY.unpack_from(image, start)
            if entry_header < _ENTRY.size or start + entry_header > end:
                raise BadImage("the fatbin's entry header is damaged")
            body = image[start + entry_header : start + entry_header + entry_size]
            found.append(Entry(kind, arch, flags, body[:packed] if packed and flags & (FLAG_LZ4 | FLAG_ZSTD) else body, raw))
            start += entry_header + entry_size
        position = end
    return found


def unpack(entry: Entry) -> bytes:
    """The payload of an entry, decompressed."""
    if entry.flags & (FLAG_LZ4 | FLAG_ZSTD) and entry.raw_size > _MOST_TEXT:
        raise BadImage(f"the fatbin's compressed PTX is said to have {entry.raw_size} bytes")
    try:
        if entry.flags & FLAG_ZSTD:
            import zstandard

            return zstandard.ZstdDecompressor().decompress(entry.payload, max_output_size=min(max(entry.raw_size, 1 << 20) * 2, _MOST_TEXT))
        if entry.flags & FLAG_LZ4:
            import lz4.block

            return bytes(lz4.block.decompress(entry.payload, uncompressed_size=entry.raw_size))
    except Exception as error:
        raise BadImage(f"the fatbin's compressed PTX does not unpack: {error}") from error
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
        raise BadImage("the image is empty" if not text else "the image is neither PTX text (no .version directive) nor a fatbin with PTX in it")
    return decoded


# ---- host objects and libraries, as nvcc makes them: fatbins in sections of their own -------------------------------------

_AR_MAGIC = b"!<arch>\n"
_ELF_CUDA = 190
_FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")


def is_host_code(data: bytes) -> bool:
    """Whether this is an object file or a static library for the host's processor."""
    return data[:8] == _AR_MAGIC or (data[:4] == ELF_MAGIC and len(data) > 64 and struct.unpack_from("<H", data, 18)[0] != _ELF_CUDA)


def _archived(data: bytes) -> list[tuple[str, bytes]]:
    """The files in a static library."""
    found: list[tuple[str, bytes]] = []
    names = b""
    position = len(_AR_MAGIC)
    while position + 60 <= len(data):
        header = data[position : position + 60]
        try:
            size = int(header[48:58])
            if size < 0:
                raise ValueError
        except ValueError:
            raise BadImage("the library's table of contents is damaged") from None
        body = data[position + 60 : position + 60 + size]
        name = header[:16].rstrip()
        if name == b"//":
            names = body
        elif name[:1] == b"/" and name[1:].isdigit():
            found.append((names[int(name[1:]) :].split(b"/", 1)[0].decode("latin-1"), body))
        elif name not in (b"/", b"/SYM64/"):
            found.append((name.rstrip(b"/").decode("latin-1"), body))
        position += 60 + size + (size & 1)
    return found


def _sections(data: bytes) -> dict[str, bytes]:
    """The sections of an object file that have contents, by name."""
    try:
        table, entry_size, count, names_at = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HHH", data, 58)
        headers = [struct.unpack_from("<IIQQQQ", data, table + i * entry_size) for i in range(count)]
        texts = data[headers[names_at][4] : headers[names_at][4] + headers[names_at][5]]
        return {texts[h[0] : texts.find(b"\0", h[0])].decode("latin-1"): data[h[4] : h[4] + h[5]] for h in headers if h[1] == 1}
    except (struct.error, IndexError, OverflowError):
        raise BadImage("the object file is damaged") from None


def host_members(data: bytes) -> list[tuple[str, str]]:
    """Name and PTX text of everything in a host object or library that has device code.

    Raises:
        SoftError: there is device code without PTX, or none at all.
    """
    found: list[tuple[str, str]] = []
    members = _archived(data) if data[:8] == _AR_MAGIC else [("device code", data)]
    for name, body in members:
        if body[:4] != ELF_MAGIC:
            continue
        sections = _sections(body)
        found += [(name, ptx_of(sections[s])) for s in _FATBIN_SECTIONS if sections.get(s)]
    if not found:
        raise NoPtx("this host code holds no device code")
    return found
