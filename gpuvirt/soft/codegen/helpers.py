"""Helper functions in LLVM IR that generated code calls for what has no short form: per-lane gathers, scatters and atomics as loops over lanes."""

from __future__ import annotations

from gpuvirt.soft.codegen.ir_builder import ModuleText
from gpuvirt.soft.ptx.types import INT_BITS, LANES

V64 = f"<{LANES} x i64>"


def lane_loop(name: str, ret: str, params: str, setup: str, body: str, finish: str) -> str:
    """A function that runs `body` for each lane of %mask, with %i the lane (i32) and %j the same as i64."""
    return f"""define internal {ret} @{name}({params}) #1 {{
entry:
{setup}
  br label %next
next:
  %m = phi i32 [ %mask, %entry ], [ %m2, %step ]
  %empty = icmp eq i32 %m, 0
  br i1 %empty, label %end, label %body
body:
  %i = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %m1 = sub i32 %m, 1
  %m2 = and i32 %m, %m1
  %j = zext i32 %i to i64
{body}
  br label %step
step:
  br label %next
end:
{finish}
}}"""


# %p from a lane's element of %ab.
ADDRESS = """  %ap = getelementptr i64, ptr %ab, i64 %j
  %a = load i64, ptr %ap
  %p = inttoptr i64 %a to ptr"""


def each(m: ModuleText, symbol: str, ret: str, types: list[str]) -> str:
    """@each.<symbol>(warp, arguments, mask): calls @symbol(warp, lane, arguments) of the engine for each lane; its results, 0 for the other lanes."""
    m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    m.declare(symbol, f"declare {ret or 'void'} @{symbol}({', '.join(['ptr', 'i32', *types])})")
    name = f"each.{symbol}.{'.'.join(types)}"
    vectors = [f"<{LANES} x {t}>" for t in types]
    result = f"<{LANES} x {ret}>"
    setup = "".join(f"  %b{k} = alloca {v}\n  store {v} %x{k}, ptr %b{k}\n" for k, v in enumerate(vectors))
    body = "".join(f"  %p{k} = getelementptr {t}, ptr %b{k}, i64 %j\n  %a{k} = load {t}, ptr %p{k}\n" for k, t in enumerate(types))
    call = f"call {ret or 'void'} @{symbol}({', '.join(['ptr %w', 'i32 %i', *(f'{t} %a{k}' for k, t in enumerate(types))])})"
    finish = "  ret void"
    if ret:
        setup += f"  %rb = alloca {result}\n  store {result} zeroinitializer, ptr %rb\n"
        call = f"%c = {call}\n  %rp = getelementptr {ret}, ptr %rb, i64 %j\n  store {ret} %c, ptr %rp"
        finish = f"  %r = load {result}, ptr %rb\n  ret {result} %r"
    params = ", ".join(["ptr %w", *(f"{v} %x{k}" for k, v in enumerate(vectors)), "i32 %mask"])
    return m.helper(name, lambda: lane_loop(name, result if ret else "void", params, setup, body + "  " + call, finish))


def gather(m: ModuleText, t: str, align: int, volatile: bool) -> str:
    """@gather.<t>(addresses, mask) -> values; lanes outside the mask get 0."""
    m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    name = f"gather.{t}.{align}{'.v' if volatile else ''}"
    v = f"<{LANES} x {t}>"
    setup = f"""  %ab = alloca {V64}
  %rb = alloca {v}
  store {V64} %addr, ptr %ab
  store {v} zeroinitializer, ptr %rb"""
    body = (
        ADDRESS
        + f"""
  %x = load {"volatile " if volatile else ""}{t}, ptr %p, align {align}
  %rp = getelementptr {t}, ptr %rb, i64 %j
  store {t} %x, ptr %rp"""
    )
    finish = f"  %r = load {v}, ptr %rb\n  ret {v} %r"
    return m.helper(name, lambda: lane_loop(name, v, f"{V64} %addr, i32 %mask", setup, body, finish))


def scatter(m: ModuleText, t: str, align: int, volatile: bool) -> str:
    """@scatter.<t>(addresses, values, mask)"""
    m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    name = f"scatter.{t}.{align}{'.v' if volatile else ''}"
    v = f"<{LANES} x {t}>"
    setup = f"""  %ab = alloca {V64}
  %vb = alloca {v}
  store {V64} %addr, ptr %ab
  store {v} %val, ptr %vb"""
    body = (
        ADDRESS
        + f"""
  %vp = getelementptr {t}, ptr %vb, i64 %j
  %x = load {t}, ptr %vp
  store {"volatile " if volatile else ""}{t} %x, ptr %p, align {align}"""
    )
    return m.helper(name, lambda: lane_loop(name, "void", f"{V64} %addr, {v} %val, i32 %mask", setup, body, "  ret void"))


_FLOAT_ADD = {"half": "half", "float": "float", "double": "double"}


def combine(op: str, t: str, old: str, value: str, kind: str, prefix: str = "") -> tuple[str, str]:
    """IR text that computes the new value of an atomic operation from %old and the operand; (text, name of the result)."""
    p = prefix
    integer = f"i{INT_BITS[t]}" if t in INT_BITS else t
    r = f"%{p}new"
    if op == "add" and kind == "f":
        return f"  {r} = fadd {t} {old}, {value}\n", r
    if op in ("add", "and", "or", "xor", "sub"):
        return f"  {r} = {op} {integer} {old}, {value}\n", r
    if op in ("min", "max"):
        if kind == "f":
            less = "olt" if op == "min" else "ogt"
            return (
                f"  %{p}c = fcmp {less} {t} {value}, {old}\n  %{p}u = fcmp uno {t} {old}, {old}\n  %{p}d = or i1 %{p}c, %{p}u\n"
                f"  {r} = select i1 %{p}d, {t} {value}, {t} {old}\n",
                r,
            )
        cond = ("s" if kind == "s" else "u") + ("lt" if op == "min" else "gt")
        return f"  %{p}c = icmp {cond} {integer} {value}, {old}\n  {r} = select i1 %{p}c, {integer} {value}, {integer} {old}\n", r
    if op == "exch":
        return "", value
    if op == "inc":
        return (
            f"  %{p}c = icmp uge {integer} {old}, {value}\n  %{p}d = add {integer} {old}, 1\n  {r} = select i1 %{p}c, {integer} 0, {integer} %{p}d\n",
            r,
        )
    if op == "dec":
        return (
            f"  %{p}c = icmp eq {integer} {old}, 0\n  %{p}e = icmp ugt {integer} {old}, {value}\n  %{p}f = or i1 %{p}c, %{p}e\n"
            f"  %{p}d = sub {integer} {old}, 1\n  {r} = select i1 %{p}f, {integer} {value}, {integer} %{p}d\n",
            r,
        )
    raise ValueError(op)


_RMW = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exch": "xchg", "inc": "uinc_wrap"}


def atomic(m: ModuleText, op: str, t: str, kind: str, parts: int, shared: bool) -> str:
    """@atom.<...>(addresses, values[, new values], mask) -> old values.

    `t` is the LLVM type of one element; `parts` 2: two 16-bit elements packed in an i32. Shared memory of a block is touched by one thread at a
    time, so there a plain read and write do."""
    m.declare("llvm.cttz.i32", "declare i32 @llvm.cttz.i32(i32, i1)")
    if t == "half" and "f16c" not in m.features:
        _half_functions(m)
        return atomic(m, op, "half16", kind, parts, shared)
    name = f"atom.{op}.{t}.{kind}.{parts}{'.s' if shared else ''}"
    bits = INT_BITS.get(t, 16) * parts
    i = f"i{bits}"
    v = f"<{LANES} x {i}>"
    align = bits // 8
    setup = f"""  %ab = alloca {V64}
  %vb = alloca {v}
  %wb = alloca {v}
  %rb = alloca {v}
  store {V64} %addr, ptr %ab
  store {v} %val, ptr %vb
  store {v} zeroinitializer, ptr %rb"""
    if op == "cas":
        setup += f"\n  store {v} %swap, ptr %wb"
    fetch = ADDRESS + f"\n  %vp = getelementptr {i}, ptr %vb, i64 %j\n  %x = load {i}, ptr %vp\n"
    keep = f"  %rp = getelementptr {i}, ptr %rb, i64 %j\n  store {i} %res, ptr %rp"
    params = f"{V64} %addr, {v} %val, {v + ' %swap, ' if op == 'cas' else ''}i32 %mask"
    finish = f"  %r = load {v}, ptr %rb\n  ret {v} %r"
    if op == "cas":
        body = fetch + f"  %wp = getelementptr {i}, ptr %wb, i64 %j\n  %y = load {i}, ptr %wp\n"
        if shared:
            body += f"  %res = load {i}, ptr %p, align {align}\n  %eq = icmp eq {i} %res, %x\n  %new = select i1 %eq, {i} %y, {i} %res\n"
            body += f"  store {i} %new, ptr %p, align {align}\n" + keep
        else:
            body += f"  %pair = cmpxchg ptr %p, {i} %x, {i} %y seq_cst seq_cst, align {align}\n  %res = extractvalue {{ {i}, i1 }} %pair, 0\n" + keep
    elif parts == 1 and not shared and kind != "f" and ((op in _RMW and op != "inc") or op in ("min", "max")) and bits >= 32 and bits <= 64:
        rmw = _RMW.get(op) or (("" if kind == "s" else "u") + op)
        body = fetch + f"  %res = atomicrmw {rmw} ptr %p, {i} %x seq_cst, align {align}\n" + keep
    else:
        compute = _compute(op, t, kind, parts)
        if shared:
            body = fetch + f"  %res = load {i}, ptr %p, align {align}\n{compute}  store {i} %result, ptr %p, align {align}\n" + keep
        else:
            body = (
                fetch
                + f"""  %first = load {i}, ptr %p, align {align}
  br label %try
try:
  %res = phi i {{}} [ %first, %body ], [ %seen, %try ]
{compute}  %pair = cmpxchg ptr %p, {i} %res, {i} %result seq_cst seq_cst, align {align}
  %seen = extractvalue {{{{ {i}, i1 }}}} %pair, 0
  %ok = extractvalue {{{{ {i}, i1 }}}} %pair, 1
  br i1 %ok, label %stored, label %try
stored:
""".replace("i {}", i)
                .replace("{{", "{")
                .replace("}}", "}")
                + keep
            )
    return m.helper(name, lambda: lane_loop(name, v, params, setup, body, finish))


def _compute(op: str, t: str, kind: str, parts: int) -> str:
    """IR from %res and %x (integers) to %result."""
    bits = INT_BITS.get(t, 16) * parts
    i = f"i{bits}"
    if parts == 1:
        if kind == "f" and t not in ("bfloat", "half16"):
            text, new = combine(op, t, "%of", "%xf", kind)
            return f"  %of = bitcast {i} %res to {t}\n  %xf = bitcast {i} %x to {t}\n{text}  %result = bitcast {t} {new} to {i}\n"
        if t == "half16":
            return _half16("%res", "%x", op, "") + "  %result = or i16 %r16, 0\n"
        if t == "bfloat":
            return _bf16("%res", "%x", op, "") + "  %result = or i16 %r16, 0\n"
        text, new = combine(op, t, "%res", "%x", kind)
        return f"{text}  %result = or {i} {new}, 0\n"
    out = ""
    for k, shift in ((0, 0), (1, 16)):
        out += f"  %o{k}s = lshr i32 %res, {shift}\n  %o{k} = trunc i32 %o{k}s to i16\n"
        out += f"  %x{k}s = lshr i32 %x, {shift}\n  %x{k} = trunc i32 %x{k}s to i16\n"
        if t == "half16":
            out += _half16(f"%o{k}", f"%x{k}", op, f"h{k}") + f"  %n{k} = zext i16 %h{k}r16 to i32\n"
        elif t == "bfloat":
            out += _bf16(f"%o{k}", f"%x{k}", op, f"h{k}") + f"  %n{k} = zext i16 %h{k}r16 to i32\n"
        else:
            text, new = combine(op, "half", f"%of{k}", f"%xf{k}", "f", f"h{k}")
            out += f"  %of{k} = bitcast i16 %o{k} to half\n  %xf{k} = bitcast i16 %x{k} to half\n{text}"
            out += f"  %nb{k} = bitcast half {new} to i16\n  %n{k} = zext i16 %nb{k} to i32\n"
    return out + "  %n1s = shl i32 %n1, 16\n  %result = or i32 %n0, %n1s\n"


def _half16(old: str, value: str, op: str, p: str) -> str:
    """One f16 operation in float where the processor has no conversion; float has bits enough that rounding twice is rounding once."""
    text, new = combine(op, "float", f"%{p}of", f"%{p}xf", "f", p + "b")
    return f"""  %{p}of = call float @half.widen(i16 {old})
  %{p}xf = call float @half.widen(i16 {value})
{text}  %{p}r16 = call i16 @half.round(float {new})
"""


def _half_functions(m: ModuleText) -> None:
    """f16 to f32 and back, to nearest even, with integers and ordinary arithmetic."""
    widen = """define internal float @half.widen(i16 %h) #2 {
  %bits = zext i16 %h to i32
  %size = and i32 %bits, 32767
  %moved = shl i32 %size, 13
  %small = bitcast i32 %moved to float
  %scaled = fmul float %small, 0x46F0000000000000
  %normal = bitcast float %scaled to i32
  %high = or i32 %moved, 2139095040
  %special = icmp uge i32 %size, 31744
  %value = select i1 %special, i32 %high, i32 %normal
  %signed = and i32 %bits, 32768
  %sign = shl i32 %signed, 16
  %all = or i32 %value, %sign
  %f = bitcast i32 %all to float
  ret float %f
}"""
    narrow = """define internal i16 @half.round(float %f) #2 {
  %bits = bitcast float %f to i32
  %size = and i32 %bits, 2147483647
  %positive = bitcast i32 %size to float
  %shifted = fadd float %positive, 5.000000e-01
  %last = bitcast float %shifted to i32
  %tiny = sub i32 %last, 1056964608
  %s13 = lshr i32 %size, 13
  %odd = and i32 %s13, 1
  %bias = add i32 %odd, 4095
  %up = add i32 %size, %bias
  %down = sub i32 %up, 939524096
  %normal = lshr i32 %down, 13
  %istiny = icmp ult i32 %size, 947912704
  %v1 = select i1 %istiny, i32 %tiny, i32 %normal
  %isbig = icmp uge i32 %size, 1199566848
  %v2 = select i1 %isbig, i32 31744, i32 %v1
  %isnan = icmp ugt i32 %size, 2139095040
  %v3 = select i1 %isnan, i32 32767, i32 %v2
  %s16 = lshr i32 %bits, 16
  %sign = and i32 %s16, 32768
  %all = or i32 %v3, %sign
  %h = trunc i32 %all to i16
  ret i16 %h
}"""
    m.helper("half.widen", lambda: widen)
    m.helper("half.round", lambda: narrow)


def _bf16(old: str, value: str, op: str, p: str) -> str:
    """One bf16 operation in float, rounded to nearest even; result %<p>r16."""
    text, new = combine(op, "float", f"%{p}of", f"%{p}xf", "f", p + "b")
    return f"""  %{p}oz = zext i16 {old} to i32
  %{p}os = shl i32 %{p}oz, 16
  %{p}of = bitcast i32 %{p}os to float
  %{p}xz = zext i16 {value} to i32
  %{p}xs = shl i32 %{p}xz, 16
  %{p}xf = bitcast i32 %{p}xs to float
{text}  %{p}nb = bitcast float {new} to i32
  %{p}up = lshr i32 %{p}nb, 16
  %{p}lo = and i32 %{p}up, 1
  %{p}ad = add i32 %{p}lo, 32767
  %{p}rn = add i32 %{p}nb, %{p}ad
  %{p}rs = lshr i32 %{p}rn, 16
  %{p}un = fcmp uno float {new}, {new}
  %{p}rr = select i1 %{p}un, i32 32767, i32 %{p}rs
  %{p}r16 = trunc i32 %{p}rr to i16
"""
