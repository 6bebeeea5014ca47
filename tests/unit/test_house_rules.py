"""Rules for the source tree that no linter checks: size of files and folders, docstrings, names."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FOLDERS = sorted({path.parent for path in SOURCES})
ALL = [
    path
    for folder in ("src", "tests", "benchmarks", "examples", "tools")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
LONGEST = 600
MOST_MODULES = 15
ONE_MODULE_PER_CASE = {"cli/commands", "scheduler/plugins", "operator/frameworks"}
"""Folders whose number of modules follows from the number of commands, plug-ins or job kinds."""
NAMELESS = {"utils", "util", "common", "helpers", "helper", "misc"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_are_sources_to_check() -> None:
    assert len(SOURCES) > 50


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_is_not_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_a_folder_has_few_modules(folder: Path) -> None:
    if folder.relative_to(ROOT / "src").as_posix().partition("/")[2] in ONE_MODULE_PER_CASE:
        return
    modules = [path for path in folder.glob("*.py") if path.stem != "__init__"]
    assert len(modules) <= MOST_MODULES


@pytest.mark.parametrize("path", ALL, ids=name)
def test_a_file_begins_with_its_purpose(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_has_a_specific_name(path: Path) -> None:
    assert path.stem not in NAMELESS
