"""The compiler as C sees it: images, metadata, error codes, the object cache, several threads at once."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import pytest
import zstandard
from soft.kernels import Kernels

from gpuvirt.soft import abi
from gpuvirt.soft.codegen import target
from gpuvirt.soft.host import jit
from gpuvirt.soft.host.ctypes_bridge import Bridge, SoftCode
from gpuvirt.soft.host.module_registry import Compiler, digest_of_sources, own_version
from gpuvirt.soft.ptx.module import Module

NATIVE = Path(__file__).resolve().parents[2] / "native"
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
STORE = (
    HEAD + ".visible .entry k(.param .u64 p, .param .u32 v) { .reg .b64 %a; .reg .b32 %r; "
    "ld.param.u64 %a, [p]; ld.param.u32 %r, [v]; %s st.global.u32 [%a], %r; ret; }"
)


def fatbin(*entries: tuple[int, int, int, bytes, int]) -> bytes:
    """(kind, arch, flags, payload, size before compression) of each entry."""
    body = b""
    for kind, arch, flags, payload, raw in entries:
        packed = len(payload) if flags else 0
        body += struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(payload), packed, 0, 0, 8, arch, 0, 0, flags, 0, raw) + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def value_of(image: bytes) -> int:
    out = np.zeros(1, np.uint32)
    Kernels(image).launch("k", 1, 1, out, np.uint32(7))
    return int(out[0])


def test_images() -> None:
    text = STORE.replace("%s", "").encode()
    wrong = STORE.replace("%s", "mov.u32 %r, 1;").encode()
    assert value_of(text) == 7
    assert value_of(text + b"\0\0junk") == 7
    packed = lz4.block.compress(text, store_size=False)
    squeezed = zstandard.compress(text)
    assert value_of(fatbin((2, 90, 0, b"\x7fELF....", 0), (1, 80, 0, text, 0))) == 7
    assert value_of(fatbin((1, 80, 0x2000, packed, len(text)))) == 7
    assert value_of(fatbin((1, 75, 0, wrong, 0), (1, 90, 0x8000, squeezed, len(text)))) == 7


class Table:
    """struct soft_compiler called through its function pointers."""

    def __init__(self) -> None:
        self.bridge = Bridge()
        self.err = ctypes.create_string_buffer(200)

    def load(self, module: int, image: bytes) -> tuple[int, bytes]:
        out, size = ctypes.c_void_p(), ctypes.c_size_t()
        t = self.bridge.table
        rc = t.module_load(None, module, image, len(image), ctypes.byref(out), ctypes.byref(size), ctypes.addressof(self.err), 200)
        blob = ctypes.string_at(out.value or 0, size.value) if rc == 0 else b""
        if rc == 0:
            t.release_meta(None, out)
        return rc, blob

    def get(self, module: int, number: int, *block: int) -> tuple[int, SoftCode]:
        code = SoftCode()
        rc = self.bridge.table.kernel_get(None, module, number, (ctypes.c_uint32 * 3)(*block), ctypes.byref(code), ctypes.addressof(self.err), 200)
        return rc, code


def test_errors() -> None:
    t = Table()
    assert t.load(1, b"\x7fELF" + bytes(60))[0] == 209
    assert b"PTX" in t.err.value
    assert t.load(1, fatbin((2, 90, 0, b"\x7fELF", 0)))[0] == 209
    assert t.load(1, b"no image at all")[0] == t.load(1, b"")[0] == 200
    assert t.load(1, fatbin((1, 80, 0x2000, b"broken", 100)))[0] == 200
    assert t.load(1, (HEAD + ".visible .entry k( {").encode())[0] == 218
    assert t.load(2, STORE.replace("%s", "frobnicate.b32 %r, %r;").encode())[0] == 0
    assert t.get(2, 0, 32, 1, 1)[0] == 801
    assert b"frobnicate.b32" in t.err.value
    assert t.load(3, STORE.replace("%s", "add.u32 %r, %nothere, 1;").encode())[0] == 0
    assert t.get(3, 0, 32, 1, 1)[0] == 218
    assert t.get(3, 5, 32, 1, 1)[0] == 1 and t.get(9, 0, 32, 1, 1)[0] == 1 and t.get(3, 0, 2048, 1, 1)[0] == 1
    t.bridge.table.module_unload(None, 3)
    assert t.get(3, 0, 32, 1, 1)[0] == 1


def test_metadata_and_initial_values() -> None:
    text = HEAD + """.visible .global .align 4 .u32 one = 17;
    .visible .const .align 8 .f64 halves[3] = {0d3FE0000000000000, 0d3FF8000000000000};
    .visible .global .align 8 .u64 where[2] = {one, generic(halves)+8};
    .visible .global .align 1 .b8 bytes[6] = {1, 2, 255, 4};
    .visible .entry k(.param .u8 a, .param .align 16 .b8 s[24], .param .u16 h) .maxntid 64, 2, 1
    { .shared .align 8 .b8 x[40]; .local .align 4 .b8 y[12]; ret; }
    .visible .entry q() .reqntid 8 { ret; }"""
    t = Table()
    rc, blob = t.load(1, text.encode())
    assert rc == 0
    magic, version, flags, kernels, params, variables, strings, _ = struct.unpack_from("<8I", blob)
    assert (magic, version, flags, kernels, params, variables) == (0x4154454D, 1, 1, 2, 3, 4)
    first = struct.unpack_from("<16I", blob, 32)
    assert first[1:8] == (0, 3, 42, 128, 40, 24, 12)
    second = struct.unpack_from("<16I", blob, 96)
    assert second[4] == 8 and second[11:14] == (8, 1, 1)
    assert [struct.unpack_from("<2I", blob, 160 + 8 * i) for i in range(3)] == [(0, 1), (16, 24), (40, 2)]
    assert blob[-strings:].split(b"\0")[:3] == [b"k", b"q", b"one"]
    k = Kernels(text)
    assert k.read("one", np.uint32, 1)[0] == 17
    assert list(k.read("halves", np.float64, 3)) == [0.5, 1.5, 0]
    assert list(k.read("where", np.uint64, 2)) == [k.addresses["one"], k.addresses["halves"] + 8]
    assert list(k.read("bytes", np.uint8, 6)) == [1, 2, 255, 4, 0, 0]


def test_cache_is_used_and_damage_is_repaired(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUVIRT_CACHE", str(tmp_path))
    compiled: list[int] = []
    real = jit.compile_object

    def counting(text: str, level: int) -> bytes:
        compiled.append(level)
        return real(text, level)

    monkeypatch.setattr(jit, "compile_object", counting)
    image = STORE.replace("%s", "").encode()
    assert value_of(image) == 7 and len(compiled) == 1
    assert value_of(image) == 7 and len(compiled) == 1
    (entry,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    entry.write_bytes(data)
    assert value_of(image) == 7 and len(compiled) == 2
    assert value_of(image) == 7 and len(compiled) == 2
    monkeypatch.setenv("GPUVIRT_CACHE", "/dev/null/nowhere")
    assert value_of(image) == 7 and len(compiled) == 3


def test_large_code_is_compiled_without_the_terminal_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And is right; what is smaller is compiled with it again."""
    rule: list[str] = []
    real = target.llvm.set_option
    monkeypatch.setattr(target.llvm, "set_option", lambda name, option: rule.append(option) or real(name, option))
    image = STORE.replace("%s", "").encode()
    for place, large in enumerate((1, jit.LARGE, jit.LARGE)):
        monkeypatch.setenv("GPUVIRT_CACHE", str(tmp_path / str(place)))
        monkeypatch.setattr(jit, "LARGE", large)
        assert value_of(image) == 7
    assert rule == ["--terminal-rule=0", "--terminal-rule=1"]


def test_one_compilation_for_many_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUVIRT_CACHE", str(tmp_path))
    compiled: list[int] = []
    real = jit.compile_object
    monkeypatch.setattr(jit, "compile_object", lambda text, level: compiled.append(level) or real(text, level))
    compiler = Compiler()
    compiler.module_load(1, STORE.replace("%s", "").encode())
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(compiler.kernel_get(1, 0, (64, 1, 1)).entry)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 6 and len(set(found)) == 1 and len(compiled) == 1


def test_the_cache_key_covers_every_source(tmp_path: Path) -> None:
    """Object code is not reused after a change of any source, whichever sub-package it lies in."""
    root = Path(abi.__file__).parent
    assert own_version() == digest_of_sources(root)
    copy = tmp_path / "soft"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("__pycache__"))
    seen = [digest_of_sources(copy)]
    assert seen == [own_version()]
    folders = sorted({path.parent for path in copy.rglob("*.py")})
    assert {"analysis", "codegen", "host", "ops", "ptx"} <= {folder.name for folder in folders}
    for folder in folders:
        for path in sorted(folder.glob("*.py")):
            path.write_bytes(path.read_bytes() + b"# changed\n")
            seen.append(digest_of_sources(copy))
    (copy / "ops" / "new.py").touch()
    seen.append(digest_of_sources(copy))
    (copy / "ops" / "new.py").rename(copy / "ptx" / "new.py")
    seen.append(digest_of_sources(copy))
    assert len(set(seen)) == len(seen)


def test_abi_mirror() -> None:
    header = (NATIVE / "backend" / "soft" / "engine" / "kernel_abi.h").read_text()
    version = re.search(r"SOFT_ABI_VERSION (\d+)u", header)
    assert version and int(version.group(1)) == abi.VERSION
    offsets = {name: int(offset) for name, offset in re.findall(r"(\w+)(?:\[3\])?;\s*/\*\s*(\d+)[:\s]", header)}
    offsets.pop("reserved0", None)
    assert offsets == abi.OFFSETS
    for helper in jit.HELPERS:
        assert re.search(rf"\b{helper}\(", header), helper


@pytest.mark.parametrize(
    "text",
    [
        ".visible .entry k() { ret; } .visible .entry j() { ret; }",
        ".visible .entry k(){ret;} .visible .entry j(.param .u64 p)\n{\nret;\n}\n",
        ".visible .entry k()\n{ ret; }\n.visible .entry j()\n{ { ret; } }",
        ".func f() { ret; } .visible .entry k() { ret; } .visible .entry j()\n{\nret;\n}\n",
    ],
)
def test_functions_on_one_line(text: str) -> None:
    """A function that ends on the line that it began on does not take the next one with it."""
    assert [k.name for k in Module(HEAD + text).kernels] == ["k", "j"]


def test_variable_behind_a_function_on_one_line() -> None:
    module = Module(HEAD + ".func f() { ret; } .visible .global .u32 t[2] = { 1,\n2\n};\n.visible .entry k()\n{\nret;\n}\n")
    assert [v.name for v in module.globals] == ["t"] and [k.name for k in module.kernels] == ["k"]


def test_a_declaration_needs_no_semicolon() -> None:
    """A driver takes it, and XLA has such texts: what follows is not lost."""
    declared = ".extern .func outside\n(\n    .param .b64 a,\n    .param .b32 b\n)\n\n"
    module = Module(HEAD + declared + ".visible .entry k(.param .u64 p)\n.maxntid 32, 1, 1\n{\nret;\n}\n")
    assert [k.name for k in module.kernels] == ["k"] and [p.size for p in module.funcs["outside"].params] == [8, 4]
    assert "maxntid" in module.funcs["k"].directives and not module.funcs["outside"].directives.strip()


def test_the_same_text_makes_the_same_ir_in_every_process() -> None:
    """Nothing in the IR follows the order of a set, which differs from process to process: builds can be compared."""
    names = [f"f{i}" for i in range(12)]
    functions = "\n".join(f".func {name}() {{ ret; }}" for name in names)
    calls = "\n".join(f"{{ call {name}, (); }}" for name in names)
    text = f".version 8.0\n.target sm_90\n.address_size 64\n{functions}\n.visible .entry k() {{ {calls} ret; }}"
    code = (
        "import sys\nfrom gpuvirt.soft.ptx.module import Module\nfrom gpuvirt.soft.pipeline import translate\n"
        "print(translate(Module(sys.argv[1]), 'k', (32, 1, 1))[0])"
    )
    made = {
        subprocess.run([sys.executable, "-c", code, text], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2", "3")
    }
    assert len(made) == 1 and all(f"f.{name}" in next(iter(made)) for name in names)


def test_vectors_of_registers() -> None:
    """Declared as one, in an inner scope too; named by their parts, or as a whole where an instruction takes a vector."""
    text = HEAD + """.visible .entry k(.param .u64 o) { .reg .b32 %r<4>; .reg .b64 %q<3>; .reg .v4 .u32 all, other<2>; ld.param.u64 %q0, [o];
    mov.u32 all.x, 1; mov.u32 all.g, 2; add.u32 all.z, all.x, all.y; mov.u32 all.w, 9; st.global.v4.u32 [%q0], all;
    { .reg .v2 .u32 all; mov.u32 all.r, 7; mov.u32 all.y, 8; mov.b64 %q1, {all.x, all.g}; st.global.u64 [%q0+16], %q1; }
    ld.global.v4.u32 other1, [%q0]; st.global.u32 [%q0+24], other1.b; st.global.u32 [%q0+28], all.a; ret; }"""
    out = np.zeros(8, np.uint32)
    Kernels(text).launch("k", 1, 1, out)
    assert out.tolist() == [1, 2, 3, 9, 7, 8, 3, 9]
