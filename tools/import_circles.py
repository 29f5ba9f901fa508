"""Finds import circles in gpuvirt/, circles of includes and of calls in native/, and folders with too many files. Exits 1 and names every finding.

Python: imports at module level and inside functions count alike. Imports under TYPE_CHECKING do not run: circles that only they close are printed as
notes and are not findings.

C: a module is a .c file and the .h file of its name. It includes the modules whose headers its two files include; a module without a .c file closes
no circle. It calls the modules that define the symbols which its object file needs, within one library (build/*/CMakeFiles, written by the build;
calls through function pointers are not seen).

What is allowed is in the tables below, with the reason. An entry that is not needed any more is a finding, too.
"""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_FILES = 30  # source files in one folder
PYTHON, C, HEADERS = (".py",), (".c", ".h", ".S"), (".h",)

Graph = dict[str, set[str]]

# Patterns, one of which each module of the circle matches, and the reason.
CIRCLES: dict[tuple[str, ...], str] = {
    (
        "native/backend/soft/engine/exec",
        "native/backend/soft/engine/block",
        "native/backend/soft/engine/resident",
        "native/backend/soft/engine/fiber",
        "native/backend/soft/engine/lanes",
        "native/backend/soft/engine/fault",
        "native/backend/soft/engine/helpers_*",
    ): "one scheduler: blocks, their warps' fibers and lanes, and the helpers by which a warp waits or ends",
}

# Folder: how many source files it may have, and the reason.
FOLDERS: dict[str, tuple[int, str]] = {}


def sources(root: Path, folder: str, suffixes: tuple[str, ...]) -> list[Path]:
    """Tracked and new files below root/folder, relative to root; all files where there is no repository."""
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", folder], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        found = [Path(line) for line in done.stdout.splitlines() if (root / line).is_file()]
    else:
        found = [path.relative_to(root) for path in (root / folder).rglob("*") if path.is_file()]
    return sorted(path for path in found if path.suffix in suffixes)


# ---- Python ----------------------------------------------------------------------------------------------------------


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING")


def imports(tree: ast.AST, package: str, typing_only: bool = False) -> Iterator[tuple[str, bool]]:
    """Dotted names that a file imports, each with whether only a type checker does so. `from a import b` gives a.b."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, typing_only
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}", typing_only
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            yield from imports(ast.Module(node.body, []), package, True)
            yield from imports(ast.Module(node.orelse, []), package, typing_only)
        else:
            yield from imports(node, package, typing_only)


def python_graphs(root: Path) -> tuple[Graph, Graph]:
    """What imports what when it runs, and the same with what only type checkers import."""
    files = {module_name(path): path for path in sources(root, "gpuvirt", PYTHON)}
    runs: Graph = {name: set() for name in files}
    typed: Graph = {name: set() for name in files}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for target, typing_only in imports(ast.parse((root / path).read_text(), str(path)), package):
            # a.b may be the module a.b or a name in the module a.
            found = target if target in files else target.rpartition(".")[0]
            if found in files and found != name:
                typed[name].add(found)
                if not typing_only:
                    runs[name].add(found)
    return runs, typed


# ---- C ---------------------------------------------------------------------------------------------------------------

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def c_graph(root: Path) -> Graph:
    """What includes what among the modules of native/. A header is looked for beside the file that includes it, then anywhere in native/."""
    files = sources(root, "native", C)
    headers = [path for path in files if path.suffix in HEADERS]
    graph: Graph = {str(path.with_suffix("")): set() for path in files}
    for path in files:
        own = str(path.with_suffix(""))
        for name in INCLUDE.findall((root / path).read_text()):
            beside = Path(os.path.normpath(path.parent / name))
            fitting = [beside] if beside in headers else [header for header in headers if str(header).endswith(f"/{name}") or str(header) == name]
            if len(fitting) > 1:
                raise SystemExit(f"{path}: {name} may be any of {', '.join(map(str, fitting))}; include it by a longer path")
            graph[own] |= {str(header.with_suffix("")) for header in fitting} - {own}
    return graph


OBJECT = re.compile(r"CMakeFiles/([^/]+)\.dir/(native/.*)\.[cS]\.o$")


def call_graph(root: Path) -> Graph | None:
    """What calls what among the modules of native/, library by library; None where nothing is built."""
    built = sorted(root.glob("build/*/build.ninja"), key=lambda path: path.stat().st_mtime)
    if not built:
        return None
    defined: dict[str, dict[str, str]] = defaultdict(dict)
    needed: list[tuple[str, str, str]] = []
    graph: Graph = {}
    for path in sorted(built[-1].parent.rglob("*.o")):
        match = OBJECT.search(path.as_posix())
        if not match or not any((root / f"{match[2]}{suffix}").is_file() for suffix in (".c", ".S")):
            continue
        target, module = match[1], match[2]
        graph.setdefault(module, set())
        for line in subprocess.run(["nm", "-P", path], capture_output=True, text=True, check=True).stdout.splitlines():
            symbol, kind = line.split()[:2]
            if kind == "U":
                needed.append((target, module, symbol))
            elif kind.isupper():
                defined[target][symbol] = module
    for target, module, symbol in needed:
        graph[module] |= {defined[target].get(symbol, module)} - {module}
    return graph


# ---- circles ---------------------------------------------------------------------------------------------------------


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan), each sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for start in sorted(graph):
        if start in index:
            continue
        work: list[tuple[str, Iterator[str]]] = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while work:
            node, rest = work[-1]
            for target in rest:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    component, stack[at:] = stack[at:], []
                    if len(component) > 1:
                        found.append(sorted(component))
    return found


def shortest_circle(graph: Graph, component: Iterable[str]) -> list[str]:
    """One shortest way around inside a component: it names what to cut."""
    inside = set(component)
    best: list[str] = []
    for start in sorted(inside):
        before: dict[str, str] = {}
        wave = [start]
        while wave and start not in before:
            following = []
            for node in wave:
                for target in sorted(graph[node] & inside):
                    if target not in before:
                        before[target] = node
                        following.append(target)
            wave = following
        way = [start, before[start]]
        while way[-1] != start:
            way.append(before[way[-1]])
        if not best or len(way) < len(best):
            best = way[::-1]
    return best


def describe(graph: Graph, component: list[str]) -> str:
    return f"{len(component)} modules in a circle: {', '.join(component)}\n    such as {' -> '.join(shortest_circle(graph, component))}"


# ---- the whole -------------------------------------------------------------------------------------------------------


def check(root: Path, allowed: dict[tuple[str, ...], str], folders: dict[str, tuple[int, str]]) -> tuple[list[str], list[str]]:
    """What is wrong with the tree at `root`, and what is only worth knowing."""
    wrong: list[str] = []
    used: set[tuple[str, ...]] = set()
    runs, typed = python_graphs(root)
    calls = call_graph(root)
    for graph, kind in ((runs, "imports"), (c_graph(root), "includes"), (calls or {}, "calls")):
        for component in circles(graph):
            if kind == "includes" and sum((root / f"{name}.c").is_file() for name in component) < 2:
                continue
            entry = next((e for e in allowed if all(any(fnmatch.fnmatchcase(name, pattern) for pattern in e) for name in component)), None)
            if entry is None:
                wrong.append(f"{kind}: {describe(graph, component)}")
            else:
                used.add(entry)
    real = {tuple(component) for component in circles(runs)}
    notes = [f"closed by TYPE_CHECKING only: {describe(typed, c)}" for c in circles(typed) if tuple(c) not in real]
    if calls is None:
        notes.append("native/ is not built: its calls were not looked at")
    else:
        wrong += [f"no circle is left in {', '.join(entry)} ({allowed[entry]}); take the entry out" for entry in allowed if entry not in used]

    counts: dict[str, int] = defaultdict(int)
    for path in [*sources(root, "gpuvirt", PYTHON), *sources(root, "native", (*C, *PYTHON))]:
        counts[str(path.parent)] += 1
    for folder, count in sorted(counts.items()):
        limit = folders.get(folder, (MAX_FILES, ""))[0]
        if count > limit:
            wrong.append(f"{folder} has {count} source files, more than {limit}; make folders of it")
    wrong += [f"{folder} has {counts[folder]} source files; take its entry out" for folder in folders if counts[folder] <= MAX_FILES]
    return wrong, notes


def main() -> int:
    wrong, notes = check(ROOT, CIRCLES, FOLDERS)
    for note in notes:
        print(f"note: {note}")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
