"""Reads the CUDA driver API out of NVIDIA's headers: exported symbols with their parameters, versions that cuGetProcAddress knows, CUresult."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pycparser import c_ast, c_generator, c_parser

# What cuda.h needs of the C library. The real headers hold compiler extensions that pycparser does not read.
LIBC = {
    "stdlib.h": "typedef unsigned long size_t; typedef int wchar_t;\n",
    "stdint.h": "typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;\n"
    "typedef int int32_t; typedef unsigned uint32_t; typedef long int64_t; typedef unsigned long uint64_t; typedef unsigned long uintptr_t;\n",
    "stddef.h": "typedef unsigned long size_t;\n",
}

# Exported by the driver and asked for by the runtime, but declared in cudaProfiler.h, which the wheels do not carry.
EXTRA = (
    "CUresult cuProfilerInitialize(const char *configFile, const char *outputFile, int outputMode);\n"
    "CUresult cuProfilerStart(void);\nCUresult cuProfilerStop(void);\n"
)
EXTRA_VERSIONS = {"cuProfilerInitialize": 4000, "cuProfilerStart": 4000, "cuProfilerStop": 4000}

SYMBOL = re.compile(r"(?P<base>cu\w+?)(?:_v(?P<revision>\d+))?(?P<stream>_ptsz|_ptds)?")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function. `type` is its declaration without the name; `by_value` is true for a struct passed as it is."""

    name: str
    type: str
    declaration: str
    by_value: bool = False


@dataclass(frozen=True)
class Symbol:
    """One exported function: cuMemcpyHtoD_v2_ptds has base cuMemcpyHtoD, revision 2 and stream "_ptds"."""

    name: str
    base: str
    revision: int
    stream: str
    parameters: tuple[Parameter, ...]
    newest: bool  # declared by the newest header, so its types can be used in generated code
    returns: str = "CUresult"

    @property
    def plain(self) -> str:
        """The symbol without _ptsz or _ptds."""
        return self.name.removesuffix(self.stream) if self.stream else self.name


@dataclass(frozen=True)
class Result:
    """One value of CUresult; `text` is the first sentence of its comment."""

    name: str
    value: int
    text: str


@dataclass
class Api:
    """Everything of the driver API that the headers tell."""

    symbols: dict[str, Symbol] = field(default_factory=dict)
    # (base name, version, "" or "_ptsz" or "_ptds") -> parameter types of that version
    versions: dict[tuple[str, int, str], tuple[str, ...]] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    # Type name -> "i4", "u4", "u8", "f4", "pointer" (handles too), for everything that fits a register.
    scalars: dict[str, str] = field(default_factory=dict)
    version: int = 0

    def bases(self) -> dict[str, list[Symbol]]:
        """All symbols by base name, oldest revision first, the plain one before its per-thread variant."""
        found: dict[str, list[Symbol]] = {}
        for symbol in sorted(self.symbols.values(), key=lambda s: (s.base, s.revision, s.stream)):
            found.setdefault(symbol.base, []).append(symbol)
        return found


def preprocess(text: str, include: Path) -> str:
    """The text after the C preprocessor, in the form that pycparser reads."""
    compiler = os.environ.get("CC", "cc").split()
    with tempfile.TemporaryDirectory() as folder:
        for name, content in LIBC.items():
            Path(folder, name).write_text(content)
        command = [
            *compiler,
            "-E",
            "-P",
            "-nostdinc",
            "-D__attribute__(x)=",
            "-D__extension__=",
            "-D__inline__=inline",
            "-D__CUDA_API_VERSION_INTERNAL",
        ]
        done = subprocess.run([*command, "-I", folder, "-I", str(include), "-x", "c", "-"], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{include}: the preprocessor failed:\n{done.stderr}")
    return done.stdout


def parameters_of(declaration: c_ast.FuncDecl, structs: set[str]) -> tuple[Parameter, ...]:
    generator = c_generator.CGenerator()
    found = []
    for i, p in enumerate(declaration.args.params if declaration.args else []):
        text = generator.visit(p)
        if text == "void":
            break
        name = p.name or f"a{i}"
        if isinstance(p.type, c_ast.TypeDecl):
            p.type.declname = None
        elif isinstance(p.type, c_ast.ArrayDecl):
            # A parameter that is written as an array is a pointer.
            p.type = c_ast.PtrDecl([], p.type.type)
        kind = type_text(p.type)
        by_value = isinstance(p.type, c_ast.TypeDecl) and kind.removeprefix("const ") in structs
        found.append(Parameter(name, kind, joined(kind, name), by_value))
    return tuple(found)


def type_text(node: c_ast.Node) -> str:
    """A type without a name: const char *, CUdeviceptr, void **."""
    if isinstance(node, c_ast.PtrDecl):
        inner = type_text(node.type)
        return f"{inner}{'' if inner.endswith('*') else ' '}*{' '.join(node.quals)}"
    if isinstance(node, c_ast.TypeDecl):
        return " ".join([*node.quals, *plain_names(node.type)])
    raise SystemExit(f"a parameter of a form that the generator does not know: {c_generator.CGenerator().visit(node)}")


def plain_names(node: c_ast.Node) -> list[str]:
    if isinstance(node, c_ast.IdentifierType):
        return list(node.names)
    if isinstance(node, c_ast.Struct):
        return ["struct", node.name]
    if isinstance(node, c_ast.Enum):
        return ["enum", node.name]
    raise SystemExit(f"a parameter of a form that the generator does not know: {type(node).__name__}")


def joined(kind: str, name: str) -> str:
    return f"{kind}{name}" if kind.endswith("*") else f"{kind} {name}"


def struct_names(tree: c_ast.FileAST) -> set[str]:
    """Typedef names that stand for a struct or union as a value."""
    found: set[str] = set()
    for node in tree.ext:
        if isinstance(node, c_ast.Typedef) and isinstance(node.type, c_ast.TypeDecl):
            inner = node.type.type
            aliased = isinstance(inner, c_ast.IdentifierType) and inner.names[0] in found
            if aliased or isinstance(inner, (c_ast.Struct, c_ast.Union)):
                found.add(node.name)
    return found


BUILTIN = {
    "char": "i1", "signed char": "i1", "unsigned char": "u1", "short": "i2", "unsigned short": "u2", "int": "i4",
    "unsigned": "u4", "unsigned int": "u4",
    "long": "i8", "unsigned long": "u8", "long long": "i8", "unsigned long long": "u8", "float": "f4", "double": "f8",
}  # fmt: skip


def scalar_types(tree: c_ast.FileAST) -> dict[str, str]:
    """What each typedef name is when it fits a register."""
    found = dict(BUILTIN)
    for node in tree.ext:
        if not isinstance(node, c_ast.Typedef):
            continue
        if isinstance(node.type, c_ast.PtrDecl):
            found[node.name] = "pointer"
        elif isinstance(node.type, c_ast.TypeDecl):
            inner = node.type.type
            if isinstance(inner, c_ast.Enum):
                found[node.name] = "i4"
            elif isinstance(inner, c_ast.IdentifierType) and (known := found.get(" ".join(inner.names))):
                found[node.name] = known
    return found


def read_symbols(tree: c_ast.FileAST, newest: bool) -> dict[str, Symbol]:
    structs = struct_names(tree)
    found = {}
    for node in tree.ext:
        if not (isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl) and node.name.startswith("cu")):
            continue
        match = SYMBOL.fullmatch(node.name)
        assert match
        parts = match.groupdict()
        found[node.name] = Symbol(
            node.name,
            parts["base"],
            int(parts["revision"] or 1),
            parts["stream"] or "",
            parameters_of(node.type, structs),
            newest,
            type_text(node.type.type),
        )
    return found


def read_versions(tree: c_ast.FileAST) -> dict[tuple[str, int, str], tuple[str, ...]]:
    """The PFN_name_vVERSION types of cudaTypedefs.h."""
    found = {}
    for node in tree.ext:
        if isinstance(node, c_ast.Typedef) and (match := re.fullmatch(r"PFN_(cu\w+?)_v(\d{4,5})(_ptsz|_ptds)?", node.name)):
            function = node.type.type
            assert isinstance(function, c_ast.FuncDecl)
            found[match[1], int(match[2]), match[3] or ""] = tuple(p.type for p in parameters_of(function, set()))
    return found


def read_results(text: str) -> list[Result]:
    """Names, values and comments of CUresult, from the text of cuda.h."""
    body = re.search(r"typedef enum cudaError_enum \{(.*?)\} CUresult;", text, re.S)
    if not body:
        raise SystemExit("cuda.h: no CUresult found")
    found = []
    for match in re.finditer(r"(?:/\*\*(?P<comment>(?:(?!\*/).)*)\*/\s*)?(?P<name>CUDA_\w+)\s*=\s*(?P<value>\d+)", body[1], re.S):
        words = " ".join(re.sub(r"^\s*\*", "", line).strip() for line in (match["comment"] or "").splitlines()).strip()
        words = re.sub(r"\\deprecated.*", "", words)
        words = re.sub(r"::|\\ref ", "", words).strip()
        sentence = re.split(r"(?<=[a-z0-9)])\.(?:\s|$)", words, maxsplit=1)[0]
        found.append(Result(match["name"], int(match["value"]), sentence.strip() or match["name"]))
    return found


def read(folders: list[Path]) -> Api:
    """Reads the headers, the newest first: what an older one declares besides is added, so that its programs find it."""
    api = Api()
    for i, folder in enumerate(folders):
        tree = c_parser.CParser().parse(preprocess("#include <cuda.h>\n" + EXTRA, folder), str(folder))
        for name, symbol in read_symbols(tree, newest=i == 0).items():
            api.symbols.setdefault(name, symbol)
        typedefs = c_parser.CParser().parse(preprocess("#include <cudaTypedefs.h>\n", folder), str(folder))
        for key, types in read_versions(typedefs).items():
            api.versions.setdefault(key, types)
        if i == 0:
            text = (folder / "cuda.h").read_text()
            api.results = read_results(text)
            version = re.search(r"#define CUDA_VERSION (\d+)", text)
            assert version
            api.version = int(version[1])
            api.scalars = scalar_types(tree)
    for name, number in EXTRA_VERSIONS.items():
        api.versions[name, number, ""] = tuple(p.type for p in api.symbols[name].parameters)
    return api
