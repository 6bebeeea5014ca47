"""``gangline submit deepspeed`` with the real package: its launcher starts ZeRO-2 by pdsh and SSH.

The image of a user has an SSH server with its keys, and a client that accepts unknown hosts. Here
the programs are the machine's, and their folders are mounted from the node.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from frameworks.training import RunningExample, Training
from gangline.api.meta.resource import Resource

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.geteuid() != 0 or not (shutil.which("/usr/sbin/sshd") and shutil.which("pdsh")),
        reason="needs root, an SSH server and pdsh on this machine",
    ),
]

SCRIPT = Path(__file__).parent / "train_scripts" / "deepspeed_digits.py"
MPI_V2_JOBS = Resource(dict, "kubeflow.org", "v2beta1", "mpijobs", "MPIJob")
SSH_SETTINGS = {
    "sshd_config": "UsePAM yes\nStrictModes no\nPidFile none\n",
    "ssh_config": "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n",
}
VARIABLES = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def ssh_folders(tmp_path: Path) -> list[str]:
    """Flags that mount the folders of an SSH server and client."""
    settings, run = tmp_path / "etc-ssh", tmp_path / "run-sshd"
    settings.mkdir()
    run.mkdir(mode=0o755)
    for name, text in SSH_SETTINGS.items():
        (settings / name).write_text(text)
    key = settings / "ssh_host_ed25519_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    return ["--data-dir", f"{settings}:/etc/ssh", "--data-dir", f"{run}:/run/sshd"]


def submit(training: Training, workers: int, flags: list[str]) -> RunningExample:
    """Submit a job as a user does; DeepSpeed passes variables to workers by a file of its own."""
    exported = "\\n".join(f"{name}={value}" for name, value in VARIABLES.items())
    command = (
        f"printf '{exported}\\n' > /tmp/exported; export DS_ENV_FILE=/tmp/exported; "
        f"exec deepspeed /opt/train/{SCRIPT.name}"
    )
    name = f"zero-{workers}"
    options = [part for each in VARIABLES.items() for part in ("--env", "=".join(each))]
    sizes = ("--workers", str(workers), "--cpu", "500m", "--memory", "1Gi")
    place = ("--config-file", f"{SCRIPT}:/opt/train/{SCRIPT.name}")
    named = ("submit", "deepspeed", "--name", name, "--image", "gangline/examples-checkpoint:1")
    done = training.cluster.run(*named, *sizes, *options, *place, *flags, command)
    assert done.returncode == 0, done.stderr
    return RunningExample(training, MPI_V2_JOBS, name)


async def test_launcher_of_deepspeed_trains_on_its_workers(
    training: Training, ssh_folders: list[str]
) -> None:
    alone, both = submit(training, 1, []), submit(training, 2, ssh_folders)
    await alone.succeeds()
    await both.succeeds()
    check(log_of(alone), ["zero-1-launcher"])
    check(log_of(both), ["zero-2-worker-0", "zero-2-worker-1"])


def log_of(job: RunningExample) -> str:
    """Return the log of the launcher; its pod is deleted when the job has ended."""
    done = job.training.cluster.run("logs", job.name, "--role", "launcher")
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(output: str, hosts: list[str]) -> None:
    """Check that one process on each host has trained one model."""
    found = re.findall(
        rf"rank (\d) of {len(hosts)} on (\S+): loss (\d\.\d+) to (\d\.\d+), weights (\d+\.\d+)",
        output,
    )
    assert sorted((rank, host) for rank, host, *_ in found) == [
        (str(rank), host) for rank, host in enumerate(hosts)
    ], output
    assert len({weights for *_, weights in found}) == 1, output
    assert all(float(last) < float(first) for _, _, first, last, _ in found), output
