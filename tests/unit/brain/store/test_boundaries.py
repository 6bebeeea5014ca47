"""The rest of Gangline starts without SQLAlchemy. Who imports it is a contract of import-linter."""

import subprocess
import sys

LIBRARIES = {"sqlalchemy", "alembic", "psycopg", "pymysql"}


def test_programs_start_without_sqlalchemy() -> None:
    programs = "import gangline.cli.main, gangline.operator.main, gangline.scheduler.loop, sys"
    report = f"print(sorted({LIBRARIES!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{programs}; {report}"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
