"""Initial values of module variables."""

from __future__ import annotations

import re
import struct

from gpuvirt.soft.errors import BadPtx
from gpuvirt.soft.ptx.layout import function_token
from gpuvirt.soft.ptx.module import OPAQUE, Module, Variable
from gpuvirt.soft.ptx.parser import to_int
from gpuvirt.soft.ptx.types import TYPES

_ITEM = re.compile(r"\{|\}|,|[^{},]+")
_MASKED = re.compile(r"(0x[0-9a-fA-F]+|\d+)\s*\((.*)\)$", re.S)


def _value(module: Module, text: str, width: int, kind: str, addresses: dict[str, int]) -> bytes:
    text = text.strip()
    if text[:2] in ("0f", "0F"):
        pattern = int(text[2:], 16)
        if width == 8:
            return struct.pack("<d", struct.unpack("<f", struct.pack("<I", pattern))[0])
        return pattern.to_bytes(4, "little")[:width].ljust(width, b"\0")
    if text[:2] in ("0d", "0D"):
        pattern = int(text[2:], 16)
        if width == 4 and kind == "f":
            return struct.pack("<f", struct.unpack("<d", struct.pack("<Q", pattern))[0])
        return pattern.to_bytes(8, "little")[:width]
    masked = _MASKED.match(text)
    if masked and masked.group(1).startswith("0x"):  # 0xFF00(symbol): one byte of an address
        mask = int(masked.group(1), 16)
        shift = (mask & -mask).bit_length() - 1
        whole = int.from_bytes(_value(module, masked.group(2), 8, "b", addresses), "little")
        return ((whole & mask) >> shift).to_bytes(8, "little")[:width]
    if text.startswith("generic"):
        return _value(module, text[text.index("(") + 1 : text.rindex(")")] + text[text.rindex(")") + 1 :], width, kind, addresses)
    symbol = re.match(r"([A-Za-z_$%][\w$]*)\s*(?:([-+])\s*(\w+))?$", text)
    if symbol:
        name, sign, offset = symbol.groups()
        if name in addresses:
            base = addresses[name]
        elif name in module.funcs:
            base = function_token(module, name)
        else:
            raise BadPtx(f"the initialiser names '{name}', which is not declared")
        if offset:
            base += to_int(offset) * (-1 if sign == "-" else 1)
        return (base & ((1 << 64) - 1)).to_bytes(8, "little")[:width]
    if kind == "f":
        number = float(text)
        return struct.pack("<d" if width == 8 else "<f", number)
    return (to_int(text) & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def initial_bytes(module: Module, variable: Variable, addresses: dict[str, int]) -> bytes:
    """The whole initial contents of a variable (zeros where nothing is said)."""
    if not variable.init or variable.element in OPAQUE:
        return bytes(variable.size)
    t = TYPES[variable.element]
    width = t.bits // 8
    text = variable.init.strip()
    if not text.startswith("{"):
        return _value(module, text, width, t.kind, addresses).ljust(variable.size, b"\0")
    if width == 1 and text.count("{") == 1 and "(" not in text and "0x" not in text.lower():  # large tables, quickly
        try:
            data = bytes(int(n) & 255 for n in text.strip("{} \n").split(",") if n.strip())
            return data.ljust(variable.size, b"\0")
        except ValueError:
            pass
    out = bytearray()
    for item in _ITEM.findall(text.replace("\n", " ")):
        if item in "{}," or not item.strip():
            continue
        out += _value(module, item, width, t.kind, addresses)
    if len(out) > variable.size:
        raise BadPtx(f"the initialiser of '{variable.name}' is longer than the variable")
    return bytes(out.ljust(variable.size, b"\0"))
