"""Followed logs: every line of fast replicas arrives, and readers stop with their consumer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gangline.kube.client.client import ApiClient
from gangline.kube.client.decoding import split_lines
from gangline.kube.config.config import load_config
from gangline.sdk.client import JobClient
from gangline.sdk.logs import ALL_LOGS, MAX_QUEUED_LINES, LogFollower, follow_logs, read_logs
from unit.cli.fake_api import FakeApi, serving

JOB = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/digits"
PODS = "/api/v1/namespaces/default/pods"
LINES = MAX_QUEUED_LINES * 2 // 3
PATIENCE_S = 60.0


def add_ended_replica(api: FakeApi, index: int) -> None:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "digits"}
    labels = {
        "training.kubeflow.org/job-name": "digits",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": str(index),
    }
    reference = owner | {"uid": JOB, "controller": True}
    ended = {"name": "c", "state": {"terminated": {"exitCode": 0}}}
    api.add(
        f"{PODS}/digits-worker-{index}",
        metadata={"labels": labels, "ownerReferences": [reference]},
        spec={"containers": [{"name": "c"}], "nodeName": "n"},
        status={"phase": "Succeeded", "containerStatuses": [ended]},
    )
    time = "2026-01-01T00:00:00.{:09}Z"
    lines = (f"{time.format(number)} line {number}\n" for number in range(LINES))
    api.logs[f"digits-worker-{index}"] = "".join(lines)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ApiClient]:
    """A client of a cluster with a job of three replicas that has ended."""
    async with serving(tmp_path) as (api, kubeconfig):
        template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
        api.add(
            JOB,
            spec={"pytorchReplicaSpecs": {"Worker": {"replicas": 3, "template": template}}},
            status={"conditions": [{"type": "Succeeded", "status": "True"}]},
        )
        for index in range(3):
            add_ended_replica(api, index)
        async with ApiClient(load_config(str(kubeconfig))) as connected:
            yield connected


async def test_backlog_of_all_replicas_is_read_completely_in_order_of_time(
    client: ApiClient,
) -> None:
    job = await JobClient(client).get("digits", "default")
    async with asyncio.timeout(PATIENCE_S), follow_logs(client, job) as lines:
        read = [line async for line in lines]
    assert [line.time for line in read] == sorted(line.time for line in read)
    got = [(line.replica, line.text) for line in read]
    for index in range(3):
        texts = [text for replica, text in got if replica == f"worker-{index}"]
        assert texts == [f"line {number}" for number in range(LINES)]


async def test_consumer_can_stop_while_lines_are_queued(client: ApiClient) -> None:
    follower = LogFollower(client, await JobClient(client).get("digits", "default"), ALL_LOGS)
    async with asyncio.timeout(PATIENCE_S):
        work = asyncio.create_task(follower.run())
        while len(follower.lines) < MAX_QUEUED_LINES:
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work


async def test_of_a_line_with_carriage_returns_the_last_state_is_read(
    client: ApiClient, tmp_path: Path
) -> None:
    job = await JobClient(client).get("digits", "default")
    bars = "T1 \r 0%\r 50%\r100%\nT2 gone\r    \r\nT3 windows\r\nT4 \r 1%\r 2%"
    async with serving(tmp_path) as (api, kubeconfig):
        add_ended_replica(api, 0)
        api.logs["digits-worker-0"] = bars
        async with ApiClient(load_config(str(kubeconfig))) as other:
            lines = [line async for line in read_logs(other, job)]
    assert [(line.time, line.text, line.is_bar) for line in lines] == [
        ("T1", "100%", False),
        ("T2", "gone", False),
        ("T3", "windows", False),
        ("T4", " 2%", False),
    ]


async def test_states_of_a_bar_are_yielded_before_its_line_ends() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"a\nT \r 10", b"%", b"\r 20%", b"\n"):
            yield chunk

    parts = [part async for part in split_lines(chunks(), bars=True)]
    assert parts == [b"a", b"T \r 10\r", b"\r 10%\r", b"\r 10%\r 20%\r", b"\r 20%"]
