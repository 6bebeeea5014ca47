"""Commands on a real Kubernetes beyond the walkthrough: uploaded code, secrets, a failure.

Takes 100 s: pods of a real Kubernetes start, end and are deleted with their grace periods.
"""

import asyncio
import json
import os
import re
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import aiohttp
import pytest

from e2e.clusters import GANGLINE
from e2e.scenario import Scenario
from e2e.waiting import eventually
from e2e.walk import VOLUME_AND_CLAIM, going_on
from gangline.api.resources import PERSISTENT_VOLUMES, SECRETS

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.kubernetes_only("the embedded cluster's commands have tests of their own"),
]
SUBMIT = ("submit", "pytorch", "--image", "busybox:1", "--image-pull-policy", "IfNotPresent")

TRAIN = """
echo "rank $RANK of $WORLD_SIZE says $GREETING"
echo "$TOKEN" | wc -c > "/data/token-$RANK"
while [ ! -e /data/enough ]; do sleep 1; done
echo "rank $RANK is done"
touch "/data/done-$RANK"
if [ "$RANK" = 0 ]; then  # the job ends with rank 0: others may be stopped then
    until [ -e /data/done-1 ] && [ -e /data/done-2 ]; do sleep 1; done
fi
"""


def ran(scenario: Scenario, *words: str) -> "subprocess.CompletedProcess[str]":
    namespace = () if words[:2] in {("top", "node")} else ("-n", scenario.namespace)
    head, tail = words[:1], words[1:]
    if words[0] in {"data", "top"}:
        head, tail = words[:2], words[2:]
    return scenario.cluster.run(*head, *namespace, *tail, check=False)


def typed(scenario: Scenario, *words: str) -> str:
    """The output of a command that succeeds."""
    done = ran(scenario, *words)
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


def running(scenario: Scenario, *words: str) -> AbstractContextManager["subprocess.Popen[str]"]:
    """A command that runs until it is stopped."""
    command = [*GANGLINE, words[0], "-n", scenario.namespace, *words[1:]]
    return going_on(command, os.environ | scenario.cluster.environment)


async def test_a_job_is_submitted_watched_entered_and_deleted(
    scenario: Scenario, gpus: None, tmp_path: Path
) -> None:
    await scenario.client.create(
        SECRETS,
        {"metadata": {"name": "vault"}, "stringData": {"token": "1234567"}},
        scenario.namespace,
    )
    volume = f"{scenario.namespace}-data"
    claim = VOLUME_AND_CLAIM.format(
        volume=volume, folder=scenario.shared, namespace=scenario.namespace
    )
    (tmp_path / "claim.yaml").write_text(claim)
    try:
        typed(scenario, "submit", "-f", str(tmp_path / "claim.yaml"))

        async def bound() -> bool:
            return "training-data  ReadWriteMany" in typed(scenario, "data", "list")

        await eventually(bound, "the claim has a volume")
        _submitted(scenario, tmp_path / "code")
        await _looked_at(scenario)
        _read(scenario)
        await _forwarded(scenario)
        await _ended(scenario)
    finally:
        await scenario.client.delete(PERSISTENT_VOLUMES, volume)


def _submitted(scenario: Scenario, code: Path) -> None:
    code.mkdir()
    (code / "train.sh").write_text(TRAIN)
    said = typed(
        scenario, *SUBMIT, "--name", "walked", "--gpus", "1", "--workers", "3", "--cpu", "50m",
        "--memory", "64Mi", "--share-memory", "16Mi", "--working-dir", "/root",
        "--sync-mode", "local", "--sync-source", str(code), "--data", "training-data:/data",
        "--env", "GREETING=hello", "--secret", "TOKEN=vault/token",
        "exec sh /root/code/code/train.sh",
    )  # fmt: skip
    assert "pytorchjob/walked created" in said
    done = ran(scenario, "wait", "walked", "--for", "running", "--timeout", "200s")
    assert done.returncode == 0, typed(scenario, "diagnose", "walked")


async def _looked_at(scenario: Scenario) -> None:
    async def written() -> bool:
        said = typed(scenario, "logs", "walked", "--all", "--grep", "hello")
        return len(said.splitlines()) == 3

    await eventually(written, "all ranks have greeted")
    assert [line.split()[:3] for line in typed(scenario, "list").splitlines()] == [
        ["NAME", "STATUS", "TRAINER"],
        ["walked", "RUNNING", "PYTORCHJOB"],
    ]
    assert "Requested GPUs of Training Jobs: 3/3" in typed(scenario, "top", "job")
    assert "3/6 (50.0%)" in typed(scenario, "top", "node")
    shown = typed(scenario, "get", "walked", "-o", "jsonpath={.instances[*].status}")
    assert shown == "Running Running Running\n"
    assert {path.read_text().strip() for path in scenario.shared.glob("token-*")} == {"8"}
    assert "1234567" not in typed(scenario, "get", "walked", "--spec")


def _read(scenario: Scenario) -> None:
    assert typed(scenario, "logs", "walked") == "rank 0 of 3 says hello\n"
    other = typed(scenario, "logs", "walked", "-i", "walked-worker-1", "-t", "1")
    assert other == "rank 2 of 3 says hello\n"
    entered = ran(
        scenario, "exec", "walked", "-i", "worker-0", "--", "sh", "-c", "ls /data; exit 7"
    )
    assert entered.returncode == 7
    assert "token-1" in entered.stdout


async def _forwarded(scenario: Scenario) -> None:
    typed(scenario, "exec", "walked", "--", "httpd", "-p", "8080", "-h", "/data")
    with running(scenario, "port-forward", "walked", "0:8080") as forwarding:
        assert forwarding.stdout is not None
        line = await asyncio.to_thread(forwarding.stdout.readline)
        port = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert port is not None, line
        address = f"http://127.0.0.1:{port[1]}/token-0"
        async with aiohttp.ClientSession() as session, session.get(address) as answer:
            assert await answer.text() == "8\n"


async def _ended(scenario: Scenario) -> None:
    with running(scenario, "logs", "walked", "-f", "--all", "--grep", "rank") as following:
        assert following.stdout is not None
        # With the job's end, pods that still count as running are deleted: follow all before.
        for _ in range(3):
            await asyncio.to_thread(following.stdout.readline)
        (scenario.shared / "enough").touch()
        lines, _ = await asyncio.to_thread(following.communicate)
    assert sorted(lines.splitlines()) == [
        "[master-0] rank 0 is done",
        "[worker-0] rank 1 is done",
        "[worker-1] rank 2 is done",
    ]
    assert ran(scenario, "wait", "walked", "--timeout", "200s").returncode == 0
    assert "Status:     SUCCEEDED" in typed(scenario, "get", "walked")
    failed = ran(
        scenario, *SUBMIT, "--name", "broken", "--cpu", "50m", "--share-memory", "0", "--wait",
        "echo 'OSError: [Errno 28] No space left on device'; exit 1",
    )  # fmt: skip
    assert failed.returncode == 6, failed.stderr
    found = json.loads(typed(scenario, "diagnose", "broken", "-o", "json"))
    assert found["root"]["cause"] == "DiskFull"
    typed(scenario, "delete", "walked", "broken")
    assert await scenario.pods_when("walked", lambda pods: not pods, "no pod is left") == {}
