"""Random control flow, irreducible graphs and early exits included: every thread must compute what it computes alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
from soft.kernels import Kernels

pytestmark = pytest.mark.sampled(6)

THREADS, FUEL = 80, 40
MASK = 0xFFFFFFFF


class Program:
    """Blocks of (changes, branch). Registers: v (starts as the thread's number), u (starts as a parameter), w (0), fuel."""

    def __init__(self, seed: int) -> None:
        r = random.Random(seed)
        n = r.randrange(3, 12)
        self.blocks = []
        for i in range(n):
            changes = [(r.choice("vuw"), r.choice(["add", "xor", "mul", "mix"]), r.randrange(1, 1000)) for _ in range(r.randrange(0, 4))]
            kind = r.choice(["cond", "cond", "cond", "uniform", "goto", "next", "exit", "table"])
            targets = [r.randrange(n) for _ in range(3)]
            if kind == "exit" and i < 2:
                kind = "cond"
            guard = r.choice([None, (r.choice("vw"), r.randrange(1, 8))])
            self.blocks.append((changes, kind, targets, r.choice("vw"), r.choice([1, 3, 5, 7]), guard))

    def text(self) -> str:
        out = [".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 o, .param .u32 u0) {"]
        out.append(".reg .b32 %v, %u, %w, %fuel, %t<4>; .reg .b64 %a<3>; .reg .pred %p, %q;")
        out.append("mov.u32 %v, %tid.x; ld.param.u32 %u, [u0]; mov.u32 %w, 0; mov.u32 %fuel, " + f"{FUEL};")
        for i, (changes, kind, targets, reg, bits, guard) in enumerate(self.blocks):
            following = f"B{i + 1}" if i + 1 < len(self.blocks) else "END"
            out.append(f"B{i}: sub.u32 %fuel, %fuel, 1; setp.eq.u32 %p, %fuel, 0; @%p bra END;")
            prefix = ""
            if guard:
                out.append(f"and.b32 %t0, %{guard[0]}, {guard[1]}; setp.ne.u32 %q, %t0, 0;")
                prefix = "@%q "
            for name, op, value in changes:
                if op == "add":
                    out.append(f"{prefix}add.u32 %{name}, %{name}, {value};")
                elif op == "xor":
                    out.append(f"{prefix}xor.b32 %{name}, %{name}, {value};")
                elif op == "mul":
                    out.append(f"{prefix}mad.lo.u32 %{name}, %{name}, {value}, 7;")
                else:
                    out.append(f"shr.u32 %t1, %v, 3; {prefix}add.u32 %{name}, %{name}, " + ("%u;" if name == "u" else "%t1;"))
            if kind in ("cond", "uniform"):
                out.append(f"and.b32 %t2, %{'u' if kind == 'uniform' else reg}, {bits}; setp.eq.u32 %p, %t2, 0; @%p bra B{targets[0]}; bra.uni B{targets[1]};")
            elif kind == "goto":
                out.append(f"bra.uni B{targets[0]};")
            elif kind == "exit":
                out.append(f"and.b32 %t2, %{reg}, {bits}; setp.ne.u32 %p, %t2, 1; @%p bra END; bra {following};")
            elif kind == "table":
                out.append(f"T{i}: .branchtargets B{targets[0]}, B{targets[1]}, {following}, B{targets[2]}; and.b32 %t2, %{reg}, 3; brx.idx %t2, T{i};")
        out.append("END: ld.param.u64 %a0, [o]; mov.u32 %t0, %tid.x; mul.wide.u32 %a1, %t0, 16; add.u64 %a0, %a0, %a1;")
        out.append("st.global.v4.u32 [%a0], {%v, %u, %w, %fuel}; ret; }")
        return "\n".join(out)

    def run(self, thread: int, u0: int) -> tuple[int, int, int, int]:
        s = {"v": thread, "u": u0, "w": 0}
        fuel, i = FUEL, 0
        while i < len(self.blocks):
            changes, kind, targets, reg, bits, guard = self.blocks[i]
            fuel -= 1
            if fuel == 0:
                break
            do = guard is None or s[guard[0]] & guard[1] != 0
            for name, op, value in changes:
                if do:
                    change = s["u"] if name == "u" else s["v"] >> 3
                    s[name] = {"add": s[name] + value, "xor": s[name] ^ value, "mul": s[name] * value + 7, "mix": s[name] + change}[op] & MASK
            if kind in ("cond", "uniform"):
                i = targets[0] if s["u" if kind == "uniform" else reg] & bits == 0 else targets[1]
            elif kind == "goto":
                i = targets[0]
            elif kind == "exit":
                if s[reg] & bits != 1:
                    break
                i += 1
            elif kind == "table":
                i = [targets[0], targets[1], i + 1, targets[2]][s[reg] & 3]
            else:
                i += 1
        return s["v"], s["u"], s["w"], fuel


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_flow(first: int) -> None:
    for seed in range(first, first + 10):
        program = Program(seed)
        k = Kernels(program.text())
        for u0 in (0, 5):
            o = np.zeros((THREADS, 4), np.uint32)
            k.launch("k", 1, THREADS, o, np.uint32(u0))
            want = np.array([program.run(t, u0) for t in range(THREADS)], np.uint32)
            wrong = np.flatnonzero((o != want).any(axis=1))
            assert not len(wrong), f"seed {seed}, u0 {u0}: thread {wrong[0]}: {o[wrong[0]]} instead of {want[wrong[0]]}\n{program.text()}"
