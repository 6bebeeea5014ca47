"""Rules for the tree that no linter checks: names, lengths, purposes of files; names of classes."""

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FOLDERS = ("src", "tests", "benchmarks", "examples", "tools")
LONGEST = 700
NAMELESS = {"utils", "util", "common", "helpers", "helper", "misc"}


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_a_file_is_not_too_long() -> None:
    assert len(SOURCES) > 50
    long = [path for path in SOURCES if path.read_bytes().count(b"\n") > LONGEST]
    assert names(long) == []


def test_a_file_has_a_specific_name() -> None:
    assert names([path for path in SOURCES if path.stem in NAMELESS]) == []


def test_a_file_begins_with_its_purpose() -> None:
    """A file that begins with three quotes has a docstring; only others need to be parsed."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = ((path, path.read_text()) for path in paths)
    parsed = ((path, text) for path, text in texts if not text.startswith(('"""', 'r"""')))
    assert names([path for path, text in parsed if not ast.get_docstring(ast.parse(text))]) == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    lines = (line for path in SOURCES for line in path.read_text().splitlines())
    classes = Counter(re.findall(r"^class ([A-Z]\w*)", "\n".join(lines), re.MULTILINE))
    assert [name for name, count in classes.items() if count > 1] == []
