"""Secrets of a job that runs without a cluster: launcher, master, node check, workers, saver."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.cluster.embedded import until
from security.spy import spy

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
    pytest.mark.root,
]

TRAIN = """
import os, sys, time
import torch
from gangline.elastic.checkpoint import Checkpointer
torch.distributed.init_process_group("gloo")
top, secret = sys.argv[1], os.environ["HF_TOKEN"]
with Checkpointer(f"{top}/checkpoints") as checkpointer:
    checkpointer.save(1, {"x": torch.ones(4), "secret": secret}, "storage")
    checkpointer.wait(60)
    if len(secret) == 64:
        open(f"{top}/up-{os.environ['RANK']}", "w").close()
    while not os.path.exists(f"{top}/end"):
        time.sleep(0.05)
torch.distributed.destroy_process_group()
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users can enter. Checkpoints in it are as closed as their own folder."""
    top = Path(tempfile.mkdtemp(dir="/var/tmp"))
    top.chmod(0o755)
    (top / "checkpoints").mkdir(mode=0o700)
    yield top
    shutil.rmtree(top)


def start(command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=command[-1], env={**os.environ, **variables})


async def test_secrets_of_a_job_are_visible_to_no_other_user(open_folder: Path) -> None:
    (open_folder / "train.py").write_text(TRAIN)
    secret = secrets.token_hex(32)
    flags = ["--standalone", "--nproc-per-node", "1", "--network-check", "--log-dir"]
    run = [sys.executable, "-m", "gangline", "run", *flags, str(open_folder / "logs")]
    variables = {"GANGLINE_JOB_SECRET": secret, "HF_TOKEN": secret, "TMPDIR": str(open_folder)}
    with spy(open_folder, secret) as watcher:
        process = start([*run, "--redirects", "3", "train.py", str(open_folder)], variables)
        try:

            async def worker_runs() -> bool:
                assert process.poll() is None, "the launcher has ended"
                return (open_folder / "up-0").exists()

            await until(worker_runs, 100)
            assert await watcher.findings() == []
        finally:
            (open_folder / "end").touch()
            assert process.wait(60) == 0
