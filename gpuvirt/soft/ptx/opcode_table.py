"""The table of opcodes: what is supported, and all that the compiler knows of it. opcodes.py says what the words mean, and reads it.

A row is a name with its traits, lines for modifiers with which traits differ (the first that fits counts), the function that emits it with a line of
documentation, and the types and modifiers. The columns are

    name | result | carry | varies | access | sync | polls | flow | formula | denormals

and no column has a default: `-` is a statement.
"""

from __future__ import annotations

_I = "u16 s16 u32 s32 u64 s64"
_B = "b16 b32 b64"
_F = "f16 f16x2 bf16 bf16x2 f32 f64"
_ROUND = "rn rz rm rp"
_INT_COMPARE = "eq ne lt le gt ge lo ls hi hs"
_COMPARE = f"{_INT_COMPARE} equ neu ltu leu gtu geu num nan"
_SPACES = "global shared local const param shared::cta shared::cluster param::entry param::func"
_ORDER = "weak relaxed acquire release acq_rel volatile mmio sc cta cluster gpu sys"
_CACHE = "ca cg cs lu cv wb wt nc"
_WGMMA = " ".join(f"m64n{n}k{k}" for k in (8, 16, 32, 64, 256) for n in range(8, 257, 8))
_TCGEN05 = "kind::f16 kind::tf32 kind::f8f6f4 kind::i8 kind::mxf8f6f4 kind::mxf4 kind::mxf4nvf4"
_TIMES = "x1 x2 x4 x8 x16 x32 x64 x128"
_COLLECTOR = " ".join(f"collector::{which}::{what}" for which in ("a", "b0", "b1", "b2", "b3") for what in ("fill", "use", "lastuse", "discard"))
_SHAPES = "m8n8k4 m8n8k16 m8n8k32 m8n8k128 m16n8k4 m16n8k8 m16n8k16 m16n8k32 m16n8k64 m16n8k128 m16n8k256"
_SELECT = "sat add"
_GEOMETRY = "1d 2d 3d a1d a2d cube acube"
_SURFACE = "1d 2d 3d a1d a2d trap clamp zero"

TABLE = f"""
# Control flow
bra                                  | none   | -      | -         | -      | -        | -       | jump     | -        | -
    - | goes to a label
    | uni
brx                                  | none   | -      | -         | -      | -        | -       | indexed  | -        | -
    - | goes to the label of a list that a number picks
    | idx uni
ret                                  | none   | -      | -         | -      | -        | -       | return   | -        | -
    - | returns from a function, or ends a kernel's thread
    | uni
# Integer, logic, comparison, moves (add, mul and their like also for floating types)
mov                                  | first  | -      | operands  | -      | -        | -       | masked   | copy     | keeps
    integer:mov | copies a register, a constant, a special register or an address; packs and unpacks vectors
    b8 {_B} b128 {_I} f16 bf16 f32 f64 pred |
cvta                                 | first  | -      | operands  | -      | -        | -       | masked   | address  | -
  .local                             | first  | -      | always    | -      | -        | -       | masked   | address  | -
    integer:cvta | turns an address of a state space into a generic one, or (.to) back
    u64 | to {_SPACES}
add                                  | first  | -      | operands  | -      | -        | -       | masked   | add      | ftz
  .cc                                | first  | writes | operands  | -      | -        | -       | masked   | add      | ftz
    arithmetic:add_sub | a + b; .cc writes the carry
    {_I} u16x2 s16x2 {_F} f32x2 | {_ROUND} ftz sat cc
sub                                  | first  | -      | operands  | -      | -        | -       | masked   | sub      | ftz
  .cc                                | first  | writes | operands  | -      | -        | -       | masked   | sub      | ftz
    arithmetic:add_sub | a - b; .cc writes the carry of a + ~b + 1: whether nothing was borrowed
    {_I} {_F} f32x2 | {_ROUND} ftz sat cc
addc                                 | first  | reads  | operands  | -      | -        | -       | masked   | -        | -
  .cc                                | first  | both   | operands  | -      | -        | -       | masked   | -        | -
    integer:addc | a + b + carry
    u32 s32 u64 s64 | cc
subc                                 | first  | reads  | operands  | -      | -        | -       | masked   | -        | -
  .cc                                | first  | both   | operands  | -      | -        | -       | masked   | -        | -
    integer:addc | a + ~b + carry: a - b, less 1 unless the carry is set
    u32 s32 u64 s64 | cc
mul                                  | first  | -      | operands  | -      | -        | -       | masked   | mul      | ftz
    arithmetic:mul_mad | a * b: the lower or upper half, or (.wide) all of the product
    {_I} {_F} f32x2 | lo hi wide {_ROUND} ftz sat
mad                                  | first  | -      | operands  | -      | -        | -       | masked   | mad      | ftz
  .cc                                | first  | writes | operands  | -      | -        | -       | masked   | mad      | ftz
    arithmetic:mul_mad | a * b + c, with a half or all of the product
    {_I} f32 f64 | lo hi wide sat cc {_ROUND} ftz
mul24                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    arithmetic:mul_mad | the lower 24 bits of a and b multiplied
    u32 s32 | lo hi
mad24                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    arithmetic:mul_mad | the lower 24 bits of a and b multiplied, plus c
    u32 s32 | lo hi sat
madc                                 | first  | reads  | operands  | -      | -        | -       | masked   | -        | -
  .cc                                | first  | both   | operands  | -      | -        | -       | masked   | -        | -
    arithmetic:mul_mad | a * b + c + carry
    u32 s32 u64 s64 | lo hi cc
sad                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:sad | |a - b| + c
    {_I} |
div                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | ftz
    arithmetic:div_rem | a / b
    {_I} f32 f64 | {_ROUND} ftz approx full
rem                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    arithmetic:div_rem | the remainder of a / b
    {_I} |
min                                  | first  | -      | operands  | -      | -        | -       | masked   | choose   | ftz
    arithmetic:min_max | the lesser
    {_I} u16x2 s16x2 {_F} | ftz NaN xorsign abs relu
max                                  | first  | -      | operands  | -      | -        | -       | masked   | choose   | ftz
    arithmetic:min_max | the greater
    {_I} u16x2 s16x2 {_F} | ftz NaN xorsign abs relu
neg                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | keeps
    arithmetic:neg_abs | -a
    s16 s32 s64 {_F} | ftz
abs                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | keeps
    arithmetic:neg_abs | |a|
    s16 s32 s64 {_F} | ftz
and                                  | first  | -      | operands  | -      | -        | -       | masked   | and      | -
    integer:logic | bitwise and
    {_B} pred |
or                                   | first  | -      | operands  | -      | -        | -       | masked   | or       | -
    integer:logic | bitwise or
    {_B} pred |
xor                                  | first  | -      | operands  | -      | -        | -       | masked   | xor      | -
    integer:logic | bitwise exclusive or
    {_B} pred |
not                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:bit_not | bitwise complement
    {_B} pred |
cnot                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:cnot | 1 where a is 0, else 0
    {_B} |
shl                                  | first  | -      | operands  | -      | -        | -       | masked   | shl      | -
    integer:shift | shift left
    {_B} |
shr                                  | first  | -      | operands  | -      | -        | -       | masked   | shr      | -
    integer:shift | shift right: arithmetic for .s types, logical for others
    {_B} {_I} |
shf                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:shf | a funnel shift of two registers
    b32 | l r clamp wrap
lop3                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:lop3 | any bitwise function of three operands, by its truth table
    b32 | and or
popc                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:count_bits | counts ones
    b32 b64 |
clz                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:count_bits | counts leading zeros
    b32 b64 |
brev                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:count_bits | reverses the bits
    b32 b64 |
bfind                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:count_bits | the position of the highest bit that differs from the sign
    u32 s32 u64 s64 | shiftamt
fns                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:fns | the position of the n-th one from a start
    b32 |
bfe                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:bfe | takes a bit field out
    u32 s32 u64 s64 |
bfi                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:bfi | puts a bit field in
    b32 b64 |
bmsk                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:bmsk | a mask of so many ones from a position
    b32 | clamp wrap
szext                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:szext | extends, by zeros or the sign, from so many bits
    u32 s32 | clamp wrap
prmt                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:prmt | picks four bytes of eight
    b32 | f4e b4e rc8 ecl ecr rc16
dp4a                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:dot | four products of bytes, summed
    u32 s32 |
dp2a                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    integer:dot | two products of halves and bytes, summed
    u32 s32 | lo hi
setp                                 | first  | -      | operands  | -      | -        | -       | masked   | compare  | ftz
    compare:setp | compares, into a predicate, or two (p|q)
    {_B} {_I} f16 f16x2 bf16 bf16x2 f32 f64 | {_COMPARE} and or xor ftz
set                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | ftz
    compare:set_ | compares, into a number
    {_B} {_I} f16 f16x2 bf16 bf16x2 f32 f64 | {_COMPARE} and or xor ftz
selp                                 | first  | -      | operands  | -      | -        | -       | masked   | choose   | keeps
    compare:selp | one of two values, by a predicate
    {_B} {_I} f16 f32 f64 |
slct                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | ftz
    compare:slct | one of two values, by a number's sign
    {_B} {_I} f32 f64 | ftz
# Floating point
fma                                  | first  | -      | operands  | -      | -        | -       | masked   | fma      | ftz
    floating:fma_op | a * b + c, rounded once
    {_F} f32x2 | {_ROUND} ftz sat relu
copysign                             | first  | -      | operands  | -      | -        | -       | masked   | -        | keeps
    floating:copysign | b with the sign of a
    f32 f64 |
testp                                | first  | -      | operands  | -      | -        | -       | masked   | -        | keeps
    floating:testp | asks of what class a floating number is
    f32 f64 | finite infinite number notanumber normal subnormal
# Special functions
rcp                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | ftz
    transcendental:special | 1 / a
    f32 f64 | {_ROUND} approx ftz
sqrt                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | ftz
    transcendental:special | the square root
    f32 f64 | {_ROUND} approx ftz
rsqrt                                | first  | -      | operands  | -      | -        | -       | masked   | -        | ftz
    transcendental:special | 1 / the square root
    f32 f64 | approx ftz
ex2                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | ftz
    transcendental:special | 2 to the power of a
    f16 f16x2 bf16 bf16x2 f32 | approx ftz
lg2                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | ftz
    transcendental:special | the logarithm to base 2
    f32 | approx ftz
sin                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | ftz
    transcendental:special | the sine
    f32 | approx ftz
cos                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | ftz
    transcendental:special | the cosine
    f32 | approx ftz
tanh                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | ftz
    transcendental:special | the hyperbolic tangent
    f16 f16x2 bf16 bf16x2 f32 | approx
# Conversion
cvt                                  | first  | -      | operands  | -      | -        | -       | masked   | convert  | converts
    convert:cvt | converts between types, rounding or saturating
    u8 s8 {_I} f16 bf16 f32 f64 tf32 b32 f16x2 bf16x2 e4m3x2 e5m2x2 e2m3x2 e3m2x2 e2m1x2 ue8m0x2 e4m3x4 e5m2x4 e2m3x4 e3m2x4 e2m1x4 | \
        {_ROUND} rna rs rni rzi rmi rpi ftz sat relu satfinite pack
# Memory, ordering, hints
ld                                   | first  | -      | operands  | load   | -        | -       | masked   | -        | keeps
  .local                             | first  | -      | always    | load   | -        | -       | masked   | -        | keeps
  .param .param::entry .param::func  | first  | -      | parameter | load   | -        | -       | masked   | -        | keeps
  .volatile .relaxed .acquire .mmio  | first  | -      | operands  | load   | -        | always  | masked   | -        | keeps
    memory:ld | loads
    b8 u8 s8 {_B} b128 {_I} f32 f64 | {_SPACES} {_ORDER} {_CACHE} v2 v4 v8 unified
ldu                                  | first  | -      | operands  | -      | -        | -       | masked   | -        | keeps
    memory:ld | loads what no thread writes meanwhile
    b8 u8 s8 {_B} {_I} f32 f64 | global v2 v4
st                                   | none   | -      | -         | store  | -        | -       | masked   | -        | keeps
  .async .bulk                       | none   | -      | -         | writes | -        | -       | masked   | -        | keeps
    memory:st | stores; .async and .bulk as the asynchronous copies
    b8 u8 s8 {_B} b128 {_I} f32 f64 | {_SPACES} {_ORDER} {_CACHE} v2 v4 v8 async bulk mbarrier::complete_tx::bytes
membar                               | none   | -      | -         | -      | -        | -       | masked   | -        | -
    memory:fence | orders memory accesses (the older form of fence)
    | cta gl sys
fence                                | none   | -      | -         | -      | -        | -       | masked   | -        | -
    memory:fence | orders memory accesses
    | {_ORDER} proxy alias async async.global async::generic tensormap::generic mbarrier_init global shared::cta shared::cluster \
        sync_restrict::shared::cta sync_restrict::shared::cluster
prefetch                             | none   | -      | -         | -      | -        | -       | masked   | -        | -
    memory:ignored | a hint
    | global local L1 L2 tensormap const param L2::evict_last L2::evict_normal
prefetchu                            | none   | -      | -         | -      | -        | -       | masked   | -        | -
    memory:ignored | a hint
    | L1
discard                              | none   | -      | -         | -      | -        | -       | masked   | -        | -
    memory:ignored | a hint: what lies there is not needed any more
    | global L2
applypriority                        | none   | -      | -         | -      | -        | -       | masked   | -        | -
    memory:ignored | a hint
    | global L2::evict_normal
griddepcontrol                       | none   | -      | -         | -      | -        | -       | masked   | -        | -
    memory:ignored | grids that depend on one another: they run one after the other here
    | launch_dependents wait
setmaxnreg                           | none   | -      | -         | -      | -        | -       | masked   | -        | -
    memory:ignored | registers of a warp: has no effect
    u32 | inc dec sync aligned
pmevent                              | none   | -      | -         | -      | -        | -       | masked   | -        | -
    memory:ignored | performance monitor events: has no effect
    | mask
brkpt                                | none   | -      | -         | -      | -        | -       | masked   | -        | -
    memory:ignored | a breakpoint: has no effect
    |
createpolicy                         | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    memory:createpolicy | a cache policy: 0
    b64 | fractional range global cvt L2
isspacep                             | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    memory:isspacep | whether an address is in a state space
    | {_SPACES}
nanosleep                            | none   | -      | -         | -      | sleep    | -       | branched | -        | -
    memory:nanosleep | lets others run for a time
    u32 |
trap                                 | none   | -      | -         | -      | -        | -       | trap     | -        | -
    memory:trap | ends the grid with an error
    |
# Atomics
atom                                 | first  | -      | always    | writes | -        | -       | masked   | -        | adds
  .cas .exch                         | first  | -      | always    | writes | -        | always  | masked   | -        | adds
  .add .or .xor .and                 | first  | -      | always    | writes | -        | neutral | masked   | -        | adds
    atomic:atom | reads, computes and writes as one step, and gives the old value
    {_B} b128 u32 s32 u64 s64 {_F} | {_SPACES} {_ORDER} add min max and or xor exch cas inc dec noftz v2 v4 v8
red                                  | none   | -      | -         | writes | -        | -       | masked   | -        | adds
    atomic:atom | atom without the old value
    b32 b64 u32 s32 u64 s64 {_F} | {_SPACES} {_ORDER} add min max and or xor inc dec noftz v2 v4 v8 async mbarrier::complete_tx::bytes
# Video
vadd                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:arithmetic | adds parts of registers, in 34 bits
    u32 s32 | sat add min max
vsub                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:arithmetic | subtracts parts of registers, in 34 bits
    u32 s32 | sat add min max
vabsdiff                             | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:arithmetic | the absolute difference of parts of registers
    u32 s32 | sat add min max
vmin                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:arithmetic | the lesser of parts of registers
    u32 s32 | sat add min max
vmax                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:arithmetic | the greater of parts of registers
    u32 s32 | sat add min max
vshl                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:shift | shifts a part of a register left
    u32 s32 | sat add min max clamp wrap
vshr                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:shift | shifts a part of a register right
    u32 s32 | sat add min max clamp wrap
vmad                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:multiply | multiplies parts of registers and adds
    u32 s32 | sat po shr7 shr15
vset                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:compare | compares parts of registers
    u32 s32 | eq ne lt le gt ge add min max
vadd2                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | adds two halves
    u32 s32 | {_SELECT}
vadd4                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | adds four bytes
    u32 s32 | {_SELECT}
vsub2                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | subtracts two halves
    u32 s32 | {_SELECT}
vsub4                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | subtracts four bytes
    u32 s32 | {_SELECT}
vavrg2                               | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | the averages of two halves
    u32 s32 | {_SELECT}
vavrg4                               | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | the averages of four bytes
    u32 s32 | {_SELECT}
vabsdiff2                            | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | the absolute differences of two halves
    u32 s32 | {_SELECT}
vabsdiff4                            | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | the absolute differences of four bytes
    u32 s32 | {_SELECT}
vmin2                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | the lesser of two halves
    u32 s32 | {_SELECT}
vmin4                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | the lesser of four bytes
    u32 s32 | {_SELECT}
vmax2                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | the greater of two halves
    u32 s32 | {_SELECT}
vmax4                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | the greater of four bytes
    u32 s32 | {_SELECT}
vset2                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | compares two halves
    u32 s32 | add eq ne lt le gt ge
vset4                                | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    video:simd | compares four bytes
    u32 s32 | add eq ne lt le gt ge
# Warp and barrier
bar                                  | none   | -      | -         | -      | barrier  | -       | branched | -        | -
  .red                               | first  | -      | never     | -      | barrier  | -       | branched | -        | -
  .warp                              | none   | -      | -         | -      | members  | -       | branched | -        | -
  .arrive                            | none   | -      | -         | -      | arrive   | -       | branched | -        | -
    warp:bar | the block's barrier that a warp passes as a whole; .warp: of the lanes that the mask names
    u32 pred | sync arrive red warp cta popc and or aligned
barrier                              | none   | -      | -         | -      | loose    | -       | branched | -        | -
  .red                               | first  | -      | never     | -      | reduce   | -       | branched | -        | -
  .cluster                           | none   | -      | -         | -      | cluster  | -       | branched | -        | -
  .arrive                            | none   | -      | -         | -      | arrive   | -       | branched | -        | -
  .aligned                           | none   | -      | -         | -      | barrier  | -       | branched | -        | -
    warp:bar | the block's barrier that each thread passes for itself, unless .aligned; .cluster: the cluster's
    u32 pred | sync arrive red cta cluster popc and or aligned wait relaxed acquire release
shfl                                 | first  | -      | shuffle   | -      | exchange | -       | masked   | shuffle  | -
    warp:shfl | a value of another lane
    b32 | sync idx up down bfly
vote                                 | first  | -      | members   | -      | exchange | -       | masked   | -        | -
    warp:vote | a predicate of all lanes that the mask names
    pred b32 | sync all any uni ballot
match                                | first  | -      | always    | -      | exchange | -       | masked   | -        | -
  .all                               | first  | -      | members   | -      | exchange | -       | masked   | -        | -
    warp:match | which lanes hold the same value
    b32 b64 | any all sync
redux                                | first  | -      | members   | -      | exchange | -       | masked   | -        | ftz
    warp:redux | a reduction over lanes
    u32 s32 b32 f32 | sync add min max and or xor abs NaN
elect                                | first  | -      | elected   | -      | exchange | -       | masked   | -        | -
    warp:elect | names one lane
    | sync
activemask                           | first  | -      | never     | -      | observe  | -       | masked   | -        | -
    warp:activemask | the lanes that execute it together
    b32 |
# Calls
call                                 | returns | -     | always    | -      | -        | -       | call     | -        | -
    call:call | calls a function, by name or address
    | uni
# Matrix
mma                                  | first  | -      | always    | -      | warp     | -       | branched | -        | never
    mma:mma | a matrix product of the whole warp
    f16 bf16 tf32 f32 f64 s8 u8 s32 | sync aligned row col {_SHAPES} e4m3 e5m2 e2m1 e2m3 e3m2 s4 u4 b1 and xor popc satfinite kind::f8f6f4 sp \
        sp::ordered_metadata block_scale kind::mxf8f6f4 kind::mxf4 kind::mxf4nvf4 scale_vec::1X scale_vec::2X scale_vec::4X ue8m0 ue4m3
wmma                                 | first  | -      | always    | -      | warp     | -       | branched | -        | never
  .store                             | none   | -      | -         | writes | warp     | -       | branched | -        | never
    wmma:wmma | loads, multiplies and stores matrix fragments
    f16 bf16 tf32 f32 f64 s8 u8 s32 | load store mma a b c d sync aligned row col m16n16k16 m8n32k16 m32n8k16 m16n16k8 m8n8k4 global shared \
        shared::cta satfinite rn
wgmma                                | none   | -      | -         | -      | warpgroup | -      | branched | -        | never
  .mma_async                         | updates | -     | always    | -      | warp     | -       | branched | -        | never
  .commit_group                      | none   | -      | -         | -      | -        | -       | masked   | -        | never
    wgmma:wgmma | a matrix product of four warps, of matrices in shared memory; .fence and .wait_group: they meet
    f16 bf16 tf32 f32 s32 s8 u8 e4m3 e5m2 b1 | mma_async sp fence commit_group wait_group sync aligned satfinite and popc {_WGMMA}
tcgen05                              | none   | -      | -         | writes | -        | -       | masked   | -        | never
  .ld                                | first  | -      | always    | -      | warp     | -       | branched | -        | keeps
  .st .alloc .dealloc .relinquish_alloc_permit | none | - | -       | writes | warp     | -       | branched | -        | keeps
    tcgen05:tcgen05 | tensor memory: who has it, what moves in and out of it, and matrix products into it
    b32 b64 | alloc dealloc relinquish_alloc_permit ld st cp mma commit wait::ld wait::st fence::before_thread_sync fence::after_thread_sync \
        sync aligned shared::cta shared::cluster cta_group::1 cta_group::2 16x64b 16x128b 16x256b 32x32b 16x32bx2 {_TIMES} pack::16b unpack::16b \
        128x256b 4x256b 128x128b 64x128b 32x128b warpx2::02_13 warpx2::01_23 warpx4 {_TCGEN05} sp ws block_scale block16 block32 scale_vec::1X \
        scale_vec::2X scale_vec::4X {_COLLECTOR} mbarrier::arrive::one multicast::cluster
ldmatrix                             | first  | -      | always    | -      | warp     | -       | branched | -        | -
    mma:ldmatrix | loads matrices of 8 rows of 16 bytes for mma
    b16 b8 | sync aligned m8n8 m8n16 m16n16 x1 x2 x4 trans shared shared::cta b8x16 b4x16_p64 b6x16_p32
stmatrix                             | none   | -      | -         | writes | warp     | -       | branched | -        | -
    mma:stmatrix | stores matrices of 8 rows of 16 bytes from mma's fragments
    b16 b8 | sync aligned m8n8 m16n8 x1 x2 x4 trans shared shared::cta
movmatrix                            | first  | -      | always    | -      | warp     | -       | masked   | -        | -
    mma:movmatrix | transposes an 8 x 8 matrix among lanes
    b16 | sync aligned m8n8 trans
# Textures
tex                                  | first  | -      | always    | -      | -        | -       | masked   | -        | never
    texture:tex | reads a texture
    u32 s32 f32 | {_GEOMETRY} v4 base level grad
tld4                                 | first  | -      | always    | -      | -        | -       | masked   | -        | never
    texture:tld4 | gathers a component of four texels
    u32 s32 f32 | r g b a 2d a2d v4
txq                                  | first  | -      | always    | -      | -        | -       | masked   | -        | -
    texture:txq | an attribute of a texture
    b32 | width height depth array_size num_mipmap_levels normalized_coords
suld                                 | first  | -      | always    | -      | -        | always  | masked   | -        | -
    texture:suld | reads a surface
    b8 b16 b32 b64 | b {_SURFACE} v2 v4
sust                                 | none   | -      | -         | writes | -        | -       | masked   | -        | -
    texture:sust | writes to a surface
    b8 b16 b32 b64 | b {_SURFACE} v2 v4
sured                                | none   | -      | -         | writes | -        | -       | masked   | -        | -
    texture:sured | combines with an element of a surface, as one step
    b32 u32 s32 u64 s64 | b add min max and or 1d 2d 3d a1d a2d trap
suq                                  | first  | -      | always    | -      | -        | -       | masked   | -        | -
    texture:txq | an attribute of a surface
    b32 | width height depth array_size
# Stack and exit
alloca                               | first  | -      | always    | takes  | -        | -       | masked   | -        | -
    stack:alloca | takes memory from the thread's stack
    u64 |
stacksave                            | first  | -      | always    | stack  | -        | -       | masked   | -        | -
    stack:stacksave | the thread's stack pointer
    u64 |
stackrestore                         | none   | -      | -         | takes  | -        | -       | masked   | -        | -
    stack:stackrestore | sets the thread's stack pointer
    u64 |
exit                                 | none   | -      | -         | -      | -        | -       | exit     | -        | -
    stack:exit_in_function | ends the thread
    |
$exited                              | first  | -      | always    | -      | -        | -       | masked   | -        | -
    stack:exited | the lanes that ended inside of the call before it
    pred |
# Asynchronous copy, mbarrier, clusters
mbarrier                             | none   | -      | -         | writes | object   | -       | branched | -        | -
  .arrive .arrive_drop               | first  | -      | always    | writes | object   | -       | branched | -        | -
  .test_wait .try_wait               | first  | -      | operands  | -      | object   | always  | branched | -        | -
  .pending_count                     | first  | -      | operands  | -      | object   | -       | branched | -        | -
    async_copy:mbarrier | barrier objects in shared memory
    b64 | init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait pending_count parity noComplete {_ORDER} shared \
        shared::cta shared::cluster
cp                                   | none   | -      | -         | writes | -        | -       | branched | -        | keeps
  .reduce                            | none   | -      | -         | writes | -        | -       | branched | -        | never
    async_copy:cp | copies (.async, .bulk, .tensor); what is asynchronous on a GPU is done at once
    b32 b64 u32 s32 u64 s64 f16 bf16 f32 f64 | async ca cg global shared shared::cta shared::cluster commit_group wait_group wait_all bulk \
        tensor reduce mbarrier arrive noinc b64 mbarrier::complete_tx::bytes bulk_group prefetch L2 tile 1d 2d 3d 4d 5d read multicast::cluster \
        im2col im2col_no_offs cta_group::1 cta_group::2 cp_mask add min max and or xor inc dec noftz
tensormap                            | none   | -      | -         | writes | -        | -       | branched | -        | -
    async_copy:tensormap | changes a tensor map
    b32 b64 | replace tile cp_fenceproxy global_address rank box_dim global_dim global_stride element_stride elemtype interleave_layout \
        swizzle_mode fill_mode global shared shared::cta b1024 tensormap::generic release cta cluster gpu sys sync aligned
clusterlaunchcontrol                 | none   | -      | -         | writes | -        | -       | masked   | -        | -
  .query_cancel                      | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    async_copy:clusterlaunchcontrol | asks for the work of a block that has not begun: the answer is always no
    b128 b32 pred | try_cancel async shared::cta mbarrier::complete_tx::bytes multicast::cluster::all query_cancel is_canceled get_first_ctaid \
        get_first_ctaid::x get_first_ctaid::y get_first_ctaid::z v4
mapa                                 | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    async_copy:mapa | the address in another block of the cluster
    u32 u64 | shared::cluster
getctarank                           | first  | -      | operands  | -      | -        | -       | masked   | -        | -
    async_copy:getctarank | the block of the cluster in which an address lies
    u32 u64 | shared::cluster
"""
