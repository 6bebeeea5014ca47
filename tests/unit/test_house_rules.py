"""The rules of the house that no linter knows: files that fit in the head and say what they are."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
ALL = [
    path
    for folder in ("src", "tests", "benchmarks", "examples", "tools")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
LONGEST = 400
NAMELESS = {"utils", "util", "common", "helpers", "helper", "misc"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_are_sources_to_check() -> None:
    assert len(SOURCES) > 50


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_fits_in_the_head(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("path", ALL, ids=name)
def test_a_file_says_first_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_is_named_after_a_thing(path: Path) -> None:
    assert path.stem not in NAMELESS
