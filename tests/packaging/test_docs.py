"""The files that the glossary and CONTRIBUTING.md name exist."""

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
