"""Function bodies: PTX text to a list of labelled instructions, names resolved to their scopes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuvirt.soft.errors import BadPtx
from gpuvirt.soft.ptx.module import Func, Module, Param, Variable, parse_params, parse_variable, strip_comments
from gpuvirt.soft.ptx.opcodes import Carry, Flow, Result, traits_of
from gpuvirt.soft.ptx.types import TYPES, Type


class Reg(NamedTuple):
    """A register; `part` selects a component of a vector register (not used by compilers), None for all of it."""

    name: str


class Imm(NamedTuple):
    """An integer constant."""

    value: int


class FloatImm(NamedTuple):
    """A floating constant: its bit pattern and width, 32 or 64."""

    pattern: int
    bits: int


class Special(NamedTuple):
    """A special register such as %tid.x."""

    name: str


class Sym(NamedTuple):
    """The address of a variable, function or parameter plus a constant."""

    name: str
    offset: int


class Vec(NamedTuple):
    """{a, b, ...}"""

    items: tuple[object, ...]


class Addr(NamedTuple):
    """[base + offset]"""

    base: object
    offset: int


class Pair(NamedTuple):
    """a|b: two destinations."""

    first: object
    second: object


class Not(NamedTuple):
    """!p"""

    reg: object


class Part(NamedTuple):
    """A byte or half of a register, or its negation, as the video instructions take them: `select` is b0, h1, b3210, ... or empty."""

    reg: object
    select: str
    negated: bool


class Name(NamedTuple):
    """A label, function or prototype name."""

    name: str


Operand = object


class Ins:
    """One instruction. `pred` is a register name or None, `neg` its negation."""

    __slots__ = ("args", "dsts", "mods", "neg", "op", "ops", "pred", "srcs", "text", "traits")

    def __init__(self, op: str, mods: tuple[str, ...], ops: list[Operand], pred: str | None, neg: bool, text: str) -> None:
        self.op = op
        self.mods = mods
        self.traits = traits_of(op, mods)
        self.ops = ops
        self.pred = pred
        self.neg = neg
        self.text = text
        self.dsts: list[str] = []
        self.srcs: list[str] = []
        self.args: object = None

    @property
    def type(self) -> Type:
        """The last type modifier, the type in which most instructions compute."""
        for mod in reversed(self.mods):
            if mod in TYPES:
                return TYPES[mod]
        raise BadPtx(f"no type in '{self.text}'")

    def __repr__(self) -> str:
        return self.text


@dataclass
class Call:
    """A call's parts: values are names of .param variables or registers."""

    target: Operand
    returns: list[str]
    args: list[Operand]
    prototype: str | None


@dataclass
class Body:
    """A parsed function."""

    func: Func
    regs: dict[str, Type] = field(default_factory=dict)
    locals: dict[str, Variable] = field(default_factory=dict)  # .local and .shared, by unique name
    params: dict[str, Param] = field(default_factory=dict)  # .param variables of call sequences
    blocks: list[tuple[str, list[Ins]]] = field(default_factory=list)
    label_lists: dict[str, list[str]] = field(default_factory=dict)
    prototypes: dict[str, tuple[list[Param], list[Param]]] = field(default_factory=dict)


SPECIALS = {
    "%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%clock", "%clock64", "%clock_hi",
    "%globaltimer", "%globaltimer_lo", "%globaltimer_hi", "%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt",
    "%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid",
    "%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster", "%reserved_smem_offset_begin", "%reserved_smem_offset_end",
    "%reserved_smem_offset_cap", "%reserved_smem_offset_0", "%reserved_smem_offset_1", "%current_graph_exec",
}  # fmt: skip

MOST_REGISTERS = 1 << 18  # of a function; compilers' largest ones have some ten thousand
CARRY = "$cc"  # the condition code register of add.cc and its like

_LABEL = re.compile(r"([\w$%]+)\s*:(?!:)\s*")
_STATEMENT = re.compile(r"(?:@(!?)\s*([\w$%]+)\s+)?([a-zA-Z][\w.:]*)\s*(.*)$", re.S)
_PART = re.compile(r"(-\s*)?(%?[A-Za-z_$][\w$]*)(?:\.(b[0-7]{1,4}|h[0-3]{1,2}))?$")
_INT = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?$")
_LINES = re.compile(r"^[ \t]*(?:\.loc|\.file|@@DWARF)\b[^\n]*$", re.M)
_PIECES = re.compile(r"[;{}]|[^;{}\"]+|\"(?:[^\"\\]|\\.)*\"")
_ADDRESS = re.compile(r"(.+?)\s*([-+])\s*([-+]?\s*(?:0[xX][0-9a-fA-F]+|\d+)U?)$")
_ELEMENT = re.compile(r"([^\s\[]+)\s*\[\s*(0[xX][0-9a-fA-F]+|\d+)U?\s*\]$")  # of an array, whose address is meant


def to_int(text: str) -> int:
    text = text.replace(" ", "").rstrip("U")
    sign = 1
    while text and text[0] in "+-":
        sign = -sign if text[0] == "-" else sign
        text = text[1:]
    if len(text) > 1 and text[0] == "0" and text[1] in "01234567":
        return sign * int(text, 8)
    return sign * int(text, 0)


def split_operands(text: str) -> list[str]:
    """Splits at the commas outside of brackets."""
    text = text.strip()
    if "{" not in text and "[" not in text and "(" not in text:
        return [p.strip() for p in text.split(",")] if text else []
    out: list[str] = []
    depth = start = 0
    for i, c in enumerate(text):
        if c in "{[(":
            depth += 1
        elif c in "}])":
            depth -= 1
        elif c == "," and depth == 0:
            out.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    if last:
        out.append(last)
    return out


class _Parser:
    def __init__(self, module: Module, func: Func) -> None:
        self.module = module
        self.body = Body(func)
        self.scopes: list[dict[str, str]] = [{}]
        self.families: list[dict[str, tuple[int, str]]] = [{}]
        self.counter = 0
        self.cache: dict[str, Operand] = {}
        self.current: list[Ins] = []
        self.fixups: list[tuple[Ins, int]] = []
        self.vectors: dict[str, Vec] = {}  # of registers, by unique name

    # Names -----------------------------------------------------------------------------------------------------------------------------------

    def declare(self, name: str) -> str:
        """The unique name of a symbol declared in the innermost scope."""
        unique = name
        if len(self.scopes) > 1:
            self.counter += 1
            unique = f"{name}.{self.counter}"
        self.scopes[-1][name] = unique
        return unique

    def lookup(self, name: str) -> str | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def operand(self, text: str) -> Operand:
        found = self.cache.get(text)
        if found is None:
            found = self.cache[text] = self._operand(text.strip())
        return found

    def _operand(self, text: str) -> Operand:
        first = text[0] if text else ""
        part = _PART.match(text) if first == "-" or "." in text else None
        if part:
            register = self.operand(part.group(2))
            if isinstance(register, Reg):
                return Part(register, part.group(3) or "", bool(part.group(1)))
        if first == "{" and text[-1] == "}":
            return Vec(tuple(self.operand(p) for p in split_operands(text[1:-1])))
        if first == "[":
            inner = text[1:-1].strip()
            if "," in inner:
                return Vec(tuple(self.operand(p) for p in split_operands(inner)))
            match = _ADDRESS.match(inner)
            if match:
                offset = to_int(match.group(3))
                return Addr(self.operand(match.group(1)), -offset if match.group(2) == "-" else offset)
            return Addr(self.operand(inner), 0)
        if first == "!":
            return Not(self.operand(text[1:]))
        if "|" in text:
            a, b = text.split("|", 1)
            return Pair(self.operand(a), self.operand(b))
        if first.isdigit() or first in "-+":
            if _INT.match(text):
                return Imm(to_int(text))
            if text[:2] in ("0f", "0F"):
                return FloatImm(int(text[2:], 16), 32)
            if text[:2] in ("0d", "0D"):
                return FloatImm(int(text[2:], 16), 64)
            if _FLOAT.match(text):
                import struct

                return FloatImm(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
            raise BadPtx(f"cannot read the operand '{text}'")
        if first == "(":
            return self.operand(text[1:-1])
        unique = self.lookup(text)
        if unique is not None:
            return self.vectors.get(unique) or (Reg(unique) if unique in self.body.regs else Sym(unique, 0))
        if first == "%":
            base = text.split(".")[0]
            if base in SPECIALS or base.startswith(("%envreg", "%pm")):
                return Special(text)
        if text == "_":
            return Reg("_")
        if text == "WARP_SZ":
            return Imm(32)
        match = re.match(r"generic\s*\(\s*(.+?)\s*\)$", text)
        if match:
            return self.operand(match.group(1))
        if text in self.module.variables or text in self.module.funcs or any(p.name == text for p in self.body.func.params + self.body.func.returns):
            return Sym(text, 0)
        match = _ADDRESS.match(text)
        if match:
            base_op = self.operand(match.group(1))
            if isinstance(base_op, Sym):
                offset = to_int(match.group(3))
                return Sym(base_op.name, base_op.offset + (-offset if match.group(2) == "-" else offset))
        match = _ELEMENT.match(text)
        if match:
            base_op = self.operand(match.group(1))
            if isinstance(base_op, Sym):
                return Sym(base_op.name, base_op.offset + to_int(match.group(2)) * self.stride(base_op.name))
        return Name(text)

    def stride(self, array: str) -> int:
        variable = self.body.locals.get(array) or self.module.variables.get(array)
        if variable is None:
            raise BadPtx(f"'{array}' is no array")
        return variable.stride

    # Statements ------------------------------------------------------------------------------------------------------------------------------

    def parse(self) -> Body:
        text = strip_comments(self.module.body(self.body.func))
        if ".loc" in text:  # line information ends with its line, not with a semicolon
            text = _LINES.sub("", text)
        body = self.body
        self.start_block("$entry")
        statement = ""
        depth = 0  # braces inside a statement (vector operands, initialisers)
        for match in _PIECES.finditer(text):
            piece = match.group()
            if piece == ";":
                self.statement(statement)
                statement = ""
            elif piece == "{":
                stripped = self.labels(statement)
                if stripped:
                    depth += 1
                    statement = stripped + "{"
                else:
                    statement = ""
                    self.open()
            elif piece == "}":
                if depth:
                    depth -= 1
                    statement += "}"
                else:
                    if statement.strip():
                        stripped = self.labels(statement)
                        if stripped:
                            raise BadPtx(f"statement without ';': {stripped[:60]}")
                    statement = ""
                    self.close()
            else:
                statement += piece
        stripped = self.labels(statement)
        if stripped:
            raise BadPtx(f"statement without ';': {stripped[:60]}")
        self.resolve_labels()
        return body

    def open(self) -> None:
        self.scopes.append({})
        self.cache = {}

    def close(self) -> None:
        if len(self.scopes) == 1:
            raise BadPtx("braces do not match")
        self.scopes.pop()
        self.cache = {}

    def start_block(self, label: str) -> None:
        self.current = []
        self.body.blocks.append((label, self.current))

    def labels(self, text: str) -> str:
        """Takes the labels off the front of a statement; what remains."""
        text = text.strip()
        while text:
            match = _LABEL.match(text)
            if not match:
                return text
            rest = text[match.end() :]
            label = match.group(1)
            if rest.startswith(".branchtargets"):
                targets = rest[len(".branchtargets") :]
                self.body.label_lists[label] = [t.strip() for t in targets.split(",")]
                return ""
            if rest.startswith(".callprototype"):
                self.prototype(label, rest[len(".callprototype") :])
                return ""
            if rest.startswith(".calltargets"):
                return ""
            unique = self.declare(label)
            self.body.prototypes.pop(unique, None)
            self.start_block(unique)
            text = rest
        return ""

    def prototype(self, label: str, text: str) -> None:
        match = re.match(r"\s*(?:\(([^)]*)\))?\s*_\s*(?:\(([^)]*)\))?", text)
        if not match:
            raise BadPtx(f"cannot read the call prototype '{text[:60]}'")
        self.body.prototypes[label] = (parse_params(match.group(1)), parse_params(match.group(2)))

    def statement(self, text: str) -> None:
        text = self.labels(text)
        if not text:
            return
        if text[0] == ".":
            self.directive(text)
            return
        match = _STATEMENT.match(text)
        if not match:
            raise BadPtx(f"cannot read the statement '{text[:80]}'")
        neg, pred, opcode, rest = match.groups()
        if pred is not None:
            unique = self.lookup(pred)
            if unique is None or unique not in self.body.regs:
                raise BadPtx(f"the guard '{pred}' is not declared")
            pred = unique
        parts = opcode.split(".")
        op, mods = parts[0], tuple(parts[1:])
        if op == "callseq":
            return
        flow = traits_of(op, mods).flow
        if flow is Flow.CALL:
            ins = Ins(op, mods, [], pred, bool(neg), text)
            self.call(ins, rest)
        elif flow in (Flow.JUMP, Flow.INDEXED):
            operands = split_operands(rest)
            ops: list[Operand] = [self.operand(o) for o in operands[:-1]] + [Name(operands[-1])]
            ins = Ins(op, mods, ops, pred, bool(neg), text)
        else:
            ins = Ins(op, mods, [self.operand(o) for o in split_operands(rest)] if rest else [], pred, bool(neg), text)
        self.registers(ins)
        ins.text = " ".join(text.split())
        if flow in (Flow.JUMP, Flow.INDEXED):
            last = ins.ops[-1]
            assert isinstance(last, Name)
            ins.args = list(self.scopes) if len(self.scopes) > 1 else None  # what they will have declared by their ends
        self.current.append(ins)

    def resolve_labels(self) -> None:
        """Branches may name labels that were declared after them, in the same or an outer scope."""
        known = {label for label, _ in self.body.blocks}
        for _, block in self.body.blocks:
            for ins in block:
                if ins.traits.flow is not Flow.JUMP:
                    continue
                last = ins.ops[-1]
                assert isinstance(last, Name)
                name = last.name
                for scope in reversed(ins.args or []):  # type: ignore[call-overload]
                    if name in scope and scope[name] in known:
                        name = scope[name]
                        break
                if name not in known:
                    inner = [k for k in known if k.startswith(name + ".")]
                    if len(inner) != 1:
                        raise BadPtx(f"the label '{name}' is not declared")
                    name = inner[0]
                ins.ops[-1] = Name(name)
                ins.args = None

    def call(self, ins: Ins, rest: str) -> None:
        operands = split_operands(rest)
        returns: list[str] = []
        if operands and operands[0].startswith("("):
            returns = [self.param_name(r) for r in split_operands(operands[0][1:-1])]
            operands = operands[1:]
        if not operands:
            raise BadPtx(f"cannot read the call '{ins.text[:80]}'")
        target = self.operand(operands[0])
        args: list[Operand] = []
        prototype = None
        for operand in operands[1:]:
            if operand.startswith("("):
                args = [self.operand(a) for a in split_operands(operand[1:-1])]
            else:
                prototype = operand
        ins.args = Call(target, returns, args, prototype)

    def param_name(self, text: str) -> str:
        operand = self.operand(text)
        if isinstance(operand, (Sym, Reg)):
            return operand.name
        raise BadPtx(f"'{text}' is no .param variable")

    def registers(self, ins: Ins) -> None:
        """Fills in which registers the instruction writes and reads."""
        ops = ins.ops
        dsts: list[str] = []
        srcs: list[str] = []
        if ins.traits.result is Result.RETURNS:
            call = ins.args
            assert isinstance(call, Call)
            _collect(call.target, srcs)
            for arg in call.args:
                _collect(arg, srcs)
            dsts.extend(r for r in call.returns if r in self.body.regs)
        else:
            writes = ins.traits.result in (Result.FIRST, Result.UPDATES)
            for i, operand in enumerate(ops):
                _collect(operand, dsts if writes and i == 0 else srcs)
            if ins.traits.result is Result.UPDATES:
                _collect(ops[0], srcs)
        carry = ins.traits.carry
        if carry is not Carry.NONE:
            self.body.regs[CARRY] = TYPES["pred"]
        if carry in (Carry.WRITES, Carry.BOTH):
            dsts.append(CARRY)
        if carry in (Carry.READS, Carry.BOTH):
            srcs.append(CARRY)
        if ins.pred is not None:
            srcs.append(ins.pred)
        ins.dsts = [d for d in dsts if d != "_"]
        ins.srcs = [s for s in srcs if s != "_"]

    def directive(self, text: str) -> None:
        word = text.split(None, 1)[0]
        if word == ".extern":
            text = text[len(word) :].strip()
            word = text.split(None, 1)[0]
        if word == ".reg" or word.startswith(".reg."):
            self.reg(text)
        elif word in (".shared", ".local"):
            for variable in parse_variable(text + ";"):
                unique = self.declare(variable.name)
                variable.name = unique
                self.body.locals[unique] = variable
                self.cache = {}
        elif word == ".param":
            for param in parse_params(text[len(".param") :]):
                unique = self.declare(param.name)
                self.body.params[unique] = Param(unique, 0, param.size, param.align, param.is_array)
                self.cache = {}
        elif word.startswith((".pragma", ".branchtargets", ".calltargets", ".noreturn", ".maxnreg", ".global", ".const")):
            if word in (".global", ".const"):
                raise BadPtx(f"a {word} variable inside a function")
        else:
            raise BadPtx(f"unknown directive '{text[:60]}'")

    def register(self, name: str, kind: Type, parts: int) -> None:
        """Declares a register, or a vector of them, each of which has two names."""
        if parts == 1:
            self.body.regs[self.declare(name)] = kind
            return
        found = []
        for place, colour in list(zip("xyzw", "rgba", strict=True))[:parts]:
            unique = self.declare(f"{name}.{place}")
            self.scopes[-1][f"{name}.{colour}"] = unique
            self.body.regs[unique] = kind
            found.append(Reg(unique))
        self.vectors[self.declare(name)] = Vec(tuple(found))

    def reg(self, text: str) -> None:
        match = re.match(r"\.reg\s*(?:\.v([24])\s*)?\.(\w+)\s+(.*)$", text, re.S)
        if not match or match.group(2) not in TYPES:
            raise BadPtx(f"cannot read the register declaration '{text[:60]}'")
        kind, parts = TYPES[match.group(2)], int(match.group(1) or 1)
        for piece in match.group(3).split(","):
            family = re.match(r"\s*(.*?)<\s*(\d+)\s*>\s*$", piece)
            if family:
                if len(family.group(2)) > 7 or len(self.body.regs) + int(family.group(2)) * parts > MOST_REGISTERS:
                    raise BadPtx(f"more than {MOST_REGISTERS} registers in one function ('{text[:60]}')")
                for n in range(int(family.group(2))):
                    self.register(f"{family.group(1)}{n}", kind, parts)
            else:
                self.register(piece.strip(), kind, parts)
        self.cache = {}


def _collect(operand: Operand, into: list[str]) -> None:
    if isinstance(operand, Reg):
        into.append(operand.name)
    elif isinstance(operand, Vec):
        for item in operand.items:
            _collect(item, into)
    elif isinstance(operand, Addr):
        _collect(operand.base, into)
    elif isinstance(operand, Pair):
        _collect(operand.first, into)
        _collect(operand.second, into)
    elif isinstance(operand, (Not, Part)):
        _collect(operand.reg, into)


def parse_body(module: Module, func: Func) -> Body:
    """Parses the body of a defined function."""
    return _Parser(module, func).parse()
