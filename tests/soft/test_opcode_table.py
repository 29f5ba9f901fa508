"""A row of the opcode table that says too little, or contradicts itself, is an error when the table is read; so is one without its function."""

from __future__ import annotations

import pytest

from gpuvirt.soft.codegen import opcode_handlers
from gpuvirt.soft.ptx import opcodes
from gpuvirt.soft.ptx.opcode_table import TABLE
from gpuvirt.soft.ptx.opcodes import COLUMNS, OPCODES, Carry, Opcode, Result, Sync, TableError, Traits, read, traits_of

ROW = """# Integer
add | first | - | operands | - | - | - | masked | add | ftz
  .cc | first | writes | operands | - | - | - | masked | add | ftz
    integer:add_sub | a + b
    u32 f32 | cc
"""


def test_a_row_is_read() -> None:
    row = read(ROW)["add"]
    assert row.types == {"u32", "f32"} and row.modifiers == {"cc"} and row.doc == "a + b" and row.subject == "Integer" and row.handler == "integer:add_sub"
    assert row.traits(("u32",)).carry is Carry.NONE and row.traits(("cc", "u32")).carry is Carry.WRITES


@pytest.mark.parametrize("column", range(1, len(COLUMNS) + 1))
@pytest.mark.parametrize("line", (1, 2))
def test_no_trait_has_a_default(line: int, column: int) -> None:
    lines = ROW.splitlines()
    cells = lines[line].split("|")
    lines[line] = "|".join(cells[:column] + cells[column + 1 :])
    with pytest.raises(TableError, match="'add'"):
        read("\n".join(lines))
    lines[line] = "|".join([*cells[:column], "  ", *cells[column + 1 :]])
    with pytest.raises(TableError, match="'add'"):
        read("\n".join(lines))


@pytest.mark.parametrize(
    "old, new",
    [
        ("integer:add_sub | a + b\n", ""),
        ("integer:add_sub | a + b", "integer:add_sub |"),
        ("integer:add_sub | a + b", "| a + b"),
        ("    u32 f32 | cc\n", ""),
        ("u32 f32 | cc", "u32 f32"),
        ("# Integer\n", ""),
        ("| - | operands | -", "| - | sometimes | -"),
        ("| first | - | operands", "| none | - | operands"),
        ("| first | - | operands", "| first | - | -"),
        ("add | ftz", "add | -"),
        ("u32 f32 | cc", "u32 | cc"),
        (".cc", ".carry"),
        ("integer:add_sub |", "- |"),
        ("| masked |", "| jump |"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(old: str, new: str) -> None:
    assert old in ROW
    with pytest.raises(TableError):
        read(ROW.replace(old, new))


def test_an_opcode_has_one_row() -> None:
    with pytest.raises(TableError, match="two rows of 'add'"):
        read(ROW + ROW)


def test_every_variant_can_be_reached() -> None:
    """A line for modifiers that only repeats what holds without them, or comes after a line for the same ones, says nothing."""
    for row in OPCODES.values():
        before: set[str] = set()
        for some, traits in row.variants:
            assert traits != row.base and not some <= before, f"{row.name} {sorted(some)}"
            before |= some


def test_opcodes_without_a_row_have_traits_until_they_are_refused() -> None:
    assert "multimem" not in OPCODES
    traits = traits_of("multimem", ("red", "relaxed", "sys"))
    assert traits.result is Result.NONE and traits.sync is Sync.NONE and isinstance(traits, Traits)


def _bound_with(monkeypatch: pytest.MonkeyPatch, rows: dict[str, Opcode]) -> None:
    monkeypatch.setattr(opcode_handlers, "OPCODES", rows)
    monkeypatch.setattr(opcode_handlers, "HANDLERS", {})
    opcode_handlers.bind()


def test_every_row_has_its_function_and_every_function_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuvirt.soft import pipeline  # noqa: F401  imports all functions

    assert set(opcode_handlers.HANDLERS) == {name for name, row in OPCODES.items() if row.handler}
    with pytest.raises(TableError, match="arithmetic:add_up"):
        _bound_with(monkeypatch, read(TABLE.replace("arithmetic:add_sub", "arithmetic:add_up")))
    with pytest.raises(TableError, match="no opcode names: integer:sad"):
        _bound_with(monkeypatch, {name: row for name, row in opcodes.OPCODES.items() if name != "sad"})
