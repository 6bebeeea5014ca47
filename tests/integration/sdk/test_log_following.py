"""Followed logs deliver each line once, whatever happens to connections."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from gangline.api.meta.resource import Resource
from gangline.api.resources import NODES, PODS, PYTORCH_JOBS
from gangline.kube.client.client import ApiClient
from gangline.local.apiserver.server import ApiServer
from gangline.local.custom_resources import install_definitions
from gangline.sdk.client import JobClient
from gangline.sdk.logs import ALL_LOGS, LogOptions, follow_logs
from integration.node_server import node_tls

ANY_PODS: Resource[dict[str, Any]] = Resource(dict[str, Any], "", "v1", "pods", "Pod")
START = datetime(2026, 1, 1, tzinfo=UTC)
JOB = "training.kubeflow.org/job-name"
ROLE = "training.kubeflow.org/replica-type"
INDEX = "training.kubeflow.org/replica-index"
TEMPLATE = {"spec": {"containers": [{"name": "pytorch", "image": "i", "command": ["x"]}]}}


class Kubelet:
    """Serves logs as a kubelet does, and breaks connections on request."""

    def __init__(self) -> None:
        self.lines: dict[str, list[tuple[str, str]]] = {}
        self.ended: set[str] = set()
        self.cuts: dict[str, list[int]] = {}
        """For each pod: after how many lines its next streams break off, in the middle of one."""
        self.requests = 0
        self._changed = asyncio.Condition()

    async def write(self, pod: str, text: str, milliseconds: int) -> None:
        time = (START + timedelta(milliseconds=milliseconds)).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        self.lines.setdefault(pod, []).append((time, text))
        await self._tell()

    async def end(self, pod: str) -> None:
        self.ended.add(pod)
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        pod, query = request.match_info["pod"], request.query
        since = query.get("sinceTime", "")[:19]
        response = web.StreamResponse()
        await response.prepare(request)
        cuts = self.cuts.get(pod, [])
        cut = cuts.pop(0) if cuts else None
        sent = position = 0
        while True:
            lines = self.lines.get(pod, [])
            for time, text in lines[position:]:
                position += 1
                if time[:19] < since:
                    continue
                line = f"{time} {text}\n".encode()
                if cut is not None and sent == cut:
                    await response.write(line[: len(line) // 2])
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                await response.write(line)
                sent += 1
            async with self._changed:
                if pod in self.ended or "follow" not in query:
                    break
                if position == len(self.lines.get(pod, [])):
                    await self._changed.wait()
        return response


class World:
    """A job, its pods and their kubelet, as far as logs need them."""

    def __init__(self, client: ApiClient, kubelet: Kubelet) -> None:
        self.client, self.kubelet = client, kubelet
        self.job_uid = ""

    async def submit(self) -> None:
        replicas = {"Worker": {"replicas": 2, "template": TEMPLATE}}
        spec = {"pytorchReplicaSpecs": replicas}
        body = {"metadata": {"name": "job"}, "spec": spec}
        job = await self.client.create(PYTORCH_JOBS, body, "default")
        self.job_uid = job.metadata.uid

    async def add_pod(self, index: int, *, started: bool = True) -> str:
        name = f"job-worker-{index}"
        owner = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "name": "job",
            "uid": self.job_uid,
            "controller": True,
        }
        labels = {JOB: "job", ROLE: "worker", INDEX: str(index)}
        metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
        spec = {"nodeName": "n", **TEMPLATE["spec"]}
        await self.client.create(PODS, {"metadata": metadata, "spec": spec}, "default")
        if started:
            await self.start_pod(name)
        return name

    async def start_pod(self, name: str) -> None:
        await self._status(name, "Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}})

    async def end_pod(self, name: str) -> None:
        await self._status(name, "Succeeded", {"terminated": {"exitCode": 0}})
        await self.kubelet.end(name)

    async def _status(self, name: str, phase: str, state: dict[str, Any]) -> None:
        container = {
            "name": "pytorch",
            "state": state,
            "ready": True,
            "restartCount": 0,
            "image": "i",
            "imageID": "",
        }
        status = {"phase": phase, "containerStatuses": [container]}
        await self.client.patch(ANY_PODS, name, {"status": status}, "default", subresource="status")

    async def end_job(self) -> None:
        condition = {"type": "Succeeded", "status": "True", "reason": "x", "message": "y"}
        status = {"status": {"conditions": [condition]}}
        await self.client.patch(PYTORCH_JOBS, "job", status, "default", subresource="status")

    async def follow(self, options: LogOptions = ALL_LOGS) -> list[tuple[str, str]]:
        job = await JobClient(self.client).get("job", "default")
        async with asyncio.timeout(30), follow_logs(self.client, job, options) as lines:
            return [(line.replica, line.text) async for line in lines]


@pytest.fixture
async def world(api_server: ApiServer, client: ApiClient) -> AsyncIterator[World]:
    kubelet = Kubelet()
    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", kubelet.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    tls = node_tls(api_server).context
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    port = int(runner.addresses[0][1])
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    await client.create(NODES, {"metadata": {"name": "n"}})
    await client.patch(NODES, "n", {"status": status}, subresource="status")
    await install_definitions(client)
    made = World(client, kubelet)
    await made.submit()
    yield made
    for pod in list(kubelet.lines):
        await kubelet.end(pod)
    await runner.cleanup()


async def test_lines_are_neither_lost_nor_doubled_when_connections_break(world: World) -> None:
    pods = [await world.add_pod(0), await world.add_pod(1)]
    for pod in pods:
        # Breaks at the start, within one second, between seconds, and twice at the same line.
        world.kubelet.cuts[pod] = [0, 3, 3, 7, 1]
    following = asyncio.create_task(world.follow())
    expected = []
    for number in range(30):
        for pod in pods:
            # Several lines of one second, some of them equal in text and in time.
            text = "same" if number % 4 else f"line {number}"
            await world.kubelet.write(pod, text, 250 * (number - number % 3))
            expected.append((pod.removeprefix("job-"), text))
    for pod in pods:
        await world.end_pod(pod)
    await world.end_job()
    got = await following
    assert world.kubelet.requests >= 12
    for replica in ("worker-0", "worker-1"):
        assert [text for of, text in got if of == replica] == [
            text for of, text in expected if of == replica
        ]


async def test_pods_that_come_late_are_waited_for(world: World) -> None:
    following = asyncio.create_task(world.follow())
    pod = await world.add_pod(0, started=False)
    await world.kubelet.write(pod, "first", 0)
    await world.start_pod(pod)
    late = await world.add_pod(1)
    await world.kubelet.write(late, "second", 1000)
    for name in (pod, late):
        await world.end_pod(name)
    await world.end_job()
    assert sorted(await following) == [("worker-0", "first"), ("worker-1", "second")]


async def test_a_pod_that_is_replaced_is_read_as_a_new_one(world: World) -> None:
    following = asyncio.create_task(world.follow())
    pod = await world.add_pod(0)
    await world.kubelet.write(pod, "before", 0)
    await world.end_pod(pod)
    await world.client.delete(PODS, pod, "default", grace_seconds=0)
    world.kubelet.ended.discard(pod)
    world.kubelet.lines[pod].clear()
    await world.add_pod(0)
    await world.kubelet.write(pod, "after", 5000)
    await world.end_pod(pod)
    await world.end_job()
    texts = [text for _, text in await following]
    assert texts[-1] == "after"
    assert len(texts) <= 2


async def test_a_job_that_is_deleted_ends_the_stream(world: World) -> None:
    following = asyncio.create_task(world.follow())
    pod = await world.add_pod(0)
    await world.kubelet.write(pod, "only", 0)
    await world.client.delete(PODS, pod, "default", grace_seconds=0)
    await world.kubelet.end(pod)
    await world.client.delete(PYTORCH_JOBS, "job", "default")
    assert len(await following) <= 1
