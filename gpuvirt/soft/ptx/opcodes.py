"""The table of what is supported: for every opcode its types and modifiers.

The emitter asks it before each instruction, so that a modifier nobody has thought of is an error that names it and not something silently left out;
the page in docs/ is generated from it, and the tests hold it against what they run. A type or modifier here does not go with every other one: what is
left is refused where the instruction is emitted.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from gpuvirt.soft.ptx.types import TYPES


class Forms(NamedTuple):
    """What may stand behind an opcode."""

    types: frozenset[str]
    mods: frozenset[str]


_I = "u16 s16 u32 s32 u64 s64"
_B = "b16 b32 b64"
_F = "f16 f16x2 bf16 bf16x2 f32 f64"
_ROUND = "rn rz rm rp"
_INT_COMPARE = "eq ne lt le gt ge lo ls hi hs"
_COMPARE = f"{_INT_COMPARE} equ neu ltu leu gtu geu num nan"
_SPACES = "global shared local const param shared::cta shared::cluster param::entry param::func"
_ORDER = "weak relaxed acquire release acq_rel volatile mmio sc cta cluster gpu sys"
_CACHE = "ca cg cs lu cv wb wt nc"
_SHAPES = "m8n8k4 m8n8k16 m8n8k32 m8n8k128 m16n8k4 m16n8k8 m16n8k16 m16n8k32 m16n8k64 m16n8k128 m16n8k256"
_SELECT = "sat add"

_TABLE = f"""
abs        | s16 s32 s64 {_F} | ftz
activemask | b32 |
add        | {_I} u16x2 s16x2 {_F} f32x2 | {_ROUND} ftz sat cc
addc       | u32 s32 u64 s64 | cc
alloca     | u64 |
and        | {_B} pred |
applypriority | | global L2::evict_normal
atom       | {_B} b128 u32 s32 u64 s64 {_F} | {_SPACES} {_ORDER} add min max and or xor exch cas inc dec noftz v2 v4 v8
bar        | u32 pred | sync arrive red warp cta popc and or aligned
barrier    | u32 pred | sync arrive red cta cluster popc and or aligned wait relaxed acquire release
bfe        | u32 s32 u64 s64 |
bfi        | b32 b64 |
bfind      | u32 s32 u64 s64 | shiftamt
bmsk       | b32 | clamp wrap
bra        | | uni
brev       | b32 b64 |
brkpt      | |
brx        | | idx uni
call       | | uni
clz        | b32 b64 |
cnot       | {_B} |
copysign   | f32 f64 |
cos        | f32 | approx ftz
cp         | b32 b64 u32 s32 u64 s64 f16 bf16 f32 f64 | async ca cg global shared shared::cta shared::cluster commit_group wait_group \
wait_all bulk \
tensor reduce mbarrier arrive noinc b64 mbarrier::complete_tx::bytes bulk_group prefetch L2 tile 1d 2d 3d 4d 5d read multicast::cluster cp_mask \
add min max and or xor inc dec noftz
createpolicy | b64 | fractional range global cvt L2
cvt        | u8 s8 {_I} f16 bf16 f32 f64 tf32 b32 f16x2 bf16x2 e4m3x2 e5m2x2 e2m3x2 e3m2x2 e2m1x2 ue8m0x2 | {_ROUND} rna rni rzi rmi rpi \
ftz sat relu \
satfinite pack
cvta       | u64 | to {_SPACES}
discard    | | global L2
div        | {_I} f32 f64 | {_ROUND} ftz approx full
dp2a       | u32 s32 | lo hi
dp4a       | u32 s32 |
elect      | | sync
ex2        | f16 f16x2 bf16 bf16x2 f32 | approx ftz
exit       | |
fence      | | {_ORDER} proxy alias async async.global async::generic tensormap::generic mbarrier_init global shared::cta shared::cluster \
sync_restrict::shared::cta sync_restrict::shared::cluster
fma        | {_F} f32x2 | {_ROUND} ftz sat relu
fns        | b32 |
getctarank | u32 u64 | shared::cluster
griddepcontrol | | launch_dependents wait
isspacep   | | {_SPACES}
ld         | b8 u8 s8 {_B} b128 {_I} f32 f64 | {_SPACES} {_ORDER} {_CACHE} v2 v4 v8 unified
ldmatrix   | b16 | sync aligned m8n8 x1 x2 x4 trans shared shared::cta
ldu        | b8 u8 s8 {_B} {_I} f32 f64 | global v2 v4
lg2        | f32 | approx ftz
lop3       | b32 | and or
mad        | {_I} f32 f64 | lo hi wide sat cc {_ROUND} ftz
mad24      | u32 s32 | lo hi sat
madc       | u32 s32 u64 s64 | lo hi cc
mapa       | u32 u64 | shared::cluster
match      | b32 b64 | any all sync
max        | {_I} u16x2 s16x2 {_F} | ftz NaN xorsign abs relu
mbarrier   | b64 | init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait pending_count parity noComplete {_ORDER} \
shared shared::cta shared::cluster
membar     | | cta gl sys
min        | {_I} u16x2 s16x2 {_F} | ftz NaN xorsign abs relu
mma        | f16 bf16 tf32 f32 f64 s8 u8 s32 | sync aligned row col {_SHAPES} e4m3 e5m2 e2m1 e2m3 e3m2 s4 u4 b1 and xor popc satfinite kind::f8f6f4
mov        | b8 {_B} b128 {_I} f16 bf16 f32 f64 pred |
movmatrix  | b16 | sync aligned m8n8 trans
mul        | {_I} {_F} f32x2 | lo hi wide {_ROUND} ftz sat
mul24      | u32 s32 | lo hi
nanosleep  | u32 |
neg        | s16 s32 s64 {_F} | ftz
not        | {_B} pred |
or         | {_B} pred |
pmevent    | | mask
popc       | b32 b64 |
prefetch   | | global local L1 L2 tensormap const param L2::evict_last L2::evict_normal
prefetchu  | | L1
prmt       | b32 | f4e b4e rc8 ecl ecr rc16
rcp        | f32 f64 | {_ROUND} approx ftz
red        | b32 b64 u32 s32 u64 s64 {_F} | {_SPACES} {_ORDER} add min max and or xor inc dec noftz v2 v4 v8 async mbarrier::complete_tx::bytes
redux      | u32 s32 b32 f32 | sync add min max and or xor abs NaN
rem        | {_I} |
ret        | | uni
rsqrt      | f32 f64 | approx ftz
sad        | {_I} |
selp       | {_B} {_I} f16 f32 f64 |
set        | {_B} {_I} f16 f16x2 bf16 bf16x2 f32 f64 | {_COMPARE} and or xor ftz
setmaxnreg | u32 | inc dec sync aligned
setp       | {_B} {_I} f16 f16x2 bf16 bf16x2 f32 f64 | {_COMPARE} and or xor ftz
shf        | b32 | l r clamp wrap
shfl       | b32 | sync idx up down bfly
shl        | {_B} |
shr        | {_B} {_I} |
sin        | f32 | approx ftz
slct       | {_B} {_I} f32 f64 | ftz
sqrt       | f32 f64 | {_ROUND} approx ftz
st         | b8 u8 s8 {_B} b128 {_I} f32 f64 | {_SPACES} {_ORDER} {_CACHE} v2 v4 v8 async bulk mbarrier::complete_tx::bytes
stackrestore | u64 |
stacksave  | u64 |
stmatrix   | b16 | sync aligned m8n8 x1 x2 x4 trans shared shared::cta
sub        | {_I} {_F} f32x2 | {_ROUND} ftz sat cc
subc       | u32 s32 u64 s64 | cc
szext      | u32 s32 | clamp wrap
tanh       | f16 f16x2 bf16 bf16x2 f32 | approx
tensormap  | b32 b64 | replace tile cp_fenceproxy global_address rank box_dim global_dim global_stride element_stride elemtype \
interleave_layout swizzle_mode \
fill_mode global shared shared::cta b1024 tensormap::generic release cta cluster gpu sys sync aligned
testp      | f32 f64 | finite infinite number notanumber normal subnormal
tex        | u32 s32 f32 | 1d v4
trap       | |
vabsdiff   | u32 s32 | sat add min max
vadd       | u32 s32 | sat add min max
vmad       | u32 s32 | sat po shr7 shr15
vmax       | u32 s32 | sat add min max
vmin       | u32 s32 | sat add min max
vote       | pred b32 | sync all any uni ballot
vset       | u32 s32 | eq ne lt le gt ge add min max
vshl       | u32 s32 | sat add min max clamp wrap
vshr       | u32 s32 | sat add min max clamp wrap
vsub       | u32 s32 | sat add min max
{chr(10).join(f"{name}{n} | u32 s32 | {_SELECT}" for name in ("vabsdiff", "vadd", "vavrg", "vmax", "vmin", "vsub") for n in (2, 4))}
{chr(10).join(f"vset{n} | u32 s32 | add eq ne lt le gt ge" for n in (2, 4))}
wmma       | f16 bf16 tf32 f32 f64 s8 u8 s32 | load store mma a b c d sync aligned row col m16n16k16 m8n32k16 m32n8k16 m16n16k8 m8n8k4 \
global shared \
shared::cta satfinite rn
xor        | {_B} pred |
"""


def _read() -> dict[str, Forms]:
    out = {}
    for line in _TABLE.replace("\\\n", "").strip().splitlines():
        name, types, mods = (part.split() for part in line.split("|"))
        out[name[0]] = Forms(frozenset(types), frozenset(mods))
    return out


FORMS = _read()
# Hints that change nothing that a program could see.
_HINTS = ("L1::", "L2::", "level::")


@cache
def unknown(op: str, mods: tuple[str, ...]) -> str | None:
    """The first modifier that the opcode does not have; None when it has them all."""
    if op not in FORMS:
        return None
    forms = FORMS[op]
    for mod in mods:
        if mod in forms.types or mod in forms.mods or mod.startswith(_HINTS):
            continue
        return mod
    return None


__all__ = ["FORMS", "TYPES", "Forms", "unknown"]
