"""The cause of a failure is the same in conditions, lists, waits and the diagnosis.

Takes 40 s: each report is a process, and a node is switched off and on.
"""

import asyncio
import json
from typing import Any

import pytest

from gangline.api.meta.conditions import find_condition
from gangline.api.resources import NODES, PODS, PYTORCH_JOBS
from gangline.kube.client.client import ApiClient
from gangline.local.virtual_nodes import STOPPED_ANNOTATION
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = pytest.mark.slow


def job(name: str, command: list[str], restart: str = "Never") -> dict[str, Any]:
    container = {"name": "pytorch", "image": "none", "command": command}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    worker = {"replicas": 1, "restartPolicy": restart, "template": {"spec": spec}}
    return {"metadata": {"name": name}, "spec": {"pytorchReplicaSpecs": {"Worker": worker}}}


async def failure_message(client: ApiClient, name: str) -> str:
    async def failed() -> str:
        stored = await client.get(PYTORCH_JOBS, name, "default")
        found = find_condition(stored.status.conditions, "Failed")
        return found.message if found else ""

    return await until(failed)


async def reports(cluster: EmbeddedCluster, name: str) -> dict[str, str]:
    """What each command reports about a failed job."""
    commands = {
        "get": ("get", name),
        "list": ("list", "-o", "wide"),
        "wait": ("wait", name, "--timeout", "30"),
        "diagnose": ("diagnose", name),
    }
    ran = await asyncio.gather(
        *(asyncio.to_thread(cluster.run, *arguments) for arguments in commands.values())
    )
    return {key: one.stdout + one.stderr for key, one in zip(commands, ran, strict=True)}


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (["python", "/no/such/script.py"], "FileMissing"),
        (["sh", "-c", "echo 'fatal: repository x does not exist' >&2; exit 128"], "Error"),
        (["python", "-m", "gangline", "run", "--nnodes=1", "/no/such/script.py"], "FileMissing"),
    ],
    ids=["script", "exit-128", "agent"],
)
async def test_cause_is_the_same_in_each_report(
    shared_cluster: EmbeddedCluster, command: list[str], cause: str
) -> None:
    cluster = shared_cluster
    async with cluster.client() as client:
        await client.create(PYTORCH_JOBS, job("train", command), "default")
        message = await failure_message(client, "train")
    assert f"train-worker-0: {cause} (exit code" in message
    shown = await reports(cluster, "train")
    assert {key: cause in text for key, text in shown.items()} == {
        "get": True,
        "list": True,
        "wait": True,
        "diagnose": True,
    }, shown
    diagnosis = await asyncio.to_thread(cluster.run, "diagnose", "train", "-o", "json")
    root = json.loads(diagnosis.stdout)["root"]
    assert (root["cause"], root["replica"]) == (cause, "worker-0")


async def test_node_that_was_switched_off_and_on_is_the_cause(
    embedded_cluster: EmbeddedCluster,
) -> None:
    cluster = embedded_cluster
    async with cluster.client() as client:
        await client.create(PYTORCH_JOBS, job("train", ["sleep", "1000"]), "default")

        async def node() -> str:
            pods = (await client.list(PODS, "default")).items
            return next((pod.spec.node_name for pod in pods if pod.status.phase == "Running"), "")

        name = await until(node)
        for value in ("true", None):
            patch = {"metadata": {"annotations": {STOPPED_ANNOTATION: value}}}
            await client.patch(NODES, name, patch)
        message = await failure_message(client, "train")
    assert "train-worker-0: NodeLost" in message
    shown = await reports(cluster, "train")
    assert "NodeLost" in shown["diagnose"]
    assert not any("memory" in text for text in (message, *shown.values())), shown
