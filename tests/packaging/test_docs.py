"""The files that the glossary, CONTRIBUTING.md and SECURITY.md name exist, and the tests that SECURITY.md names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "GLOSSARY.md").read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ") and not line.startswith("| term ")]


def test_a_term_has_one_row() -> None:
    terms = [row[0] for row in rows()]
    assert len(terms) > 150 and sorted(set(terms)) == sorted(terms)
    assert all(len(row) == 3 and all(row) for row in rows())


def test_each_place_exists() -> None:
    named = [place for row in rows() for place in re.findall(r"(?:native|gpuvirt|tests|docs)/[\w/.]+", row[2])]
    assert len(named) > 150 and [place for place in named if not (ROOT / place).exists()] == []


def test_contributing_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:native|gpuvirt|tests|docs|tools)/[\w/.]+)`", text)
    named = [place for place in named if not re.search(r"\b(OBJECT|NAME|GROUP|VERB|do_OBJECT|test_ops_GROUP)\.", place)]
    assert len(named) > 10 and [place for place in named if not (ROOT / place).exists()] == []


def named_by_security() -> list[tuple[str, str]]:
    """File below tests/ and name; `::name` alone is of the file named before it."""
    found, file = [], ""
    for path, name in re.findall(r"`([\w/.]*)::([\w*]+)`", (ROOT / "SECURITY.md").read_text()):
        file = path or file
        found.append((file, name))
    return found


def exists(file: str, name: str) -> bool:
    """In Python a function, in C a row of a table of cases. A `*` stands for any rest."""
    path, name = ROOT / "tests" / file, name.replace("*", r"\w+")
    wanted = rf"^def {name}\(" if path.suffix == ".py" else rf'\{{"{name}",'
    return path.is_file() and bool(re.search(wanted, path.read_text(), re.MULTILINE))


def test_security_names_tests_that_exist() -> None:
    named = named_by_security()
    assert len(named) > 100 and [f"{file}::{name}" for file, name in named if not exists(file, name)] == []
    assert not exists("packaging/test_docs.py", "test_of_nothing") and not exists("native/transport/test_sealed.c", "alter")
    assert not exists("packaging/test_none.py", "test_security_names_tests_that_exist")


def test_security_names_files_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    named = {place.rstrip(".") for place in re.findall(r"\b(?:native|gpuvirt|tests|docs|packaging)/[\w/.]*\w", text)}
    below = {place for place in named if (ROOT / "tests" / place).exists()}  # the tables name tests from there
    assert len(named) > 50 and sorted(place for place in named - below if not (ROOT / place).exists()) == []
