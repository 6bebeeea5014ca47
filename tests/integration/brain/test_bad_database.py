"""``gangline brain`` with a database that it cannot use: what is wrong, and exit status 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sqlalchemy import text

from gangline.brain.store.engine import open_store
from gangline.brain.store.sql.database import known_version
from gangline.cli.errors import ExitCode

USER = 65_534
"""Has no rights to the files of a test, whoever runs it."""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """Of a cluster that does not answer: the database is looked at first."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    return tmp_path / "config"


def refused(kubeconfig: Path, database: str) -> str:
    """The error of the command, one line that names the flag."""
    command = [sys.executable, "-m", "gangline", "brain", "--kubeconfig", str(kubeconfig)]
    ended = subprocess.run(
        [*command, "--database", database], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == ExitCode.USAGE, ended.stderr
    line = ended.stderr.strip().splitlines()[-1]
    assert line.startswith("Error: --database: ")
    assert "Traceback" not in ended.stderr
    return line


def test_newer_schema_is_refused_with_both_versions(kubeconfig: Path, tmp_path: Path) -> None:
    url, newer = f"sqlite:///{tmp_path}/brain.db", known_version() + 1
    store = open_store(url)
    with store.engine.connect() as connection, connection.begin():
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{newer:04d}'"))
    store.close()
    line = refused(kubeconfig, url)
    assert f"has version {newer}, " in line
    assert f"up to {known_version()}: start a newer gangline" in line
    # What the newer program has written is as it was.
    with store.engine.connect() as connection:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
    assert int(found) == newer
    store.close()


def test_file_of_another_user_is_named(tmp_path: Path) -> None:
    """A child that gives its rights up: root may write all files."""
    (tmp_path / "brain.db").touch(mode=0o400)
    tmp_path.chmod(0o700)
    code = f"""
import os
from gangline.brain.store.engine import open_store
from gangline.brain.store.errors import NoRights
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({USER})
    os.setuid({USER})
try:
    open_store("sqlite:///{tmp_path}/brain.db")
except NoRights as error:
    print(error)
"""
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    # The owner of a folder that is closed to others may still open it, and then the file is.
    user = USER if os.geteuid() == 0 else os.geteuid()
    assert f"may not be read and written by user {user}" in child.stdout, child.stderr
