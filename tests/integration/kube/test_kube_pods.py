"""What our client does with running pods, on a complete embedded cluster."""

import asyncio

import pytest

from gangline.api.resources import PODS
from gangline.kube import errors
from gangline.kube.client.client import ApiClient
from gangline.kube.informers.informer import Informer
from integration.cluster.embedded import EmbeddedCluster

pytestmark = pytest.mark.slow


def a_pod(name: str, script: str) -> dict[str, object]:
    container = {"name": "c", "image": "none", "command": ["sh", "-c", script]}
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    return {"metadata": {"name": name}, "spec": spec}


async def start(client: ApiClient, name: str, script: str, phase: str = "Running") -> None:
    """Create a pod and wait until it has come to a phase."""
    await client.create(PODS, a_pod(name, script), "default")
    informer = Informer(client, PODS, "default", fields=f"metadata.name={name}")
    reached = asyncio.Event()

    def look(_old: object, new: object) -> None:
        if getattr(getattr(new, "status", None), "phase", "") == phase:
            reached.set()

    informer.add_listener(look)
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(reached.wait(), 30)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_pod_is_read_talked_to_and_evicted(shared_cluster: EmbeddedCluster) -> None:
    async with shared_cluster.client() as client:
        script = "echo started; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo gone; sleep 60"
        await start(client, "a", script)

        done = await client.exec("a", "default", ["sh", "-c", "echo out; echo err >&2; exit 7"])
        assert (done.exit_code, done.stdout, done.stderr) == (7, b"out\n", b"err\n")

        large = bytes(range(256)) * 4096
        echoed = await client.exec("a", "default", ["cat"], stdin=large)
        assert echoed.stdout == large

        lines: list[bytes] = []

        async def follow() -> None:
            async for line in client.logs("a", "default", follow=True):
                lines.append(line)
                if line == b"gone":
                    return

        reading = asyncio.create_task(follow())
        await client.exec("a", "default", ["touch", "/tmp/go"])
        await asyncio.wait_for(reading, 10)
        assert lines == [b"started", b"gone"]

        with pytest.raises(errors.ApiError, match="nope"):
            await client.exec("a", "default", ["true"], container="nope")
        unknown = await client.exec("a", "default", ["no-such-command"])
        assert unknown.exit_code in {126, 127}
        with pytest.raises(errors.NotFound, match="missing"):
            await client.exec("missing", "default", ["true"])

        await client.evict("a", "default")
        async with asyncio.timeout(20):
            while True:
                try:
                    await client.get(PODS, "a", "default")
                except errors.NotFound:
                    break


async def test_the_log_of_a_pod_that_has_ended_can_be_cut(
    shared_cluster: EmbeddedCluster,
) -> None:
    async with shared_cluster.client() as client:
        await start(client, "b", "for n in 1 2 3 4 5; do echo line $n; done", "Succeeded")
        last = [line async for line in client.logs("b", "default", tail=2)]
        assert last == [b"line 4", b"line 5"]
        stamped = [line async for line in client.logs("b", "default", timestamps=True)]
        time, _, text = stamped[0].partition(b" ")
        assert text == b"line 1"
        again = client.logs("b", "default", since_time=time.decode())
        assert [line async for line in again][-1] == b"line 5"
