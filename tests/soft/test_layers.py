"""The compiler's sub-packages import only downwards, at the top of a module, and no circle of imports is hidden in a function or under TYPE_CHECKING."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuvirt import soft

ROOT = Path(soft.__file__).parent
LAYERS = ("cuda_results", "errors", "abi", "ptx", "analysis", "codegen", "ops", "pipeline", "host")  # each imports those before it, and itself
OUTSIDE = ("__init__", "coverage")


def imports(text: str) -> Iterator[tuple[int, str, bool]]:
    """(line, module of gpuvirt.soft without that prefix, whether the import is a module's own, outside of functions and conditions)."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("gpuvirt.soft."):
                yield node.lineno, name.removeprefix("gpuvirt.soft."), node in tree.body


def modules(sources: dict[str, str]) -> dict[str, set[str]]:
    """For each module the modules that it imports, wherever the import stands."""
    return {name: {m for _, full, _ in imports(text) for m in sources if full == m or full.startswith(f"{m}.")} for name, text in sources.items()}


def findings(sources: dict[str, str]) -> list[str]:
    found = []
    for name, text in sources.items():
        own = name.split(".")[0]
        for line, full, top in imports(text):
            if not top:
                found.append(f"{name}:{line}: {full} is not imported at the top of the module")
            if own in LAYERS and (other := full.split(".")[0]) in LAYERS and LAYERS.index(other) > LAYERS.index(own):
                found.append(f"{name}:{line}: imports {full}, which lies above it")
    graph = modules(sources)
    for name in graph:
        seen: set[str] = set()
        stack = [*graph[name]]
        while stack:
            at = stack.pop()
            if at not in seen:
                seen.add(at)
                stack.extend(graph[at])
        if name in seen:
            found.append(f"{name}: in a circle of imports")
    return found


def sources() -> dict[str, str]:
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(ROOT.rglob("*.py"))}
    return {name.removesuffix(".__init__"): path.read_text() for path, name in names.items()}


def test_imports_lead_downwards() -> None:
    assert findings(sources()) == []
    assert {name.split(".")[0] for name in sources()} <= {*LAYERS, *OUTSIDE}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("ptx.parser", "from gpuvirt.soft.analysis import cfg"),
        ("codegen.emitter", "def f() -> None:\n    from gpuvirt.soft.codegen.lane_fallback import Frame\n"),
        ("codegen.context", "if TYPE_CHECKING:\n    from gpuvirt.soft.codegen.emitter import Emitter\n"),
        ("analysis.sync_kinds", "import gpuvirt.soft.analysis.cfg"),
    ],
)
def test_a_planted_import_is_found(module: str, line: str) -> None:
    """The deliberate fault: upwards, in a function, for types only, and a plain circle."""
    planted = sources()
    planted[module] += f"\n{line}\n"
    assert findings(planted)
