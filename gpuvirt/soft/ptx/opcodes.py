"""What an opcode is, to all that asks: one row of the table (opcode_table.py) for each.

A row is all that the compiler knows of an opcode: its types and modifiers, its traits (what its instructions write, how they take part in control
flow, memory and synchronisation), the function that emits its code, and a line for the documentation. Analyses and code generation ask for traits
and name no opcode, so that a new opcode is a row and a function.

A row without a trait, or with one that does not fit the others, is an error when this module is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from functools import cache

from gpuvirt.soft.ptx.opcode_table import TABLE
from gpuvirt.soft.ptx.types import TYPES


class Result(Enum):
    """What an instruction writes."""

    NONE = "none"
    FIRST = "first"  # its first operand: a register, a vector of registers or a pair d|p
    UPDATES = "updates"  # its first operand, which it reads as well
    RETURNS = "returns"  # what a function returns


class Carry(Enum):
    """Its use of the condition code register."""

    NONE = "-"
    READS = "reads"
    WRITES = "writes"
    BOTH = "both"


class Varies(Enum):
    """Whether lanes of a warp may get different results, the instruction's guard aside."""

    NONE = "-"  # there is no result
    OPERANDS = "operands"  # if an operand differs between them
    ALWAYS = "always"
    NEVER = "never"
    MEMBERS = "members"  # if the mask of the lanes that take part differs
    ELECTED = "elected"  # the predicate always, the lane's number if the mask differs
    SHUFFLE = "shuffle"  # if the value differs and is not one lane's for all; a predicate beside it always
    PARAMETER = "parameter"  # if it is no kernel's parameter, or an operand differs


class Access(Enum):
    """Its access to memory."""

    NONE = "-"  # none that an analysis asks for
    LOAD = "load"  # reads at the address that is its second operand
    STORE = "store"  # writes at the address that is its first operand
    WRITES = "writes"  # in any other way
    STACK = "stack"  # the lane's stack pointer
    TAKES = "takes"  # moves it


class Sync(Enum):
    """The threads that it brings together, or that it asks for."""

    NONE = "-"
    EXCHANGE = "exchange"  # the lanes that its mask names exchange values
    MEMBERS = "members"  # the lanes that its mask names wait for each other
    WARP = "warp"  # all lanes of the warp execute it together
    OBSERVE = "observe"  # tells which lanes execute it in one go
    BARRIER = "barrier"  # the block's barrier, at which each warp comes as a whole
    LOOSE = "loose"  # the block's barrier, at which each thread comes by itself
    REDUCE = "reduce"  # the same with a result
    ARRIVE = "arrive"  # the block's barrier, without waiting
    CLUSTER = "cluster"  # the cluster's barrier
    WARPGROUP = "warpgroup"  # four warps of the block meet
    OBJECT = "object"  # a barrier object in memory
    SLEEP = "sleep"  # other warps may run meanwhile


class Polls(Enum):
    """Whether it reads memory that others write meanwhile, so that a loop may wait by it."""

    NONE = "-"
    ALWAYS = "always"
    NEUTRAL = "neutral"  # if its operand leaves the memory as it is (add 0)


class Flow(Enum):
    """What runs next, and what a guard does."""

    MASKED = "masked"  # the next instruction; lanes whose guard is false keep their registers and leave memory alone
    BRANCHED = "branched"  # the next instruction; a guard becomes a branch around it
    CALL = "call"  # a function, then the next; a guard becomes a branch around it
    JUMP = "jump"  # the label that is its last operand
    INDEXED = "indexed"  # a label of the list that is its last operand
    RETURN = "return"  # the function's end
    EXIT = "exit"  # the thread's end
    TRAP = "trap"  # the grid's end; a guard becomes a branch around it


class Formula(Enum):
    """What the result is of the operands, for the analyses of addresses, loop bounds and guards."""

    NONE = "-"  # nothing that they follow
    COPY = "copy"
    ADDRESS = "address"
    CONVERT = "convert"
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    MAD = "mad"
    FMA = "fma"
    SHL = "shl"
    SHR = "shr"
    AND = "and"
    OR = "or"
    XOR = "xor"
    CHOOSE = "choose"  # one of the two operands
    SHUFFLE = "shuffle"  # another lane's operand
    COMPARE = "compare"


class Denormals(Enum):
    """Whether its results are the same while the processor flushes subnormal numbers."""

    NONE = "-"  # it has no floating type
    KEEPS = "keeps"  # yes: it moves bits
    FTZ = "ftz"  # if it is an .f32 instruction that flushes itself
    CONVERTS = "converts"  # by its two types
    ADDS = "adds"  # if it adds .f32 in global memory
    NEVER = "never"


@dataclass(frozen=True)
class Traits:
    """What the compiler's passes ask of an instruction: the columns of the table."""

    result: Result
    carry: Carry
    varies: Varies
    access: Access
    sync: Sync
    polls: Polls
    flow: Flow
    formula: Formula
    denormals: Denormals

    @property
    def acts(self) -> bool:
        """Whether other threads may notice that the instruction was carried out."""
        return self.access in _NOTICED or self.sync in _JOINT or self.flow in (Flow.CALL, Flow.TRAP)


_NOTICED = (Access.STORE, Access.WRITES)
BARRIERS = (Sync.BARRIER, Sync.LOOSE, Sync.REDUCE)  # of the block, which wait
_JOINT = (*BARRIERS, Sync.ARRIVE, Sync.CLUSTER, Sync.WARPGROUP, Sync.MEMBERS, Sync.EXCHANGE)
COLUMNS: dict[str, type[Enum]] = {
    "result": Result, "carry": Carry, "varies": Varies, "access": Access, "sync": Sync, "polls": Polls, "flow": Flow, "formula": Formula,
    "denormals": Denormals,
}  # fmt: skip
assert list(COLUMNS) == [f.name for f in fields(Traits)]

# What is left to the emitter to refuse has these, so that a kernel is as good as its reachable instructions.
UNKNOWN = Traits(
    Result.NONE, Carry.NONE, Varies.NONE, Access.NONE, Sync.NONE, Polls.NONE, Flow.MASKED, Formula.NONE, Denormals.NONE
)  # fmt: skip
_FLOATS = {"f64", "f32", "f32x2", "bf16", "bf16x2", "e4m3x2", "e5m2x2"}  # formats with exponents that are subnormal in .f32 or .f64
_HINTS = ("L1::", "L2::", "level::")  # modifiers that change nothing that a program could see


@dataclass(frozen=True)
class Opcode:
    """A row of the table."""

    name: str
    types: frozenset[str]
    modifiers: frozenset[str]
    base: Traits
    variants: tuple[tuple[frozenset[str], Traits], ...]  # of instructions that have one of the modifiers; the first counts
    handler: str  # MODULE:FUNCTION in gpuvirt.soft.ops, empty where the control flow graph is all there is of it
    subject: str
    doc: str

    @property
    def all(self) -> tuple[Traits, ...]:
        return (self.base, *(traits for _, traits in self.variants))

    def traits(self, mods: tuple[str, ...]) -> Traits:
        for some, traits in self.variants:
            if not some.isdisjoint(mods):
                return traits
        return self.base


class TableError(Exception):
    """The table has a row that says too little, or contradicts itself."""


def read(text: str) -> dict[str, Opcode]:
    """The rows of a table's text.

    Raises:
        TableError: a row lacks something, has an unknown word, or does not agree with itself.
    """
    found: dict[str, Opcode] = {}
    subject = ""
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith(" "):
            block.append(line)
            continue
        if block:
            row = _row(block, subject)
            if row.name in found:
                raise TableError(f"two rows of '{row.name}'")
            found[row.name] = row
        block = [line] if line and not line.startswith("# ") else []
        if line.startswith("# "):
            subject = line[2:]
    return found


def _row(lines: list[str], subject: str) -> Opcode:
    name = lines[0].split("|")[0].strip()
    traits = [line for i, line in enumerate(lines) if i == 0 or line.lstrip().startswith(".")]
    if len(lines) != len(traits) + 2:
        raise TableError(f"'{name}': behind its traits a row has a line with function and documentation, and one with types and modifiers")
    about, forms = lines[-2:]
    handler, bar, doc = (part.strip() for part in about.partition("|"))
    types, bar2, modifiers = forms.partition("|")
    if not (bar and bar2 and handler and doc and subject):
        raise TableError(f"'{name}' lacks its function, documentation, types, modifiers or subject")
    read_lines = [_traits(name, line) for line in traits]
    variants = []
    for line, one in zip(traits[1:], read_lines[1:], strict=True):
        some = frozenset(word.removeprefix(".") for word in line.split("|")[0].split())
        if not some <= set(modifiers.split()):
            raise TableError(f"'{name}' has traits of modifiers that it does not have: {line.split('|')[0].strip()}")
        variants.append((some, one))
    row = Opcode(
        name, frozenset(types.split()), frozenset(modifiers.split()), read_lines[0], tuple(variants), "" if handler == "-" else handler, subject, doc
    )
    _check(row)
    return row


def _traits(name: str, line: str) -> Traits:
    cells = [cell.strip() for cell in line.split("|")[1:]]
    if len(cells) != len(COLUMNS):
        raise TableError(f"'{name}' has {len(cells)} traits, not {len(COLUMNS)}: {line}")
    try:
        return Traits(*(kind(cell) for kind, cell in zip(COLUMNS.values(), cells, strict=True)))  # type: ignore[arg-type]
    except ValueError as error:
        raise TableError(f"'{name}': {error}") from error


def _check(row: Opcode) -> None:
    """What traits of one row must have in common."""
    for traits in row.all:
        if (traits.result is Result.NONE) != (traits.varies is Varies.NONE):
            raise TableError(f"'{row.name}': an instruction has a result just if it says how that varies")
        floating = bool(_FLOATS & row.types) or any(m.startswith("kind::") for m in row.modifiers)
        if (traits.denormals is Denormals.NONE) == floating:
            raise TableError(f"'{row.name}': an instruction has floating types just if it says what becomes of subnormal numbers")
        if (traits.flow in (Flow.JUMP, Flow.INDEXED, Flow.RETURN)) == bool(row.handler):
            raise TableError(f"'{row.name}': what the control flow graph does has no function, all else has one")


OPCODES = read(TABLE)
FLOATS = frozenset(_FLOATS)


@cache
def traits_of(op: str, mods: tuple[str, ...]) -> Traits:
    """The traits of an instruction."""
    row = OPCODES.get(op)
    return row.traits(mods) if row is not None else UNKNOWN


@cache
def unknown(op: str, mods: tuple[str, ...]) -> str | None:
    """The first modifier that the opcode does not have; None when it has them all. A type or modifier of a row does not go with every other one: what
    is left is refused where the instruction is emitted."""
    row = OPCODES[op]
    return next((m for m in mods if m not in row.types and m not in row.modifiers and not m.startswith(_HINTS)), None)


__all__ = [
    "BARRIERS", "COLUMNS", "FLOATS", "OPCODES", "TYPES", "Access", "Carry", "Denormals", "Flow", "Formula", "Opcode", "Polls", "Result", "Sync",
    "TableError", "Traits", "Varies", "read", "traits_of", "unknown",
]  # fmt: skip
