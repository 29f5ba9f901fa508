"""Several PTX modules linked to one, and run."""

from __future__ import annotations

import numpy as np
import pytest

from gpuvirt.soft.errors import LinkFailed
from gpuvirt.soft.harness import Kernels
from gpuvirt.soft.link import Input, link, merge

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


def test_two_definitions() -> None:
    with pytest.raises(LinkFailed, match="multiple definitions of 'bias', in 'input 2' and 'input 3'"):
        merge([MAIN, LIBRARY, LIBRARY])


@pytest.mark.parametrize("name", ["scale", "bias"])
def test_undefined(name: str) -> None:
    without = LIBRARY.replace(f" {name}", f" other_{name}")
    with pytest.raises(LinkFailed, match=f"undefined reference to '{name}'"):
        merge([MAIN, without])


def test_alone() -> None:
    with pytest.raises(LinkFailed, match="undefined"):
        merge([MAIN])
    assert values(link([Input(1, "both", merge([MAIN, LIBRARY]).encode())]).decode()) == EXPECTED
    with pytest.raises(LinkFailed, match="nothing"):
        link([])
