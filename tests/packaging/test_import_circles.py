"""tools/import_circles.py, on small trees with a deliberate circle each, and what it reads of this repository (which `make lint` checks)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_circles", ROOT / "tools" / "import_circles.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tree(root: Path, **files: str) -> Path:
    """Files whose names are written with __ for / and the suffix behind the last _."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path = path.with_name(".".join(path.name.rsplit("_", 1)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("back", "found"),
    [
        ("from gpuvirt import a", True),
        ("from gpuvirt.a import name", True),
        ("import gpuvirt.a", True),
        ("from .a import name", True),
        ("def function():\n    from gpuvirt.a import name", True),
        ("if True:\n    import gpuvirt.a", True),
        ("import os", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gpuvirt.a import name", False),
    ],
)
def test_python(tool: ModuleType, tmp_path: Path, back: str, found: bool) -> None:
    tree(tmp_path, gpuvirt__a_py="from gpuvirt import b", gpuvirt__b_py="from gpuvirt.c import name", gpuvirt__c_py=back)
    wrong, notes = tool.check(tmp_path, {}, {})
    if found:
        assert len(wrong) == 1 and "gpuvirt.a, gpuvirt.b, gpuvirt.c" in wrong[0] and "gpuvirt.a -> gpuvirt.b -> gpuvirt.c -> gpuvirt.a" in wrong[0]
    else:
        assert not wrong and any("TYPE_CHECKING only" in note for note in notes) == ("TYPE_CHECKING" in back)


@pytest.mark.parametrize(("header", "found"), [("native/wire/a.h", True), ("a.h", True), ("stdio.h", False)])
def test_includes(tool: ModuleType, tmp_path: Path, header: str, found: bool) -> None:
    """The circle a.c -> b.h, b.c -> a.h: no file includes itself, and neither module can be understood, tested or moved alone."""
    tree(tmp_path, native__wire__a_h="", native__wire__a_c='#include "b.h"\n', native__wire__b_h="", native__wire__b_c=f'# include "{header}"\n')
    wrong, _ = tool.check(tmp_path, {}, {})
    assert ["native/wire/a, native/wire/b" in line for line in wrong] == [True] * found


def test_one_modules_private_header_is_no_circle(tool: ModuleType, tmp_path: Path) -> None:
    tree(tmp_path, native__a_h="", native__a_c='#include "a_private.h"\n', native__a_private_h='#include "a.h"\n')
    assert tool.check(tmp_path, {}, {})[0] == []


def test_what_is_allowed(tool: ModuleType, tmp_path: Path) -> None:
    """An entry allows a circle only if it names all of its modules, and has to go when there is no such circle."""
    tree(tmp_path, native__a_h="", native__a_c='#include "b.h"\n', native__b_h="", native__b_c='#include "a.h"\n')
    assert tool.check(tmp_path, {("native/*",): "reason"}, {})[0] == []
    assert len(tool.check(tmp_path, {("native/a",): "reason"}, {})[0]) == 1
    (tmp_path / "build" / "x").mkdir(parents=True)
    (tmp_path / "build" / "x" / "build.ninja").write_text("")
    (tmp_path / "native" / "b.c").write_text("")
    (gone,) = tool.check(tmp_path, {("native/*",): "reason"}, {})[0]
    assert "no circle is left in native/*" in gone


def test_full_folders(tool: ModuleType, tmp_path: Path) -> None:
    tree(tmp_path, **{f"native__wire__f{i}_c": "" for i in range(31)})
    assert tool.check(tmp_path, {}, {})[0] == ["native/wire has 31 source files, more than 30; make folders of it"]
    assert tool.check(tmp_path, {}, {"native/wire": (31, "reason")})[0] == []
    (tmp_path / "native" / "wire" / "f0.c").unlink()
    assert tool.check(tmp_path, {}, {"native/wire": (31, "reason")})[0] == ["native/wire has 30 source files; take its entry out"]


@pytest.mark.slow
def test_calls(tool: ModuleType) -> None:
    """A circle of calls in the library that is built here: the scheduler's, which is allowed with its reason."""
    calls = tool.call_graph(ROOT)
    assert calls is not None, "build first: make setup"
    scheduler = {"native/backend/soft/engine/exec", "native/backend/soft/engine/block"}
    assert any(scheduler <= set(component) for component in tool.circles(calls))


def test_it_reads_this_repository(tool: ModuleType) -> None:
    runs, _ = tool.python_graphs(ROOT)
    assert len(runs) > 50 and "gpuvirt.errors" in runs["gpuvirt.client.settings"]
    assert len(tool.c_graph(ROOT)["native/transport/shm/shm_link"]) > 3
