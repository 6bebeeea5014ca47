"""Folders that another user of the machine prepares in shared memory for a job's checkpoints."""

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
    pytest.mark.root,
]

NOBODY = 65534
BECOME = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
TRAIN = """
import sys
import torch
from gangline.elastic.checkpoint import Checkpointer
with Checkpointer(sys.argv[1]) as checkpointer:
    checkpointer.save(1, {"x": torch.ones(4)})
"""
FLUSH = (
    "import os; from gangline.elastic.checkpoint import flush_job; print(flush_job(os.environ, 3))"
)


@pytest.fixture
def job() -> Iterator[str]:
    """The name of a job; its folders in shared memory are removed."""
    name = f"attacked-{secrets.token_hex(4)}"
    yield name
    for home in Path("/dev/shm").glob("gangline-0-*"):
        if name in home.name or (home / "marker").exists():
            shutil.rmtree(home)


def memory_folder(job: str, target: Path) -> Path:
    """The folder that the job of root will use: any user can compute its name."""
    digest = hashlib.sha256(f"{job}\0{target}".encode()).hexdigest()[:16]
    return Path(f"/dev/shm/gangline-0-{digest}")


def as_nobody(script: str) -> None:
    subprocess.run([*BECOME, "sh", "-c", script], check=True)


def python(script: str, job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script of root in the job."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "TORCHELASTIC_RUN_ID": job},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("trap", "fault"),
    [
        ("mkdir -m 777 {home}; touch {home}/marker", "belongs to user nobody (65534)"),
        ("mkdir -m 777 {home}-real; ln -s {home}-real {home}", "is a symbolic link, not a folder"),
    ],
)
def test_folder_of_another_user_is_refused(job: str, tmp_path: Path, trap: str, fault: str) -> None:
    home = memory_folder(job, tmp_path / "target")
    as_nobody(trap.format(home=home))
    try:
        done = python(TRAIN, job, str(tmp_path / "target"))
        left = sorted(path.name for path in home.iterdir())
    finally:
        as_nobody(f"rm -rf {home} {home}-real")
    assert done.returncode == 1
    assert f"InsecureMemoryError: {home} {fault}" in done.stderr
    assert "set GANGLINE_CHECKPOINT_MEMORY" in done.stderr
    assert [name for name in left if name != "marker"] == []


def test_saver_of_another_users_folder_is_not_started(job: str, tmp_path: Path) -> None:
    """``flush_job`` runs when a node is drained: it must not write what another user planned."""
    home = Path(f"/dev/shm/gangline-0-{job}")
    settings = f'{{"target": "{tmp_path}/chosen-by-nobody", "job": "{job}"}}'
    as_nobody(f"mkdir -m 755 {home}; echo '{settings}' >{home}/settings.json")
    try:
        done = python(FLUSH, job)
        assert (done.stdout, done.returncode) == ("{}\n", 0), done.stderr
        assert sorted(path.name for path in home.iterdir()) == ["settings.json"]
    finally:
        as_nobody(f"rm -rf {home}")
    assert not (tmp_path / "chosen-by-nobody").exists()
