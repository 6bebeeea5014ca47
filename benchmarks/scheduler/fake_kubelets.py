"""The kubelets of many nodes in one process: the nodes exist as objects, and nothing runs on them.

Bound pods get the status of a running pod, pods that are to end are removed, and every node renews
its lease. One watch serves all nodes, as a watch for each of them would only measure the watches.
The process reports when each pod was bound, has run and was removed, as its watch shows it.
"""

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing, suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import NamedTuple

import msgspec
import uvloop

from benchmarks.cluster.connection import Clients, Target
from gangline.api.meta.objects import Object, Wire
from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient
from gangline.kube.client.collection import Collection, Selection
from gangline.kube.config.config import load_config
from gangline.kube.errors import ApiError, Gone
from gangline.kube.http.request import PatchKind

WRITERS = 8
"""Statuses and removals that are written at a time."""
LEASE_WRITERS = 4
GONE = frozenset({404, 409})
"""Codes of pods that were deleted, or replaced by others, meanwhile."""
REPORT_S = 0.05
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_DURATION_S = 40
_VERSION = re.compile(rb'"resourceVersion":\s*"(\d+)"')
BOUND, RUNNING, REMOVED = "bound", "running", "removed"


class PodSeen(NamedTuple):
    """What the watch has shown of a pod."""

    change: str
    """``BOUND``, ``RUNNING`` or ``REMOVED``."""
    pod: str
    """Its namespace and name."""
    node: str
    at: float
    """``time.monotonic()``, which all processes of a machine share."""


class KubeletPodSpec(Wire):
    node_name: str = ""


class KubeletPodStatus(Wire):
    phase: str = ""


class KubeletPod(Object):
    spec: KubeletPodSpec = KubeletPodSpec()
    status: KubeletPodStatus = KubeletPodStatus()


PODS = Resource(KubeletPod, "", "v1", "pods", "Pod")


class Kubelets:
    """The kubelets of the nodes ``names``."""

    def __init__(self, target: Target, names: Sequence[str], lease_s: float, pipe: Pipe) -> None:
        self._clients = Clients(target, WRITERS + LEASE_WRITERS)
        self._nodes = dict.fromkeys(names, "")
        """Names of the nodes that live, and the versions of their leases."""
        self._lease_s = lease_s
        self._pipe = pipe
        self._seen: list[PodSeen] = []
        self._bound: dict[str, str] = {}
        """Uids of the pods that are on nodes."""
        self._writes: deque[tuple[str, KubeletPod]] = deque()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._has_writes = asyncio.Event()

    async def run(self, client: ApiClient) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(client))
            tasks.create_task(self._report())
            for _ in range(WRITERS):
                tasks.create_task(self._write())
            if self._lease_s:
                for share in range(LEASE_WRITERS):
                    tasks.create_task(self._renew(list(self._nodes)[share::LEASE_WRITERS]))
            tasks.create_task(self._obey())

    async def _obey(self) -> None:
        # Both directions block in threads: a report of 100,000 pods is larger than the pipe.
        while True:
            match await asyncio.to_thread(self._pipe.recv):
                case ("lose", nodes):
                    for node in nodes:
                        self._nodes.pop(node, None)
                case ("pause", pause):
                    (self._may_write.clear if pause else self._may_write.set)()

    async def _watch(self, client: ApiClient) -> None:
        collection = Collection(client, Selection(PODS, fields="spec.nodeName!="), None)
        version = ""
        while True:
            try:
                if not version:
                    listed = await collection.list()
                    version = listed.resource_version
                    for pod in listed.items:
                        self._changed(pod)
                async with aclosing(collection.watch(version)) as events:
                    async for event in events:
                        version = event.resource_version or version
                        if event.type == "DELETED":
                            self._removed(event.object)
                        elif event.type in ("ADDED", "MODIFIED"):
                            self._changed(event.object)
            except Gone:
                version = ""
            except ApiError as error:
                print(f"  kubelets: {error}", flush=True)
                await asyncio.sleep(0.5)

    def _changed(self, pod: KubeletPod) -> None:
        metadata, node = pod.metadata, pod.spec.node_name
        key = f"{metadata.namespace}/{metadata.name}"
        is_new = self._bound.get(key) != metadata.uid
        if is_new:
            self._bound[key] = metadata.uid
            self._seen.append(PodSeen(BOUND, key, node, time.monotonic()))
        if metadata.deletion_timestamp is not None:
            self._queue("remove", pod)
        elif is_new and pod.status.phase == "Pending":
            self._queue("start", pod)
        elif pod.status.phase == "Running":
            self._seen.append(PodSeen(RUNNING, key, node, time.monotonic()))

    def _removed(self, pod: KubeletPod) -> None:
        key = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if self._bound.pop(key, None) is not None:
            self._seen.append(PodSeen(REMOVED, key, pod.spec.node_name, time.monotonic()))

    def _queue(self, what: str, pod: KubeletPod) -> None:
        if pod.spec.node_name in self._nodes:
            self._writes.append((what, pod))
            self._has_writes.set()

    async def _report(self) -> None:
        self._pipe.send([])
        while True:
            await asyncio.sleep(REPORT_S)
            if self._seen:
                seen, self._seen = self._seen, []
                await asyncio.to_thread(self._pipe.send, seen)

    async def _write(self) -> None:
        while True:
            await self._may_write.wait()
            if not self._writes:
                self._has_writes.clear()
                await self._has_writes.wait()
                continue
            what, pod = self._writes.popleft()
            namespace, name, uid = pod.metadata.namespace, pod.metadata.name, pod.metadata.uid
            path = f"/api/v1/namespaces/{namespace}/pods/{name}"
            if what == "start":
                request = ("PATCH", f"{path}/status", running_status(uid), PatchKind.STRATEGIC)
            else:
                body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                request = ("DELETE", path, msgspec.json.encode(body), "application/json")
            await self._clients.send(*request, passed=GONE)

    async def _renew(self, nodes: Sequence[str]) -> None:
        """Renew the leases of these nodes evenly over the interval."""
        due = time.monotonic()
        while True:
            for node in nodes:
                due += self._lease_s / len(nodes)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await self._may_write.wait()
                if node in self._nodes:
                    await self._renew_one(node)
            due = max(due, time.monotonic() - self._lease_s)

    async def _renew_one(self, node: str) -> None:
        path = f"{LEASES}/{node}"
        if version := self._nodes[node]:
            code, answer = await self._clients.send("PUT", path, lease(node, version), passed=GONE)
        else:
            code, answer = await self._clients.send("POST", LEASES, lease(node), passed=GONE)
        if code == 409:  # the server has processed a request whose answer was lost
            _, answer = await self._clients.send("GET", path)
        if match := _VERSION.search(answer):
            self._nodes[node] = match[1].decode()


def running_status(uid: str) -> bytes:
    """The patch of a pod that runs, as large as a kubelet's."""
    now = _now()
    conditions = [
        {"type": name, "status": "True", "lastTransitionTime": now}
        for name in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    container = {
        "name": "c",
        "image": "none:1",
        "imageID": "none@sha256:0",
        "containerID": f"containerd://{uid}",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }
    status = {
        "phase": "Running",
        "conditions": conditions,
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}],
        "startTime": now,
        "containerStatuses": [container],
    }
    return json.dumps({"metadata": {"uid": uid}, "status": status}).encode()


def lease(node: str, version: str = "") -> bytes:
    """The lease of a node, renewed now."""
    spec = {
        "holderIdentity": node,
        "leaseDurationSeconds": LEASE_DURATION_S,
        "renewTime": _now(".000000"),
    }
    metadata = {"name": node, "namespace": "kube-node-lease"}
    if version:
        metadata["resourceVersion"] = version
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": spec,
    }
    return json.dumps(body).encode()


def _now(fraction: str = "") -> str:
    return time.strftime(f"%Y-%m-%dT%H:%M:%S{fraction}Z", time.gmtime())


async def _run(kubeconfig: Path, names: Sequence[str], lease_s: float, pipe: Pipe) -> None:
    target = await Target.of(kubeconfig)
    async with ApiClient(load_config(str(kubeconfig)), "fake-kubelets") as client:
        await Kubelets(target, names, lease_s, pipe).run(client)


def run(kubeconfig: Path, names: Sequence[str], lease_s: float, pipe: Pipe) -> None:
    """The process: sends lists of ``PodSeen``; takes ``("lose", nodes)`` and ``("pause", flag)``.

    Args:
        names: the nodes.
        lease_s: interval between renewals of a lease; 0: there are none.
        pipe: to the process that measures.
    """
    with suppress(KeyboardInterrupt):
        uvloop.run(_run(kubeconfig, names, lease_s, pipe))
