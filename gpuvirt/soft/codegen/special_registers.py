"""Special registers (%tid, %clock, ...)."""

from __future__ import annotations

from gpuvirt.soft.analysis import lane_affine
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.codegen.warp_state import WarpState
from gpuvirt.soft.errors import Unsupported
from gpuvirt.soft.ptx.layout import RESERVED_BYTES
from gpuvirt.soft.ptx.types import LANES


def _thread(e: WarpState, name: str) -> Val:
    """%tid.x, .y and .z for the block shape that this code is for."""
    nx, ny, nz = e.shape
    axis = name[-1]
    pattern = lane_affine.special(name, e.shape)
    if isinstance(pattern, lane_affine.Pattern) and pattern.constant is not None:
        return e.const(pattern.constant, "i32")
    first = e.field("first_thread", "i32")
    if axis == "x":
        lead = first.s if ny == 1 and nz == 1 else e.once("tidx0", f"urem i32 {first.s}, {e.threads(0).s}", "i32").s
    else:
        row = e.once("tidrow", f"udiv i32 {first.s}, {e.threads(0).s}", "i32")
        if axis == "y":
            lead = row.s if nz == 1 else e.once("tidy0", f"urem i32 {row.s}, {e.threads(1).s}", "i32").s
        else:
            lead = e.once("tidz0", f"udiv i32 {row.s}, {e.threads(1).s}", "i32").s
    if isinstance(pattern, lane_affine.Pattern):
        if pattern.flat or e.lead:
            return Val(lead, "i32")
        vector = e.fields.get("v" + name)
        if vector is None:
            key = f"tid{axis}v"
            a = e.once(key + "a", f"insertelement <{LANES} x i32> poison, i32 {lead}, i32 0", "i32", True)
            b = e.once(key + "b", f"shufflevector {a.ty} {a.s}, {a.ty} poison, <{LANES} x i32> zeroinitializer", "i32", True)
            vector = e.fields["v" + name] = e.once(key, f"add {b.ty} {b.s}, {e.lanes(pattern.steps, 'i32').s}", "i32", True)
        return vector
    a = e.once("linv0", f"insertelement <{LANES} x i32> poison, i32 {first.s}, i32 0", "i32", True)
    b = e.once("linv1", f"shufflevector {a.ty} {a.s}, {a.ty} poison, <{LANES} x i32> zeroinitializer", "i32", True)
    linear = e.once("linv", f"add {b.ty} {b.s}, {e.lane_ids().s}", "i32", True)
    if axis == "x":
        return e.once("tidx", f"urem {b.ty} {linear.s}, splat (i32 {nx})", "i32", True)
    rows = e.once("tidyr", f"udiv {b.ty} {linear.s}, splat (i32 {nx})", "i32", True)
    if axis == "y":
        return e.once("tidy", f"urem {b.ty} {rows.s}, splat (i32 {ny})", "i32", True)
    return e.once("tidz", f"udiv {b.ty} {rows.s}, splat (i32 {ny})", "i32", True)


def _lanemask(e: WarpState, kind: str) -> Val:
    values = {
        "eq": [1 << i for i in range(LANES)],
        "le": [(2 << i) - 1 for i in range(LANES)],
        "lt": [(1 << i) - 1 for i in range(LANES)],
        "ge": [~((1 << i) - 1) for i in range(LANES)],
        "gt": [~((2 << i) - 1) for i in range(LANES)],
    }
    return e.lanes(values[kind], "i32")


def _cluster(e: WarpState, base: str, axis: int) -> Val:
    """What is said of the cluster: its place in the grid, the block's place in it, and the shapes of both."""
    if axis == 3 and not base.endswith("rank"):
        return e.const(0, "i32")
    if base == "%is_explicit_cluster":
        return e.icmp("ne", e.field("explicit_cluster", "i32"), e.const(0, "i32"))
    if base == "%cluster_ctarank":
        return e.field("rank", "i32")
    if base == "%cluster_nctarank":
        x, y, z = (e.field("cluster", "i32", i) for i in range(3))
        return e.op("mul", e.op("mul", x, y), z)
    blocks = e.field("cluster", "i32", axis)
    if base == "%cluster_nctaid":
        return blocks
    if base == "%nclusterid":
        return e.op("udiv", e.field("nctaid", "i32", axis), blocks)
    return e.op("udiv" if base == "%clusterid" else "urem", e.field("ctaid", "i32", axis), blocks)


_FIELDS = {
    "%warpid": "warp",
    "%nwarpid": "warps",
    "%smid": "smid",
    "%nsmid": "nsmid",
    "%dynamic_smem_size": "dynamic_shared",
    "%total_smem_size": "shared_bytes",
    "%aggr_smem_size": "shared_bytes",
}


def read_special(e: WarpState, name: str) -> Val:
    """The value of a special register; 32 or 64 bits by its own width."""
    base, _, part = name.partition(".")
    axis = "xyzw".find(part[:1]) if part else 0
    if base in ("%tid", "%ntid", "%ctaid", "%nctaid") and axis == 3:
        return e.const(0, "i32")
    if base == "%tid":
        return _thread(e, name)
    if base == "%ntid":
        return e.threads(axis)
    if base in ("%ctaid", "%nctaid"):
        return e.field(base[1:], "i32", axis)
    if base == "%laneid":
        return e.const(0, "i32") if e.lead else e.lane_ids()
    if base.startswith("%lanemask_"):
        return _lanemask(e, base[10:])
    if base in _FIELDS:
        return e.field(_FIELDS[base], "i32")
    if base == "%gridid":
        return e.field("grid_id", "i64")
    if base in ("%clock", "%clock64", "%clock_hi"):
        e.m.declare("llvm.readcyclecounter", "declare i64 @llvm.readcyclecounter()")
        cycles = e.let("call i64 @llvm.readcyclecounter()", "i64")
        if base == "%clock_hi":
            cycles = e.lshr(cycles, e.const(32, "i64"))
        return cycles if base == "%clock64" else e.resize(cycles, "i32")
    if base.startswith("%globaltimer"):
        now = e.call("soft_globaltimer", "i64", [Val("%w", "ptr")], declare=True)
        if base == "%globaltimer_hi":
            now = e.lshr(now, e.const(32, "i64"))
        return now if base == "%globaltimer" else e.resize(now, "i32")
    if base in ("%envreg1", "%envreg2"):
        workspace = e.field("grid_workspace", "i64")
        return e.resize(e.lshr(workspace, e.const(32, "i64")) if base == "%envreg1" else workspace, "i32")
    if "cluster" in base:
        return _cluster(e, base, axis)
    if base.startswith("%reserved_smem_offset_"):
        # The first half is the system's, the second the programs'.
        offset = {"begin": 0, "0": 0, "1": RESERVED_BYTES // 2}.get(base.rsplit("_", 1)[1], RESERVED_BYTES)
        return e.in_own_block(e.const(e.layout.reserved_offset + offset, "i32"))
    if base.startswith(("%envreg", "%pm", "%current_graph_exec")):
        return e.const(0, "i64" if base in ("%current_graph_exec",) or (base.startswith("%pm") and "64" in base) else "i32")
    raise Unsupported(f"unsupported special register '{name}'")
