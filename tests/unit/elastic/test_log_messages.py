"""Training scripts print only the message of a log record, so it contains what happened and why."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import gangline.elastic

FOLDERS = ("checkpoint", "trainer", "data")
"""What training scripts import, and the saver that they start."""


def calls() -> Iterator[tuple[str, ast.Call]]:
    top = Path(next(iter(gangline.elastic.__path__)))
    for folder in FOLDERS:
        for file in sorted((top / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if is_log_call(node):
                    yield f"{file.relative_to(top)}:{node.lineno}", node


def is_log_call(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "log"
    )


def test_facts_of_a_record_are_in_its_message() -> None:
    found = list(calls())
    assert len(found) > 15
    assert [
        where
        for where, call in found
        if any(keyword.arg == "extra" for keyword in call.keywords)
        and not any(isinstance(one, ast.JoinedStr) for one in call.args)
    ] == []
