"""Kinds and options of ``submit`` that need a live cluster: code by rsync, elastic jobs."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gangline.cli.errors import ExitCode
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(500),
    pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync serves the code"),
]

TRAIN = """
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "is elastic", flush=True)
"""


def address() -> str:
    """Where pods reach this machine: at the address that it uses to the outside."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
        outward.connect(("203.0.113.1", 9))  # nothing is sent by this
        return str(outward.getsockname()[0])


@contextmanager
def rsync_server(folder: Path, settings: Path) -> Iterator[int]:
    """Serve a folder as the module ``code``; yields the port."""
    with socket.create_server(("", 0)) as listener:
        lines = ["use chroot = no", f"uid = {os.getuid()}", f"gid = {os.getgid()}"]
        settings.write_text(
            "\n".join([*lines, "[code]", f"path = {folder}", "read only = yes", ""])
        )
        # As inetd does it: each connection is the standard input of a server of its own.
        command = ["rsync", "--daemon", f"--config={settings}"]
        port = listener.getsockname()[1]
        serving = [sys.executable, "-c", _INETD, str(listener.fileno()), *command]
        process = subprocess.Popen(serving, pass_fds=[listener.fileno()])
        try:
            yield port
        finally:
            process.terminate()
            process.wait(30)


_INETD = """
import socket, subprocess, sys
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    connection, _ = listener.accept()
    with connection:
        subprocess.run(sys.argv[2:], stdin=connection, stdout=connection, check=False)
"""


def typed(cluster: EmbeddedCluster, *args: str) -> str:
    """What a command prints that goes well."""
    done = cluster.run(*args)
    assert done.returncode == ExitCode.DONE, f"{args}: {done.stdout}\n{done.stderr}"
    return done.stdout


async def test_an_elastic_job_trains_with_code_that_came_by_rsync(
    shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster, code = shared_cluster, tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    with rsync_server(code, tmp_path / "rsyncd.conf") as port:
        typed(
            cluster, "submit", "elastic", "--name", "elastic", "--image", "any", "--cpu", "500m",
            "--share-memory", "0", "--workers", "2", "--min-workers", "2", "--max-workers", "2",
            "--working-dir", "/work-of-job", "--sync-mode", "rsync",
            "--sync-source", f"rsync://{address()}:{port}/code/",
            "gangline run --nnodes 2 --nproc-per-node 1 --no-standby code/train.py",
        )  # fmt: skip

        async def ended() -> str:
            state = json.loads(typed(cluster, "get", "elastic", "-o", "json"))["status"]
            return state if state in {"SUCCEEDED", "FAILED"} else ""

        state = await until(ended, 400.0)
    result = await asyncio.to_thread(typed, cluster, "logs", "elastic", "--all", "--no-prefix")
    assert state == "SUCCEEDED", result + typed(cluster, "diagnose", "elastic")
    fragment = sorted(line for line in result.splitlines() if "is elastic" in line)
    assert len(fragment) == 2, result
    assert "rank 0 of 2 is elastic" in fragment[0]
    assert "rank 1 of 2 is elastic" in fragment[1]
    copied = typed(cluster, "logs", "elastic", "-i", "worker-0", "-c", "init-code")
    assert "train.py" in copied
    assert "elasticjob/elastic" in typed(cluster, "list", "-T", "elastic", "-o", "name")
    typed(cluster, "delete", "elastic")
