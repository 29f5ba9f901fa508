"""Loads functions/*.toml and joins it with the headers: what each function does here, and which implementation serves each of its symbols."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from headers import Api, Parameter, Symbol

KEYS = {"class", "why", "note", "before_init", "after_fork", "outside", "split", "roles"}
ROLES = re.compile(
    r"(?:in|out|inout)(?:\[\w+\])?|new|freed|handle|(?:new |out |freed )?address|host (?:in|out|inout)\[\w+\]|string|text\[\w+\]|opaque"
)


class SpecError(Exception):
    """The tables and the headers do not fit."""


@dataclass
class Function:
    """A function of the driver by its base name, with all symbols that the headers declare for it."""

    base: str
    title: str  # the page's section
    file: str  # where its implementation lies
    symbols: list[Symbol]
    kind: str  # local, async, sync or unsupported
    reason: str = ""  # why sync, why unsupported
    note: str = ""
    before_init: bool = False
    after_fork: bool = False
    outside: bool = False  # works outside of the program's blocks with GPUs although it reaches the server: frees, destroys, waits, queries
    split: bool = False
    roles: dict[str, str] = field(default_factory=dict)
    declared: bool = True  # in cuda.h; else it is exported all the same

    @property
    def supported(self) -> bool:
        return self.kind != "unsupported"

    def parameters(self, symbol: Symbol) -> tuple[Parameter, ...]:
        """The parameters as the implementation takes them: a symbol from before CUDA 3.2, with its 32-bit addresses, is served with today's types."""
        same = [s for s in self.symbols if not s.stream and widens(symbol, s)]
        return same[-1].parameters if same else symbol.parameters

    def implementation(self, symbol: Symbol) -> str:
        """impl_<base> when all symbols take the same arguments; else impl_<oldest symbol that takes these>; with `split`, impl_<symbol>."""
        if self.split:
            return f"impl_{symbol.plain}"
        plain = [s for s in self.symbols if not s.stream]
        signature = self.signature(symbol)
        if all(self.signature(s) == signature for s in plain):
            return f"impl_{self.base}"
        oldest = next(s for s in plain if self.signature(s) == signature)
        return f"impl_{oldest.name}"

    def signature(self, symbol: Symbol) -> tuple[str, ...]:
        return tuple(p.type for p in self.parameters(symbol))

    def role(self, parameter: Parameter) -> str:
        """The parameter's role; what its type says alone is not in the table."""
        if parameter.name in self.roles:
            return self.roles[parameter.name]
        if parameter.type == "const char *":
            return "string"
        if parameter.type == "CUdeviceptr":
            return "address"
        if parameter.type.endswith("*"):
            raise SpecError(f"{self.base}: pointer parameter {parameter.declaration} needs a role")
        return "handle" if parameter.type in HANDLES else "in"


HANDLES = {
    "CUcontext", "CUstream", "CUevent", "CUmodule", "CUfunction", "CUlibrary", "CUkernel", "CUmemoryPool", "CUlogsCallbackHandle", "CUarray",
    "CUmipmappedArray", "CUtexref", "CUsurfref", "CUgraph", "CUgraphNode", "CUgraphExec",
}  # fmt: skip


def widened(old: str) -> set[str]:
    """What a type from before CUDA 3.2 became. (What a kernel node is given became longer in CUDA 12.)"""
    struct = re.sub(r"(CUDA_(?!KERNEL_NODE)\w+)_v1\b", r"\1", old)
    return {old, old.replace("unsigned int", "size_t"), old.replace("CUdeviceptr_v1", "CUdeviceptr"), struct}


def widens(old: Symbol, new: Symbol) -> bool:
    """True when `new` takes the arguments of `old` in 64 bits."""
    if old.revision >= new.revision or old.revision != 1 or len(old.parameters) != len(new.parameters):
        return False
    return all(q.type in widened(p.type) for p, q in zip(old.parameters, new.parameters, strict=True))


def load(folder: Path, api: Api) -> list[Function]:
    """All functions of the headers, those of the tables first and in their order. A function that nobody mentions is an error."""
    bases = api.bases()
    functions: list[Function] = []
    problems: list[str] = []
    groups: dict[str, list[str]] = {}
    undeclared: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.toml")):
        table = tomllib.loads(path.read_text())
        groups |= table.pop("unsupported", {})
        undeclared |= table.pop("undeclared", {})
        title, file = table.pop("title", ""), table.pop("file", "")
        for base, entry in table.items():
            if base not in bases:
                problems.append(f"{path.name}: {base} is in no header")
                continue
            try:
                functions.append(function(base, title, file, bases[base], entry))
            except SpecError as error:
                problems.append(f"{path.name}: {error}")
    mentioned = {f.base for f in functions}
    if len(mentioned) != len(functions):
        problems.append("a function is in two tables")
    for base in sorted(bases.keys() - mentioned):
        matches = [reason for reason, patterns in groups.items() if any(fnmatchcase(base, p) for p in patterns)]
        if len(matches) != 1:
            problems.append(f"{base}: {'no table mentions it; give it a class or a reason' if not matches else f'has several reasons: {matches}'}")
        else:
            functions.append(Function(base, "Not supported", "", bases[base], "unsupported", matches[0]))
    for reason, patterns in groups.items():
        problems += [f"unsupported: {p} ({reason}) matches nothing" for p in patterns if not any(fnmatchcase(b, p) for b in bases.keys() - mentioned)]
    for reason, names in undeclared.items():
        problems += [f"undeclared: {name} is in the headers" for name in names if name in bases]
        functions += [
            Function(name, "Not supported", "", [Symbol(name, name, 1, "", (), False)], "unsupported", reason, declared=False) for name in names
        ]
    if problems:
        raise SpecError("\n".join(problems))
    return functions


def function(base: str, title: str, file: str, symbols: list[Symbol], entry: dict[str, object]) -> Function:
    """Checks one entry against the symbols it describes."""
    unknown = entry.keys() - KEYS
    kind = entry.get("class")
    if unknown or kind not in ("local", "async", "sync"):
        raise SpecError(f"{base}: unknown key or class: {sorted(unknown) or kind}")
    if (kind == "sync") != ("why" in entry):
        raise SpecError(f"{base}: a sync function, and no other, says why")
    roles = entry.get("roles", {})
    assert isinstance(roles, dict)
    found = Function(
        base,
        title,
        file,
        symbols,
        str(kind),
        str(entry.get("why", "")),
        str(entry.get("note", "")),
        bool(entry.get("before_init")),
        bool(entry.get("after_fork")),
        bool(entry.get("outside")),
        bool(entry.get("split")),
        roles,
    )
    names = {p.name for s in symbols for p in s.parameters}
    if stale := roles.keys() - names:
        raise SpecError(f"{base}: no such parameter: {sorted(stale)}")
    for role in roles.values():
        if not ROLES.fullmatch(role):
            raise SpecError(f"{base}: no such role: {role}")
        if (length := re.search(r"\[(\w+)\]", role)) and length[1] not in names:
            raise SpecError(f"{base}: {role}: no such parameter")
    for symbol in symbols:
        for parameter in found.parameters(symbol):
            found.role(parameter)
    return found
