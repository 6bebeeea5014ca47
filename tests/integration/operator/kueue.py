"""A client that admits, evicts and delegates jobs as Kueue does. It shares no code with Gangline.

``Kueue`` follows the steps of Kueue's job framework (``jobframework/reconciler.go``) and of its
integration of Kubeflow's kinds (``kubeflowjob_controller.go``). A job's templates and counts are
its Workload. Admission merges a flavor into the templates and clears ``suspend``. Eviction sets
``suspend`` and restores the templates in the same patch, and releases the quota when no replica is
active. Workloads are in memory, and the queue has one flavor or no capacity.
"""

import asyncio
import base64
import copy
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import yaml

Json: TypeAlias = dict[str, Any]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
MERGE_PATCH = "application/merge-patch+json"
WITHIN_S = 20.0


@dataclass(frozen=True)
class PodSetInfo:
    """What Kueue changes in the templates of admitted jobs, and restores afterwards."""

    labels: Json = field(default_factory=dict)
    annotations: Json = field(default_factory=dict)
    node_selector: Json = field(default_factory=dict)
    tolerations: Sequence[Json] = ()
    gates: Sequence[Json] = ()

    @classmethod
    def of(cls, template: Json) -> "PodSetInfo":
        """Read these fields of a template."""
        meta, spec = template.get("metadata") or {}, template["spec"]
        return cls(
            meta.get("labels") or {},
            meta.get("annotations") or {},
            spec.get("nodeSelector") or {},
            spec.get("tolerations") or [],
            spec.get("schedulingGates") or [],
        )

    def merge_into(self, template: Json) -> None:
        """Add these fields to a template, whose own values take precedence."""
        own = PodSetInfo.of(template)
        replace(
            self,
            labels=self.labels | own.labels,
            annotations=self.annotations | own.annotations,
            node_selector=self.node_selector | own.node_selector,
            tolerations=[
                *own.tolerations,
                *(t for t in self.tolerations if t not in own.tolerations),
            ],
            gates=[*own.gates, *(gate for gate in self.gates if gate not in own.gates)],
        ).restore(template)

    def restore(self, template: Json) -> None:
        """Give a template these fields; empty ones are removed, as Go omits them."""
        meta, spec = template.setdefault("metadata", {}), template["spec"]
        _set(meta, "labels", self.labels)
        _set(meta, "annotations", self.annotations)
        _set(spec, "nodeSelector", self.node_selector)
        _set(spec, "tolerations", list(self.tolerations))
        _set(spec, "schedulingGates", list(self.gates))


def _set(target: Json, name: str, value: Any) -> None:
    if value:
        target[name] = value
    else:
        target.pop(name, None)


@dataclass(frozen=True)
class Integration:
    """Where a kind has what Kueue reads and writes."""

    path: str
    """The path of the jobs: ``/apis/kubeflow.org/v1/namespaces/default/pytorchjobs``."""
    specs: str
    """The field of the specification with the roles; empty: they are its own fields."""
    roles: tuple[str, ...]
    suspend: tuple[str, ...] = ("runPolicy", "suspend")

    def role_specs(self, job: Json) -> Json:
        found: Json = job["spec"][self.specs] if self.specs else job["spec"]
        return found

    def pod_sets(self, job: Json) -> dict[str, Json]:
        """The pod sets of the Workload: count and template of each role."""
        specs = self.role_specs(job)
        return {
            role: {
                "count": 1 if specs[role].get("replicas") is None else specs[role]["replicas"],
                "template": copy.deepcopy(specs[role]["template"]),
            }
            for role in self.roles
        }

    def is_suspended(self, job: Json) -> bool:
        *parents, name = self.suspend
        target = job["spec"]
        for parent in parents:
            target = target.get(parent) or {}
        return bool(target.get(name))

    def set_suspended(self, job: Json, value: bool) -> None:
        *parents, name = self.suspend
        target = job["spec"]
        for parent in parents:
            target = target.setdefault(parent, {})
        target[name] = value

    def defaulted(self, job: Json, queue: str = "team") -> Json:
        """The job after Kueue's webhook: suspended, in a queue, with zero values of Go's types."""
        written = copy.deepcopy(job)
        written["metadata"].setdefault("labels", {})[QUEUE_LABEL] = queue
        self.set_suspended(written, True)
        for spec in (self.role_specs(written)[role] for role in self.roles):
            spec["template"].setdefault("metadata", {})["creationTimestamp"] = None
            for container in spec["template"]["spec"]["containers"]:
                container.setdefault("resources", {})
        written["status"] = {"conditions": None, "replicaStatuses": None}
        return written


@dataclass
class Workload:
    """Kueue's object of a job."""

    pod_sets: dict[str, Json]
    admission: PodSetInfo | None = None
    evicted: bool = False
    pods_ready: bool = False
    finished: str = ""
    """The condition that ended the job."""


class Kueue:
    """Kueue's controller for the jobs of one kind, and its queue."""

    def __init__(self, session: aiohttp.ClientSession, kind: Integration) -> None:
        self._session = session
        self.kind = kind
        self.flavor: PodSetInfo | None = None
        """Pending workloads are admitted with this; None: the queue has no capacity."""
        self.workloads: dict[str, Workload] = {}
        self._changed = asyncio.Condition()
        self._lock = asyncio.Lock()

    async def create(self, job: Json) -> Json:
        """Create a job, whose creation Kueue's webhook changes."""
        return await self.call("POST", self.kind.path, self.kind.defaulted(job))

    async def job(self, name: str) -> Json:
        return await self.call("GET", f"{self.kind.path}/{name}")

    async def admit(self, flavor: PodSetInfo | None) -> None:
        """Admit pending workloads from now on; None: admit none."""
        self.flavor = flavor
        for name in list(self.workloads):
            await self.reconcile(name)

    async def evict(self, name: str) -> None:
        """Preempt a workload: the queue has no capacity any more."""
        self.flavor = None
        self.workloads[name].evicted = True
        await self.reconcile(name)

    async def until(self, name: str, claim: Callable[[Workload], bool], what: str) -> Workload:
        """Wait until a workload fulfils a claim."""
        try:
            async with asyncio.timeout(WITHIN_S), self._changed:
                await self._changed.wait_for(
                    lambda: name in self.workloads and claim(self.workloads[name])
                )
        except TimeoutError:
            known = self.workloads.get(name)
            raise AssertionError(f"never: {what}: {known}: {await self.job(name)}") from None
        return self.workloads[name]

    async def watch(self) -> None:
        """Follow the jobs, and reconcile each that changes."""
        listing = await self.call("GET", self.kind.path)
        for job in listing["items"]:
            await self.reconcile(job["metadata"]["name"])
        version = listing["metadata"]["resourceVersion"]
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        async with self._session.get(self.kind.path, params=query) as answer:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    await self.reconcile(event["object"]["metadata"]["name"])

    async def reconcile(self, name: str) -> None:
        """Run the framework's steps until no write of another client intervenes."""
        while True:
            try:
                async with self._lock:
                    await self._reconcile(await self.job(name))
                break
            except aiohttp.ClientResponseError as error:
                if error.status == 404:
                    return
                if error.status != 409:
                    raise
        async with self._changed:
            self._changed.notify_all()

    async def _reconcile(self, job: Json) -> None:
        name, kind = job["metadata"]["name"], self.kind
        if QUEUE_LABEL not in job["metadata"].get("labels", {}):
            return
        conditions = {
            each["type"]: each["status"] for each in job.get("status", {}).get("conditions") or ()
        }
        ended = [each for each in ("Succeeded", "Failed") if conditions.get(each) == "True"]
        workload = self.workloads.get(name)
        if not ended and (workload is None or not self._matches(job, workload)):
            if not kind.is_suspended(job):
                job = await self._stop(job, workload)
            workload = self.workloads[name] = Workload(kind.pod_sets(job))
        if workload is None:
            return  # It ended before it was known.
        workload.pods_ready = conditions.get("Running") == "True"
        if ended:
            workload.finished = ended[0]
        elif workload.evicted:
            job = await self._stop(job, workload)
            if not _is_active(job):
                workload.admission, workload.evicted = None, False
        elif kind.is_suspended(job):
            workload.admission = workload.admission or self.flavor
            if workload.admission:
                await self._start(job, workload.admission)
        elif workload.admission is None:
            await self._stop(job, workload)

    def _matches(self, job: Json, workload: Workload) -> bool:
        """Whether a job is that of its workload: admitted with its changes, or without them."""
        found = self.kind.pod_sets(job)
        if found == workload.pod_sets:
            return workload.admission is None or self.kind.is_suspended(job)
        admitted = copy.deepcopy(workload.pod_sets)
        for pod_set in admitted.values():
            (workload.admission or PodSetInfo()).merge_into(pod_set["template"])
        return workload.admission is not None and found == admitted

    async def _start(self, job: Json, admission: PodSetInfo) -> None:
        started = copy.deepcopy(job)
        self.kind.set_suspended(started, False)
        for role in self.kind.roles:
            admission.merge_into(self.kind.role_specs(started)[role]["template"])
        await self._patch(job, started)

    async def _stop(self, job: Json, workload: Workload | None) -> Json:
        """Suspend a job and restore its templates, if it is not suspended."""
        if self.kind.is_suspended(job):
            return job
        stopped = copy.deepcopy(job)
        self.kind.set_suspended(stopped, True)
        for role, pod_set in (workload.pod_sets if workload else {}).items():
            template = self.kind.role_specs(stopped)[role]["template"]
            PodSetInfo.of(pod_set["template"]).restore(template)
        return await self._patch(job, stopped)

    async def _patch(self, before: Json, after: Json) -> Json:
        """Send the difference, as controller-runtime's MergeFromWithOptimisticLock."""
        patch = merge_patch(before, after)
        patch.setdefault("metadata", {})["resourceVersion"] = before["metadata"]["resourceVersion"]
        return await self.call("PATCH", f"{self.kind.path}/{before['metadata']['name']}", patch)

    async def copy_status(self, name: str, status: Json) -> None:
        """Write the status of the job in a worker cluster, as MultiKueue does."""
        async with self._lock:
            version = (await self.job(name))["metadata"]["resourceVersion"]
            patch = {"metadata": {"resourceVersion": version}, "status": status}
            await self.call("PATCH", f"{self.kind.path}/{name}/status", patch)

    async def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """Send a request.

        Raises:
            ClientResponseError: the server refused it.
        """
        type_ = MERGE_PATCH if method == "PATCH" else "application/json"
        headers = {"Content-Type": type_, "Accept": "application/json"}
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, path, data=data, headers=headers) as answer:
            if answer.status not in (404, 409):
                assert answer.ok, await answer.text()
            answer.raise_for_status()
            read: Json = await answer.json()
            return read


def _is_active(job: Json) -> bool:
    counted = job.get("status", {}).get("replicaStatuses") or {}
    return any(each.get("active") for each in counted.values())


def merge_patch(before: Json, after: Json) -> Json:
    """The JSON merge patch from one object to another."""
    patch: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            if changed := merge_patch(old, value):
                patch[name] = changed
        elif old != value or name not in before:
            patch[name] = value
    return patch


def connect(kubeconfig: Path) -> aiohttp.ClientSession:
    """Return a session with the server of a kubeconfig that has a token."""
    read = yaml.safe_load(kubeconfig.read_text())
    cluster, user = read["clusters"][0]["cluster"], read["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    return aiohttp.ClientSession(
        cluster["server"],
        headers={"Authorization": f"Bearer {user['token']}", "User-Agent": "kueue"},
        connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authority)),
        timeout=aiohttp.ClientTimeout(total=None),
    )


@asynccontextmanager
async def kueue(kubeconfig: Path, kind: Integration) -> AsyncIterator[Kueue]:
    """Run Kueue for the jobs of a kind."""
    async with connect(kubeconfig) as session:
        running = Kueue(session, kind)
        watching = asyncio.create_task(running.watch())
        try:
            yield running
        finally:
            watching.cancel()
            (ended,) = await asyncio.gather(watching, return_exceptions=True)
            if isinstance(ended, Exception):
                raise ended
