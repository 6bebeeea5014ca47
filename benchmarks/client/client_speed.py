"""Reads and writes of the client, compared with the official Python client in the same run.

    python -m benchmarks client_speed

A bare server in a separate process sends prepared bytes, so that only the client is measured. Each
measurement runs in a new process and counts its own CPU seconds.
"""

import asyncio
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.meta.objects import Object, Wire
from gangline.api.meta.resource import Resource
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.informers.informer import Informer

PAGE = 500
CONCURRENCY = 16
PODS_LISTED = 4_000
EVENTS = 20_000
PEER_EVENTS = 2_000
REQUESTS = 3_200
PEER_REQUESTS = 800


class LeanSpec(Wire):
    node_name: str = ""


class LeanStatus(Wire):
    phase: str = ""


class LeanPod(Object):
    """The few fields of a pod that a small controller reads."""

    spec: LeanSpec = LeanSpec()
    status: LeanStatus = LeanStatus()


LEAN_PODS = Resource(LeanPod, "", "v1", "pods", "Pod")


def a_pod(number: int) -> dict[str, Any]:
    """A worker pod of a training job, of typical size."""
    name = f"train-{number // 64}-worker-{number % 64}"
    environment = [{"name": f"SETTING_{n}", "value": f"value of setting {n}"} for n in range(20)]
    managed = {f"f:field-{n}": {"f:subfield": {}} for n in range(40)}
    container = {
        "name": "pytorch",
        "image": "registry.example.org/team/train:1.2.3",
        "command": ["python", "-m", "train", "--epochs", "10"],
        "env": environment,
        "resources": {
            "requests": {"cpu": "8", "memory": "64Gi"},
            "limits": {"nvidia.com/gpu": "1"},
        },
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{number:032d}",
            "resourceVersion": str(number + 1),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"training.kubeflow.org/job-name": f"train-{number // 64}", "team": "a"},
            "managedFields": [{"manager": "gangline", "operation": "Update", "fieldsV1": managed}],
        },
        "spec": {
            "containers": [container],
            "nodeName": f"node-{number % 300}",
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.1.2.3",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
        },
    }


def serve(port: Any) -> None:
    """Serve prepared bytes by path."""
    pods = PODS_LISTED
    raw = [json.dumps(a_pod(number)).encode() for number in range(pods)]
    pages = []
    for start in range(0, pods, PAGE):
        more = f',"continue":"{start + PAGE}"' if start + PAGE < pods else ""
        head = f'{{"kind":"PodList","metadata":{{"resourceVersion":"{pods}"{more}}},"items":['
        pages.append(head.encode() + b",".join(raw[start : start + PAGE]) + b"]}")
    changed = [
        json.dumps({"type": "MODIFIED", "object": _at_revision(a_pod(n % pods), pods + n + 1)})
        for n in range(EVENTS)
    ]
    lines = [f"{event}\n".encode() for event in changed]
    # One chunk per event, as API servers send them.
    stream = b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in lines) + b"0\r\n\r\n"

    def answer(target: str) -> bytes:
        if "watch=" in target:
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            return head + stream
        body = raw[0]
        if "limit=" in target or target.endswith("/pods"):
            start = target.partition("continue=")[2].partition("&")[0]
            body = pages[int(start or 0) // PAGE]
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        return head.encode() + b"\r\n" + body

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = head.decode().lower()
                length = fields.partition("content-length:")[2].partition("\r\n")[0]
                if length:
                    await reader.readexactly(int(length))
                method, target = head.decode().split(" ", 2)[:2]
                writer.write(answer(target if method == "GET" else ""))
                await writer.drain()
                if "watch=" in target:
                    writer.close()
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(connection, "127.0.0.1", 0, limit=2**20)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def _at_revision(pod: dict[str, Any], revision: int) -> dict[str, Any]:
    pod["metadata"]["resourceVersion"] = str(revision)
    return pod


async def ours_list(url: str, kind: Resource[Any]) -> int:
    async with ApiClient(ClusterConfig(url)) as client:
        return len(await client.list(kind, limit=PAGE))


async def ours_follow(url: str, kind: Resource[Any]) -> int:
    """List everything, then process all events of a watch."""
    async with ApiClient(ClusterConfig(url)) as client:
        informer: Informer[Any] = Informer(client, kind)
        seen = 0
        enough = asyncio.Event()

        def count(old: Object | None, new: Object | None) -> None:
            nonlocal seen
            seen += old is not None
            if seen >= EVENTS:
                enough.set()

        informer.add_listener(count)
        task = asyncio.create_task(informer.run())
        await enough.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return seen


async def ours_requests(url: str, write: bool) -> int:
    body = msgspec.convert(a_pod(1), Pod)
    async with ApiClient(ClusterConfig(url)) as client:

        async def some() -> None:
            for _ in range(REQUESTS // CONCURRENCY):
                if write:
                    await client.create(PODS, body, "team")
                else:
                    await client.get(PODS, "train-0-worker-0", "team")

        await asyncio.gather(*(some() for _ in range(CONCURRENCY)))
    return REQUESTS // CONCURRENCY * CONCURRENCY


def official(url: str) -> Any:
    from kubernetes import client as official_client

    configuration = official_client.Configuration(host=url)
    return official_client.CoreV1Api(official_client.ApiClient(configuration))


def official_list(url: str) -> int:
    api, found, token = official(url), 0, None
    kept = []
    while True:
        page = api.list_pod_for_all_namespaces(limit=PAGE, _continue=token)
        kept += page.items
        found += len(page.items)
        token = page.metadata._continue
        if not token:
            return len(kept)


def official_follow(url: str) -> int:
    from kubernetes import watch

    found = 0
    for _ in watch.Watch().stream(
        official(url).list_pod_for_all_namespaces, resource_version="1", timeout_seconds=5
    ):
        found += 1
        if found == PEER_EVENTS:
            break
    return found


def official_requests(url: str, write: bool) -> int:
    api, body = official(url), a_pod(1)
    for _ in range(PEER_REQUESTS):
        if write:
            api.create_namespaced_pod("team", body)
        else:
            api.read_namespaced_pod("train-0-worker-0", "team")
    return PEER_REQUESTS


def measure(work: Callable[[], Any]) -> dict[str, float]:
    """Run ``work`` in a new process; return its CPU seconds, wall seconds and memory growth."""

    def child(result: Any) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF)
        began = time.perf_counter()
        outcome = work()
        count = asyncio.run(outcome) if asyncio.iscoroutine(outcome) else outcome
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        megabytes = (after.ru_maxrss - before.ru_maxrss) / 1024
        wall = time.perf_counter() - began
        result.put({"count": count, "cpu_s": cpu, "wall_s": wall, "peak_mb": megabytes})

    context = multiprocessing.get_context("fork")
    result = context.Queue()
    process = context.Process(target=child, args=(result,))
    process.start()
    measured: dict[str, float] = result.get(timeout=120)
    process.join()
    return measured


def report(title: str, ours: dict[str, float], peer: dict[str, float] | None) -> None:
    rate = ours["count"] / ours["cpu_s"]
    line = (
        f"{title:34} {rate:9.0f} per CPU-s  {ours['cpu_s']:6.2f} CPU-s  {ours['peak_mb']:5.0f} MB"
    )
    if peer is not None:
        ratio = rate / (peer["count"] / peer["cpu_s"])
        line += (
            f"   official {peer['count'] / peer['cpu_s']:7.0f} per CPU-s, {peer['peak_mb']:5.0f} MB"
        )
        line += f"   ratio {ratio:5.1f}"
    sys.stdout.write(line + "\n")


def main() -> None:
    context = multiprocessing.get_context("fork")
    port = context.Queue()
    server = context.Process(target=serve, args=(port,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{port.get(timeout=120)}"
    peer_list, peer_follow = (
        measure(partial(official_list, url)),
        measure(partial(official_follow, url)),
    )
    report("list, complete pods", measure(partial(ours_list, url, PODS)), peer_list)
    report("list, lean pods", measure(partial(ours_list, url, LEAN_PODS)), peer_list)
    report(
        "watch into informer, complete pods", measure(partial(ours_follow, url, PODS)), peer_follow
    )
    report(
        "watch into informer, lean pods", measure(partial(ours_follow, url, LEAN_PODS)), peer_follow
    )
    for title, write in (("get", False), ("create", True)):
        peer = measure(partial(official_requests, url, write))
        report(title, measure(partial(ours_requests, url, write)), peer)
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
