"""Submitting, listing, logs, waiting and deleting on a complete cluster: output and exit status.

Takes 30 s: each command is a process of its own.
"""

import hashlib
import json
import subprocess

import pytest

from gangline.cli.errors import ExitCode
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SUBMIT = ("submit", "pytorch", "--image", "any", "--cpu", "50m", "--share-memory", "0")


def report(done: subprocess.CompletedProcess[str]) -> str:
    return f"{done.returncode}\n{done.stdout}\n{done.stderr}"


async def test_a_job_from_submission_to_deletion(shared_cluster: EmbeddedCluster) -> None:
    gangline = shared_cluster.run
    script = "for i in 1 2 3; do echo line $i of $RANK; done"
    done = gangline(*SUBMIT, "--name", "hello", "--workers", "2", "--wait", script)
    assert done.returncode == ExitCode.DONE, report(done)
    assert done.stdout == "pytorchjob/hello created\n"
    assert "succeeded" in done.stderr

    listed = gangline("list").stdout.splitlines()
    assert listed[0].split()[:7] == [
        "NAME",
        "STATUS",
        "TRAINER",
        "DURATION",
        "GPU(Requested)",
        "GPU(Allocated)",
        "NODE",
    ]
    assert listed[1].split()[:3] == ["hello", "SUCCEEDED", "PYTORCHJOB"]
    assert gangline("list", "-o", "name").stdout == "pytorchjob/hello\n"

    job = json.loads(gangline("get", "hello", "-o", "json").stdout)
    assert (job["status"], job["chiefName"]) == ("SUCCEEDED", "hello-master-0")
    block = gangline("get", "hello").stdout
    assert "Status:     SUCCEEDED" in block
    assert "hello-master-0" in block

    logs = gangline("logs", "hello", "-i", "master-0").stdout
    assert logs == "line 1 of 0\nline 2 of 0\nline 3 of 0\n"
    assert gangline("logs", "hello", "-i", "master-0", "--tail", "1").stdout == "line 3 of 0\n"

    again = gangline(*SUBMIT, "--name", "hello", "true")
    assert again.returncode == ExitCode.EXISTS, report(again)
    assert "gangline delete" in again.stderr

    for known, code in (("pytorchjob/hello", ExitCode.DONE), ("tfjob/hello", ExitCode.NOT_FOUND)):
        assert gangline("logs", known, "--tail", "1").returncode == code
    assert gangline("delete", "pytorchjob/hello").returncode == ExitCode.DONE
    for command in ("get", "logs", "delete"):
        gone = gangline(command, "hello")
        assert gone.returncode == ExitCode.NOT_FOUND, report(gone)
        assert not gone.stdout


async def test_failed_job_sets_exit_status(
    shared_cluster: EmbeddedCluster,
) -> None:
    done = shared_cluster.run(*SUBMIT, "--name", "broken", "--wait", "echo no; exit 3")
    assert done.returncode == ExitCode.JOB_FAILED, report(done)
    assert "gangline logs broken" in done.stderr
    assert shared_cluster.run("logs", "broken").stdout == "no\n"


async def test_pending_job_has_a_reason(shared_cluster: EmbeddedCluster) -> None:
    gangline = shared_cluster.run
    done = gangline(*SUBMIT, "--name", "huge", "--gpus", "99", "true")
    assert done.returncode == ExitCode.DONE, report(done)
    follow = gangline("logs", "huge")
    assert not follow.stdout
    for _ in range(100):
        job = json.loads(gangline("get", "huge", "-o", "json").stdout)
        if job["reason"]:
            break
    assert job["status"] == "QUEUING"
    assert "Insufficient nvidia.com/gpu" in job["reason"]
    assert "Insufficient nvidia.com/gpu" in gangline("list", "-o", "wide").stdout


async def test_logs_of_all_replicas_are_followed_to_the_end(
    shared_cluster: EmbeddedCluster,
) -> None:
    gangline = shared_cluster.run
    script = "sleep 2; for i in 1 2 3 4 5; do echo line $i of $RANK; sleep 0.2; done; sleep 1"
    assert gangline(*SUBMIT, "--name", "chatty", "--workers", "3", script).returncode == 0
    lines = gangline("logs", "-f", "--all", "chatty").stdout.splitlines()
    names = ["master-0", "worker-0", "worker-1"]
    expected = [
        f"[{name}] line {number} of {rank}"
        for rank, name in enumerate(names)
        for number in range(1, 6)
    ]
    assert sorted(lines) == sorted(expected)


async def test_nodes_and_the_cluster_are_shown(shared_cluster: EmbeddedCluster) -> None:
    async def both_are_ready() -> bool:
        nodes = json.loads(shared_cluster.run("top", "node", "-o", "json").stdout)
        return [node["status"] for node in nodes] == ["Ready", "Ready"]

    await until(both_are_ready, 30.0, shared_cluster.said)
    assert shared_cluster.run("top", "node").stdout.startswith("NAME")
    details = shared_cluster.run("top", "node", "-d").stdout
    assert details.count("Name: ") == details.count("Type: ") == 2, details
    status = shared_cluster.run("status")
    assert status.returncode == ExitCode.DONE, report(status)
    assert "API server:" in status.stdout
    who = shared_cluster.run("whoami").stdout
    name = json.loads(who)["Name"]
    identity = hashlib.md5(name.encode()).hexdigest()
    assert json.loads(who) == {"Name": name, "Id": identity, "IsAdminUser": True}
    assert name
