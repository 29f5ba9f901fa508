"""The passes of the compiler: analyses leave their input as it is, a wrong guess is noticed and made good, GPUVIRT_SOFT_DUMP shows what a pass made."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpuvirt.errors import GpuvirtError
from gpuvirt.soft import pipeline
from gpuvirt.soft.analysis import divergence
from gpuvirt.soft.analysis.basic_blocks import EXITED, Block
from gpuvirt.soft.analysis.cfg import Cfg
from gpuvirt.soft.codegen.emitter import Emitter
from gpuvirt.soft.errors import BadPtx, Unsupported
from gpuvirt.soft.ptx.layout import Program
from gpuvirt.soft.ptx.module import Module


def kernel(body: str) -> str:
    """A kernel k(p, n): n is in %r0, the thread's number in %r1, and the address of the thread's word behind p in %a2."""
    return f"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 n)
{{
    .reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %a<4>;
    ld.param.u64 %a0, [p];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %a1, %r1, 4;
    add.s64 %a2, %a0, %a1;
{body}
    ret;
}}
"""


SUM = kernel("""
    mov.u32 %r2, 0;
again:
    add.u32 %r2, %r2, %r1;
    add.u32 %r1, %r1, 40;
    setp.lt.u32 %p1, %r1, %r0;
    @%p1 bra again;
    st.global.u32 [%a2], %r2;
""")
SHAPE = (128, 1, 1)
ENDS = """
.version 8.0
.target sm_80
.address_size 64
.func f(.param .b32 x)
{
    .reg .pred %p<2>; .reg .b32 %r<2>;
    ld.param.u32 %r0, [x];
    setp.eq.u32 %p1, %r0, 3;
    @%p1 exit;
    ret;
}
.visible .entry k()
{
    .reg .b32 %r<2>;
    mov.u32 %r1, %tid.x;
    {
        .param .b32 a;
        st.param.b32 [a], %r1;
        call.uni f, (a);
    }
    ret;
}
"""


def graph() -> Cfg:
    program = Program(Module(SUM), "k")
    return Cfg(program.bodies["k"], program.exits, frozenset())


def state(cfg: Cfg) -> list[dict[str, Any]]:
    return [{name: repr(getattr(block, name)) for name in Block.__slots__} for block in cfg.order]


def test_the_flow_graph_leaves_the_body_as_it_is() -> None:
    """What it adds for calls that end threads, a register that says which, is its own."""
    program = Program(Module(ENDS), "k")
    body = program.bodies["k"]
    registers, instructions = dict(body.regs), [(label, list(block)) for label, block in body.blocks]
    cfg = Cfg(body, program.exits, frozenset())
    assert program.exits and EXITED in cfg.regs and EXITED in cfg.reg_index
    assert body.regs == registers and [(label, list(block)) for label, block in body.blocks] == instructions


def test_an_analysis_is_a_function_of_the_graph() -> None:
    cfg = graph()
    before = state(cfg)
    first = divergence.analyze(cfg, SHAPE)
    guessed = divergence.analyze(cfg, SHAPE, frozenset({"%r0"}), {"%r2": 1})
    assert first.varying < guessed.varying and first.masked and any(first.waits)
    assert divergence.analyze(cfg, SHAPE) == first and state(cfg) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.masked = frozenset()  # type: ignore[misc]


def test_a_wrong_guess_is_made_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a register taken for uniform that is not, the code would be made again, with that known, and nothing of the first attempt would be left."""
    right = pipeline.translate(Module(SUM), "k", SHAPE)[0]
    analyze = divergence.analyze

    def wrong(cfg: Cfg, shape: tuple[int, int, int], forced: Any = frozenset(), assumed: Any = None) -> divergence.Divergence:
        found = analyze(cfg, shape, forced, assumed)
        return found if forced else dataclasses.replace(found, varying=found.varying - {"%r2"})

    monkeypatch.setattr(divergence, "analyze", wrong)
    assert pipeline.translate(Module(SUM), "k", SHAPE)[0] == right

    def never(cfg: Cfg, shape: tuple[int, int, int], forced: Any = frozenset(), assumed: Any = None) -> divergence.Divergence:
        found = analyze(cfg, shape)
        return dataclasses.replace(found, varying=found.varying - {"%r2"})

    monkeypatch.setattr(divergence, "analyze", never)  # the deliberate fault: what was lost is not taken into account
    with pytest.raises(Unsupported, match="uniform registers %r2"):
        pipeline.translate(Module(SUM), "k", SHAPE)


@pytest.mark.parametrize(("name", "shown"), [("parse", "mul.wide.u32 %a1, %r1, 4"), ("split-exchanges", "masked waits"), ("emit", "define void @gv_kernel")])
def test_a_dump_shows_what_a_pass_made(name: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plain = pipeline.translate(Module(SUM), "k", SHAPE)[0]
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("GPUVIRT_SOFT_DUMP", name)
    assert pipeline.translate(Module(SUM), "k", SHAPE)[0] == plain
    printed = capsys.readouterr().err
    assert printed.startswith(f"; k {SHAPE} after {name}\n") and shown in printed and printed.count("; k ") == 1


def test_every_pass_can_be_shown_and_no_other(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GPUVIRT_SOFT_DUMP", ",".join(pipeline.PASSES))
    pipeline.translate(Module(SUM), "k", SHAPE)
    assert capsys.readouterr().err.count("; k ") == len(pipeline.PASSES)
    monkeypatch.setenv("GPUVIRT_SOFT_DUMP", "no-such-pass")
    with pytest.raises(GpuvirtError, match="there is no pass no-such-pass; there are parse, layout"):
        pipeline.translate(Module(SUM), "k", SHAPE)


def test_an_error_names_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadPtx, match=r"cannot translate 'setp\.lt\.u32 %p1, %r1"):
        pipeline.translate(Module(SUM.replace("setp.lt.u32 %p1, %r1, %r0", "setp.lt.u32 %p1, %r1")), "k", SHAPE)
    monkeypatch.setattr(Emitter, "run", lambda self: {}["gone"])
    with pytest.raises(BadPtx, match="KeyError: 'gone'"):
        pipeline.translate(Module(SUM), "k", SHAPE)


REDUCTION = kernel("""
    mov.u32 %r2, 1;
    setp.ge.u32 %p1, %r1, %r0;
    @%p1 bra low;
    mov.u32 %r2, 2;
low:
    setp.gt.u32 %p2, %r1, 63;
    @%p2 bra end;
    st.global.u32 [%a2], %r2;
end:
""")


def test_what_all_lanes_answer_alike_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel with copies of blocks for all lanes, a comparison with one result for a whole warp decides its branch as a scalar, at the first try."""
    attempts = []
    run = Emitter.run
    monkeypatch.setattr(Emitter, "run", lambda self: attempts.append(self.an) or run(self))
    text = pipeline.translate(Module(REDUCTION), "k", SHAPE)[0]
    assert "\nuniform" in text and len(attempts) == 1 and attempts[0].one_sided
    assert "icmp ugt i32" in text and "icmp ugt <32 x i32>" not in text


POLLS = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k()
{
    .local .align 4 .b8 of_local[4];
    .shared .align 4 .b8 of_shared[4];
    .reg .pred %p<2>; .reg .b32 %r<4>;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, of_SPACE;
    st.SPACE.u32 [%r2], %r1;
again:
    ld.volatile.SPACE.u32 %r3, [%r2];
    setp.eq.u32 %p1, %r3, 99;
    @%p1 bra again;
    ret;
}
"""


@pytest.mark.parametrize(("space", "waits"), [("local", False), ("shared", True)])
def test_a_volatile_load_waits_only_for_memory_that_others_write(space: str, waits: bool) -> None:
    text, description, _ = pipeline.translate(Module(POLLS.replace("SPACE", space)), "k", SHAPE)
    assert ("@soft_yield" in text, description.uses_barrier) == (waits, 2 * waits)


STRIDE = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u32 n)
{
    .shared .align 16 .b8 memory[4096];
    .reg .b32 %r<4>;
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, memory;
    mad.lo.u32 %r3, %r1, %r0, %r2;
    STORE
    ret;
}
"""


@pytest.mark.parametrize(("store", "versions"), [("st.shared.b32 [%r3], %r1;", True), ("st.bulk.weak.shared::cta [%r3], 64, 0;", False)])
def test_stride_versions_are_for_plain_stores(store: str, versions: bool) -> None:
    """A store in bulk is one lane's by itself: no stride of the lanes' addresses makes it plainer."""
    text = pipeline.translate(Module(STRIDE.replace("STORE", store)), "k", SHAPE)[0]
    assert ("@gv_kernel.guessed" in text) == versions
