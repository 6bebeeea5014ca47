"""SQLAlchemy stays within the store: the rest of Gangline starts, and is installed, without it."""

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[4] / "src" / "gangline"
LIBRARIES = {"sqlalchemy", "alembic", "psycopg", "pymysql"}


def imported(path: Path) -> set[str]:
    """First parts of the names of imported modules, late imports as well; empty if no library is
    named anywhere.
    """
    text, names = path.read_text(), set[str]()
    if not any(library in text for library in LIBRARIES):
        return names
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_only_the_store_imports_sqlalchemy() -> None:
    using = {path for path in SOURCE.rglob("*.py") if imported(path) & LIBRARIES}
    store = SOURCE / "brain" / "store"
    assert store / "sql" / "tables.py" in using
    assert [path for path in using if not path.is_relative_to(store)] == []


def test_programs_start_without_sqlalchemy() -> None:
    programs = "import gangline.cli.main, gangline.operator.main, gangline.scheduler.loop, sys"
    report = f"print(sorted({LIBRARIES!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{programs}; {report}"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
