"""Several PTX modules linked to one, and run."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from soft.kernels import Kernels

from gpuvirt.soft.errors import BadImage, LinkFailed, NoPtx, Unsupported
from gpuvirt.soft.ptx.linker import Input, link, merge

HEAD = ".version {}\n.target sm_{}\n.address_size 64\n"
OLD, NEW = HEAD.format("7.0", "75"), HEAD.format("8.7", "90a")

# A kernel that calls what another module has: a function, a global it adds, a constant table.
MAIN = (
    NEW
    + """
.extern .func (.param .b32 r) scale(.param .b32 x);
.extern .global .align 4 .u32 bias;
.global .align 4 .u32 own = 1000;  // every module has one of its own
.visible .entry k(.param .u64 out, .param .u32 n)
{
  .reg .b32 %r<8>; .reg .b64 %q<6>;
  ld.param.u64 %q0, [out];
  mov.u32 %r0, %tid.x;
  { .param .b32 a; .param .b32 b;
    st.param.b32 [a], %r0;
    call (b), scale, (a);
    ld.param.b32 %r1, [b]; }
  ld.global.u32 %r2, [bias];
  ld.global.u32 %r3, [own];
  add.u32 %r1, %r1, %r2;
  add.u32 %r1, %r1, %r3;
  mad.wide.u32 %q1, %r0, 4, %q0;
  st.global.u32 [%q1], %r1;
  ret;
}
"""
)
LIBRARY = (
    OLD
    + """
.visible .global .align 4 .u32 bias = 7;
.global .align 4 .u32 own = 50;
.func (.param .b32 r) helper(.param .b32 x)
{
  .reg .b32 %r<4>; ld.param.b32 %r0, [x]; ld.global.u32 %r1, [own]; add.u32 %r0, %r0, %r1; st.param.b32 [r], %r0; ret;
}
.visible .func (.param .b32 r) scale(.param .b32 x)
{
  .reg .b32 %r<4>; ld.param.b32 %r0, [x];
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r0; call (b), helper, (a); ld.param.b32 %r0, [b]; }
  mul.lo.u32 %r0, %r0, 3; st.param.b32 [r], %r0; ret;
}
"""
)
WEAK = (
    OLD
    + """
.weak .func (.param .b32 r) scale(.param .b32 x)
{
  .reg .b32 %r<4>; mov.u32 %r0, 1; st.param.b32 [r], %r0; ret;
}
.weak .global .align 4 .u32 bias = 1;
"""
)

LIBRARY_OF_DRIVER = (
    OLD
    + """
.extern .func cnpOfTheDriver();
.visible .entry parent()
{
  call cnpOfTheDriver; ret;
}
"""
)


def values(text: str) -> list[int]:
    out = np.zeros(4, np.uint32)
    Kernels(text).launch("k", 1, 4, out, np.uint32(4))
    return out.tolist()


EXPECTED = [3 * (i + 50) + 7 + 1000 for i in range(4)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_function_global_and_private_names(order: tuple[int, int]) -> None:
    parts = (MAIN, LIBRARY)
    assert values(merge([parts[i] for i in order])) == EXPECTED


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0), (2, 0, 1)])
def test_weak_gives_way(order: tuple[int, int, int]) -> None:
    parts = (MAIN, LIBRARY, WEAK)
    assert values(merge([parts[i] for i in order])) == EXPECTED


def test_first_weak_stays() -> None:
    other = WEAK.replace("%r0, 1;", "%r0, 2;").replace("bias = 1", "bias = 2")
    assert values(merge([MAIN, WEAK, other])) == [1 + 1 + 1000] * 4
    assert values(merge([MAIN, other, WEAK])) == [2 + 2 + 1000] * 4


def test_names_in_comments_and_strings_stay() -> None:
    quoted = LIBRARY.replace(".visible .func", '// own\n.file 1 "own.cu"\n.visible .func', 1)
    assert '"own.cu"' in merge([MAIN, quoted]) and values(merge([MAIN, quoted])) == EXPECTED


def test_private_functions_of_one_name() -> None:
    other = MAIN.replace(" k(", " unused(").replace(".extern .func (.param .b32 r) scale(.param .b32 x);", "").replace("scale", "helper")
    other = other.replace(".global .align 4 .u32 own", ".func (.param .b32 r) helper(.param .b32 x)\n{ .reg .b32 %r<2>; mov.u32 %r0, 9; "
                          "st.param.b32 [r], %r0; ret; }\n.global .align 4 .u32 own")  # fmt: skip
    assert values(merge([MAIN, LIBRARY, other])) == EXPECTED


def test_newest_version_and_target() -> None:
    text = merge([LIBRARY, MAIN])
    assert text.startswith(".version 8.7\n.target sm_90a\n") and text.count(".version") == 1 and text.count(".target") == 1


def test_the_target_is_that_of_the_kernels() -> None:
    """The device runtime that nvcc links to programs is for sm_121: CUB, told so by its kernels, finds no policy for what it was compiled for."""
    runtime = HEAD.format("9.3", "121") + ".entry fill() { ret; }\n"
    merged = merge([MAIN, LIBRARY, runtime])
    assert ".target sm_90a\n" in merged and ".version 9.3\n" in merged


def test_two_definitions() -> None:
    with pytest.raises(LinkFailed, match="multiple definitions of 'bias', in 'input 2' and 'input 3'"):
        merge([MAIN, LIBRARY, LIBRARY])


@pytest.mark.parametrize("name", ["scale", "bias"])
def test_undefined(name: str) -> None:
    without = LIBRARY.replace(f" {name}", f" other_{name}")
    with pytest.raises(LinkFailed, match=f"undefined reference to '{name}'"):
        merge([MAIN, without])


def test_launches_from_kernels() -> None:
    """What only a driver has may be missing, as the device runtime library needs more of it than anybody calls. A kernel that comes to it says so."""
    text = merge([MAIN, LIBRARY, LIBRARY_OF_DRIVER])
    assert values(text) == EXPECTED
    with pytest.raises(Unsupported, match="'cnpOfTheDriver' is not supported"):
        Kernels(text).launch("parent", 1, 1)


def test_alone() -> None:
    with pytest.raises(LinkFailed, match="undefined"):
        merge([MAIN])
    assert values(link([Input(1, "both", merge([MAIN, LIBRARY]).encode())]).decode()) == EXPECTED
    with pytest.raises(LinkFailed, match="nothing"):
        link([])


def fatbin(*entries: tuple[int, int, bytes]) -> bytes:
    """kind, arch, payload of each entry."""
    body = b""
    for kind, arch, data in entries:
        data += bytes(-len(data) % 8)
        body += struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(data), 0, 0, 0, 0, arch, 0, 0, 0, 0, 0).ljust(64, b"\0") + data
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A static library of the host's, as nvcc -lib makes them: three objects with device code of which a program needs two, and one without."""
    unwanted = LIBRARY.replace("scale", "unwanted").replace("bias", "unwanted_bias").replace(".visible .global", ".extern .func nowhere();\n.visible .global")
    unwanted = unwanted.replace("ld.param.b32 %r0, [x];", "call nowhere; ld.param.b32 %r0, [x];")
    middle = OLD + LIBRARY[LIBRARY.index(".visible .func") :].replace("helper", "deep").replace(
        ".visible .func", ".extern .func (.param .b32 r) deep(.param .b32 x);\n.visible .func", 1
    )
    deep = LIBRARY.replace(".func (.param .b32 r) helper", ".visible .func (.param .b32 r) deep")
    deep = deep[: deep.index(".visible .func (.param .b32 r) scale")]
    for name, text in (("unwanted", unwanted), ("middle", middle), ("deep", deep), ("plain", "")):
        source, code = tmp_path / f"{name}.s", tmp_path / f"{name}.fatbin"
        code.write_bytes(fatbin((2, 90, b"machine code"), (1, 75, text.encode())))
        source.write_text(f'.section __nv_relfatbin, "a"\n.incbin "{code}"\n' if text else ".data\n.long 7\n")
        subprocess.run(["gcc", "-c", source, "-o", tmp_path / f"a_rather_long_name_{name}.o"], check=True)
    target = tmp_path / "libparts.a"
    subprocess.run(["ar", "rc", target, *sorted(tmp_path.glob("*.o"))], check=True)
    return target


def test_library(library: Path) -> None:
    """Its members come in when somebody needs them, and only then: one would not link."""
    main = Input(1, "main.ptx", MAIN.encode())
    text = link([main, Input(4, "libparts.a", library.read_bytes())]).decode()
    assert values(text.rstrip("\0")) == EXPECTED and "unwanted" not in text
    one = library.with_name("a_rather_long_name_middle.o").read_bytes()
    with pytest.raises(LinkFailed, match=r"undefined reference to 'bias' in 'main\.ptx'"):
        link([main, Input(3, "middle.o", one)])
    with pytest.raises(NoPtx, match=r"input 'plain\.o' cannot be linked: this host code holds no device code"):
        link([main, Input(3, "plain.o", library.with_name("a_rather_long_name_plain.o").read_bytes())])


def test_what_cannot_be_linked_is_named() -> None:
    for data, why in ((b"BC\xc0\xde", "neither PTX"), (fatbin((2, 90, b"x")), "no PTX"), (b"\x7fELF" + bytes(14) + b"\xbe\0" + bytes(60), "machine code")):
        with pytest.raises((NoPtx, BadImage), match=f"input 'odd' cannot be linked: .*{why}"):
            link([Input(0, "odd", data)])
    with pytest.raises(NoPtx, match="NVVM or LTO"):
        link([Input(5, "odd", MAIN.encode())])


GRID = (
    NEW
    + """
.extern .func (.param .b64 r) __cuda_syscall_CGS_get_intrinsic_handle(.param .b32 scope);
.extern .func (.param .b32 r) __cuda_syscall_CGS_sync(.param .b64 handle, .param .b32 flags);
.visible .entry k(.param .u64 data, .param .u32 rounds)
{
  .reg .b32 %r<12>; .reg .b64 %q<8>; .reg .pred %p;
  ld.param.u64 %q0, [data];
  ld.param.u32 %r9, [rounds];
  { .param .b32 a; .param .b64 b; st.param.b32 [a], 1; call (b), __cuda_syscall_CGS_get_intrinsic_handle, (a); ld.param.b64 %q3, [b]; }
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %nctaid.x;
  mad.lo.u32 %r4, %r1, %r2, %r0;  // me
  mul.lo.u32 %r5, %r2, %r3;       // of so many
  add.u32 %r6, %r4, 1;
  rem.u32 %r6, %r6, %r5;          // my neighbour, perhaps in another block
  mad.wide.u32 %q1, %r4, 4, %q0;
  mad.wide.u32 %q2, %r6, 4, %q0;
again:
  ld.global.u32 %r7, [%q2];
  { .param .b64 a; .param .b32 f; .param .b32 b; st.param.b64 [a], %q3; st.param.b32 [f], 0;
    call (b), __cuda_syscall_CGS_sync, (a, f); ld.param.b32 %r8, [b]; }
  add.u32 %r7, %r7, 1;
  st.global.u32 [%q1], %r7;
  { .param .b64 a; .param .b32 f; .param .b32 b; st.param.b64 [a], %q3; st.param.b32 [f], 0;
    call (b), __cuda_syscall_CGS_sync, (a, f); ld.param.b32 %r8, [b]; }
  sub.u32 %r9, %r9, 1;
  setp.ne.u32 %p, %r9, 0;
  @%p bra again;
  ret;
}
"""
)


@pytest.mark.parametrize("blocks", [1, 5])
def test_a_grid_waits_by_what_the_driver_provides(blocks: int) -> None:
    data = np.arange(blocks * 96, dtype=np.uint32)
    expected = data.copy()
    for _ in range(7):
        expected = np.roll(expected, -1) + 1
    Kernels(link([Input(1, "grid.ptx", GRID.encode())])).launch("k", blocks, 96, data, np.uint32(7), cooperative=True)
    assert data.tolist() == expected.tolist()
