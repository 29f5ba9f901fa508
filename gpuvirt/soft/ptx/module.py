"""The lazy index of a PTX module: which kernels, functions and variables it has, without a look into the bodies.

Libraries bring tens of megabytes of PTX of which a program launches a handful of kernels, so loading scans the text once with
compiled regular expressions and remembers where each body lies.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field

from gpuvirt.soft.errors import BadPtx, TooNew, Unsupported
from gpuvirt.soft.ptx.types import TYPES


@dataclass
class Param:
    """A formal parameter: offset and size in the packed buffer, bytes."""

    name: str
    offset: int
    size: int
    align: int
    is_array: bool = False


@dataclass
class Variable:
    """A module- or function-scope variable; `init` is the initialiser's text, not yet evaluated. stride: bytes from one element to the next."""

    name: str
    space: str
    align: int
    size: int
    element: str
    linkage: str = ""
    init: str | None = None
    unsized: bool = False
    stride: int = 1
    managed: bool = False


@dataclass
class Func:
    """A kernel or device function and where its body's text lies (start == end: only declared)."""

    name: str
    is_kernel: bool
    params: list[Param]
    returns: list[Param]
    start: int
    end: int
    directives: str
    linkage: str = ""
    static_shared: int = 0
    local_bytes: int = 0
    aliases: list[str] = field(default_factory=list)

    @property
    def param_bytes(self) -> int:
        return max((p.offset + p.size for p in self.params), default=0)


@dataclass
class Item:
    """A declaration or definition at module scope and the text it takes, linkage included. kind: func, variable, alias."""

    kind: str
    name: str
    linkage: str
    start: int
    end: int
    defined: bool


_SPACE = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)+", re.S)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_WORD = re.compile(r"\.?[\w$%]+")
_BRACE = re.compile(r"[{}]|//[^\n]*|/\*.*?\*/|\"(?:[^\"\\]|\\.)*\"", re.S)
_FUNC_HEAD = re.compile(r"\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?", re.S)
VARIABLE = re.compile(
    r"\.(global|const|shared|local|param)\s+((?:\.(?!(?:[busf]\d|pred|bf16|f16x2|v[248]\b))\w+(?:::\w+)?(?:\s*\([^)]*\)|\s+\d+)?\s+)*)"
    r"(?:\.v([248])\s+)?\.(\w+)\s+([\w$%]+)((?:\s*\[[^\]]*\])*)\s*(?:=\s*([^;]*?))?\s*(?:;|$)",
    re.S,
)
_IN_BODY = re.compile(r"\.(?:shared|local)\s+[.\w\s()]*?\.[busf]\w+\s+[\w$%]+(?:\s*\[[^\];]*\])*\s*;")
_NAMES = re.compile(r"[\w$%]+")
_LINKAGES = (".visible", ".extern", ".weak", ".common")
_IGNORED = (".pragma", ".texref", ".samplerref", ".surfref", ".branchtargets", ".calltargets", ".callprototype")  # at module scope
_HEAD = re.compile(r"\.(?:entry|func)\s")
_NEXT = re.compile(r"\.(?:visible|extern|weak|common|entry|func|global|const)\s")
_TEX = re.compile(r"\.tex\s+\.[us](?:32|64)\s")
# Opaque variables. Each is the descriptor that the driver fills when the program binds it (struct soft_texture), so that its address is a handle.
OPAQUE = ("texref", "samplerref", "surfref")
_DESCRIPTOR_BYTES = 128


def strip_comments(text: str) -> str:
    """The text without comments."""
    return _COMMENT.sub(" ", text)


NEWEST = 9  # of PTX's versions
_MOST_BYTES = 1 << 48  # of a variable: more than any memory
_MOST_PARAMS = 1 << 20  # bytes; a kernel may have 32764, a device function's are as large as a structure of the language


def _number(text: str) -> int:
    try:
        return int(text[:40], 0)
    except ValueError:
        raise BadPtx(f"'{text[:40]}' is no number of elements") from None


def _alignment(text: str, otherwise: int) -> int:
    found = re.search(r"\.align\s+(\d+)", text)
    if not found:
        return otherwise
    align = int(found.group(1)) if len(found.group(1)) < 5 else 0
    if align < 1 or align & (align - 1):
        raise BadPtx(f"an alignment of {found.group(1)[:20]}: it is a power of two, and at most 8192")
    return align


def parse_variable(text: str, linkage: str = "") -> list[Variable]:
    """The variables of one declaration (`.shared .align 4 .b8 name[12];`)."""
    match = VARIABLE.match(text.strip())
    if not match:
        raise BadPtx(f"cannot read the declaration '{text.strip()[:80]}'")
    space, attributes, vector, element, name, dims, init = match.groups()
    if element not in TYPES:
        if element in OPAQUE:
            if space != "global" or dims:
                raise Unsupported(f"references to textures, samplers and surfaces that are arrays or not .global: '{text.strip()[:80]}'")
            return [Variable(name, space, 64, _DESCRIPTOR_BYTES, element, linkage, init)]
        raise BadPtx(f"unknown type .{element} in '{text.strip()[:80]}'")
    size = TYPES[element].bits // 8 * int(vector or 1)
    align = _alignment(attributes or "", size)
    unsized = False
    count = 1
    for dim in re.findall(r"\[([^\]]*)\]", dims or ""):
        if dim.strip():
            count *= _number(dim.strip().rstrip("U"))
        else:
            unsized = True
            if init:
                count *= init.count(",") + 1
    if unsized and not init:
        count = 0
    if size * count > _MOST_BYTES:
        raise BadPtx(f"the variable '{name}' has {size * count} bytes")
    first = Variable(name, space, align, size * count, element, linkage, init, unsized and not init, size, ".managed" in (attributes or ""))
    return [first]


def parse_params(text: str | None) -> list[Param]:
    """Formal parameters with their offsets in the packed buffer."""
    params: list[Param] = []
    offset = 0
    for piece in strip_comments(text or "").split(","):
        piece = piece.strip()
        if not piece:
            continue
        match = re.search(r"\.(?:v([248])\s+)?(?:\.?)([busf]\d+|bf16|f16x2|pred)\b(.*)$", piece, re.S)
        name = re.search(r"([\w$%]+)\s*((?:\[\s*\d*\s*\])*)\s*$", piece)
        if not match or not name:
            raise BadPtx(f"cannot read the parameter '{piece[:80]}'")
        element = max(TYPES[match.group(2)].bits // 8, 1)
        size = element
        dims = re.findall(r"\d+", name.group(2))
        for dim in dims:
            size *= _number(dim)
        # In `.param .u64 .ptr .align 16 name` the alignment belongs to what is pointed at.
        align = _alignment(piece.split(".ptr")[0], element)
        offset = (offset + align - 1) // align * align
        params.append(Param(name.group(1), offset, size, align, bool(name.group(2).strip())))
        offset += size
    if offset > _MOST_PARAMS:
        raise BadPtx(f"parameters of {offset} bytes")
    return params


class Module:
    """A PTX module's index. Function bodies are text until somebody asks for them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.version = 0
        self.target = ""
        self.funcs: dict[str, Func] = {}
        self.kernels: list[Func] = []
        self.variables: dict[str, Variable] = {}
        self.address_taken: set[str] | None = None
        self.items: list[Item] = []
        self._scan()
        self._sizes()
        self.globals = [v for v in self.variables.values() if v.space in ("global", "const") and not v.unsized and v.linkage != "extern"]

    def _scan(self) -> None:
        """Goes through the declarations at module scope, without a look into bodies."""
        text, position, size = self.text, 0, len(self.text)
        linkage, begin = "", 0
        while True:
            match = _SPACE.match(text, position)
            if match:
                position = match.end()
            if position >= size:
                return
            if not linkage:
                begin = position
            word = _WORD.match(text, position)
            if not word:
                if text[position] == ";":
                    position += 1
                    continue
                raise BadPtx(f"unexpected '{text[position : position + 20]}' at module scope, line {self._line(position)}")
            key = word.group()
            if key in _LINKAGES:
                linkage = key[1:]
                position = word.end()
                continue
            position = self._declaration(key, linkage, begin, position)
            if position <= begin:  # what should end it was not found
                raise BadPtx(f"a declaration without end: '{text[begin : begin + 60]}', line {self._line(begin)}")
            linkage = ""

    def _declaration(self, key: str, linkage: str, begin: int, position: int) -> int:
        """Takes up what stands at `position` and begins with `key`; its text, linkage included, begins at `begin`. Returns the position after it."""
        if key in (".entry", ".func"):
            name, defined, position = self._function(position, linkage)
            self.items.append(Item("func", name, linkage, begin, position, defined))
            return position
        if key in (".global", ".const", ".shared"):
            return self._variables(linkage, begin, position)
        if key == ".section" or key.startswith("@"):
            brace = self.text.find("{", position)
            return self._skip_braces(brace) if brace >= 0 else len(self.text)
        if key in (".version", ".target", ".address_size", ".file", ".loc"):
            return self._directive_line(key, position)
        if key == ".alias":
            return self._alias(linkage, begin, position)
        if key == ".tex":  # an older way to write .global .texref
            return self._variables(linkage, begin, position)
        if key not in _IGNORED:
            raise BadPtx(f"unknown directive {key} at module scope, line {self._line(position)}")
        end = self.text.find(";", position)
        return (len(self.text) if end < 0 else end) + 1

    def _variables(self, linkage: str, begin: int, position: int) -> int:
        end = self._semicolon(position)
        for variable in parse_variable(_TEX.sub(".global .texref ", strip_comments(self.text[position:end])), linkage):
            if variable.linkage != "extern" or variable.name not in self.variables:
                self.variables[variable.name] = variable
            self.items.append(Item("variable", variable.name, linkage, begin, end, variable.linkage != "extern"))
        return end

    def _directive_line(self, key: str, position: int) -> int:
        """A directive that ends with its line."""
        end = self.text.find("\n", position)
        end = len(self.text) if end < 0 else end
        line = self.text[position:end]
        if key == ".version":
            self._set_version(line)
        elif key == ".target":
            found = re.search(r"sm_(\w+)", line)
            self.target = found.group(1) if found else ""
        elif key == ".address_size" and "64" not in line:
            raise Unsupported("32-bit PTX (.address_size 32)")
        return end

    def _set_version(self, line: str) -> None:
        numbers = re.findall(r"\d+", line)
        if len(numbers) < 2 or len(numbers[0]) + len(numbers[1]) > 6:
            raise BadPtx(f"cannot read '{line[:60]}'")
        self.version = int(numbers[0]) * 10 + int(numbers[1])
        if int(numbers[0]) > NEWEST:
            raise TooNew(f"this is PTX of version {numbers[0]}.{numbers[1]}; the software GPU knows {NEWEST}.x: build with an older CUDA toolkit")

    def _alias(self, linkage: str, begin: int, position: int) -> int:
        end = self._semicolon(position)
        names = _NAMES.findall(self.text[position + len(".alias") : end - 1])
        if len(names) == 2 and names[1] in self.funcs:
            self.funcs[names[0]] = self.funcs[names[1]]
            self.items.append(Item("alias", names[0], linkage, begin, end, True))
        return end

    def _semicolon(self, position: int) -> int:
        """The position after the declaration's semicolon."""
        end = self.text.find(";", position)
        if end < 0:
            raise BadPtx(f"a declaration without ';': {self.text[position : position + 60]}")
        return end + 1

    def _line(self, position: int) -> int:
        """The number of a position's line, from 1."""
        return self.text.count("\n", 0, position) + 1

    def _skip_braces(self, position: int) -> int:
        depth = 0
        for match in _BRACE.finditer(self.text, position):
            token = match.group()
            if token == "{":
                depth += 1
            elif token == "}":
                depth -= 1
                if depth == 0:
                    return match.end()
        raise BadPtx("braces do not match")

    def _body_end(self, start: int) -> int:
        """The position after the '}' that closes the '{' at `start`."""
        text = self.text
        position, opened, closed = start, 0, 0
        for _ in range(8):  # compilers put a function's last brace in the first column, and nothing else there
            end = text.find("\n}", position)
            if end < 0:
                break
            opened += text.count("{", position, end + 2)
            closed += text.count("}", position, end + 2)
            if opened == closed:
                if _HEAD.search(text, start, end) or text.startswith(";", end + 2):
                    break  # what began at `start` ended on a line of its own making, and this is another's brace
                return end + 2
            position = end + 2
        return self._skip_braces(start)

    def _function(self, position: int, linkage: str) -> tuple[str, bool, int]:
        """(name, whether it has a body, position after it)."""
        text = self.text
        head = _FUNC_HEAD.match(text, position)
        if not head:
            cleaned = strip_comments(text[position : position + 65536])
            head = _FUNC_HEAD.match(cleaned)
            raise BadPtx(f"cannot read the function header '{text[position : position + 80]}'" + (" (comment inside)" if head else ""))
        kind, returns, name, params = head.groups()
        brace = text.find("{", head.end())
        semicolon = text.find(";", head.end())
        bounds = [at for at in (brace, semicolon) if at >= 0]
        following = _NEXT.search(text, head.end(), min(bounds)) if bounds else None
        if following:  # a declaration without a semicolon, as a driver takes it (XLA has some)
            start = end = after = following.start()
        elif brace < 0 or 0 <= semicolon < brace:
            start = end = semicolon
            after = semicolon + 1
        else:
            start, after = brace + 1, self._body_end(brace)
            end = after - 1
        directives = text[head.end() : brace if start != end else end]
        func = Func(name, kind == "entry", parse_params(params), parse_params(returns), start, end, directives, linkage)
        old = self.funcs.get(name)
        if old is None or old.start == old.end:
            self.funcs[name] = func
            if func.is_kernel and start != end:
                self.kernels.append(func)
        return name, start != end, after

    def _sizes(self) -> None:
        """Static shared and local memory of every function, from the declarations in the bodies and the module's shared variables in use."""
        distinct = {id(f): f for f in self.funcs.values()}
        bodies = sorted((f for f in distinct.values() if f.start != f.end), key=lambda f: f.start)
        starts = [f.start for f in bodies]

        def owner(position: int) -> Func | None:
            index = bisect.bisect_right(starts, position) - 1
            return bodies[index] if index >= 0 and position < bodies[index].end else None

        shared_users: set[str] = set()
        own: dict[str, int] = {}
        for match in _IN_BODY.finditer(self.text):
            func = owner(match.start())
            if func is None:
                continue
            for variable in parse_variable(match.group()):
                if variable.space == "shared":
                    own[func.name] = _place(own.get(func.name, 0), variable)[1]
                    shared_users.add(func.name)
                else:
                    func.local_bytes = _place(func.local_bytes, variable)[1]
        used: dict[str, list[Variable]] = {}
        for variable in self.variables.values():
            if variable.space != "shared" or variable.unsized or variable.linkage == "extern":
                continue
            for match in re.finditer(re.escape(variable.name), self.text):
                func = owner(match.start())
                if func is not None and variable not in used.setdefault(func.name, []):
                    used[func.name].append(variable)
                    shared_users.add(func.name)
        device = [f for f in bodies if not f.is_kernel and f.name in shared_users]
        if device:  # a kernel's size includes that of the functions it calls
            self._module_shared_in_functions(bodies, device, own, used)
        for func in bodies:
            size = 0
            for variable in used.get(func.name, []):
                size = _place(size, variable)[1]
            func.static_shared = (size + 15) // 16 * 16 + own.get(func.name, 0) if own.get(func.name) else size

    def _module_shared_in_functions(self, bodies: list[Func], device: list[Func], own: dict[str, int], used: dict[str, list[Variable]]) -> None:
        callers: dict[str, set[str]] = {f.name: set(_NAMES.findall(self.text[f.start : f.end])) for f in bodies}
        changed = True
        while changed:
            changed = False
            for callee in list(device):
                for func in bodies:
                    if func is callee or callee.name not in callers[func.name]:
                        continue
                    before = (own.get(func.name, 0), len(used.get(func.name, [])))
                    for variable in used.get(callee.name, []):
                        if variable not in used.setdefault(func.name, []):
                            used[func.name].append(variable)
                    key = f"{callee.name}+{func.name}"
                    if own.get(callee.name) and key not in own:
                        own[key] = 1
                        own[func.name] = (own.get(func.name, 0) + 15) // 16 * 16 + own[callee.name]
                    if before != (own.get(func.name, 0), len(used.get(func.name, []))):
                        changed = True
                        if not func.is_kernel and func not in device:
                            device.append(func)

    def body(self, func: Func) -> str:
        """The text between a function's braces."""
        return self.text[func.start : func.end]

    def shared_used(self, name: str) -> bool:
        variable = self.variables.get(name)
        return variable is not None and variable.space == "shared"


def _place(size: int, variable: Variable) -> tuple[int, int]:
    """(offset, new size) of a variable put after `size` bytes."""
    offset = (size + variable.align - 1) // variable.align * variable.align
    return offset, offset + variable.size
