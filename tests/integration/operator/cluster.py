"""An embedded API server with our kinds, the operator, and scripted kubelets."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gangline.api import crd
from gangline.api.core.pod import Pod
from gangline.api.jobs.kubeflow import PyTorchJob
from gangline.api.meta.resource import Resource
from gangline.api.resources import CUSTOM_RESOURCE_DEFINITIONS, PODS, PYTORCH_JOBS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, NotFound
from gangline.operator.main import run
from gangline.operator.settings import OperatorSettings
from unit.operator.builders import manifest

NAMESPACE = "default"
PATIENCE_S = 20.0

Verdict = Callable[[Pod], int | None]
"""How a pod ends: its exit code, or None to let it run."""


def forever(_: Pod) -> int | None:
    return None


@dataclass
class Kubelets:
    """Marks pods Running, ends them as ``verdict`` says, and lets go of deleted ones."""

    client: ApiClient
    verdict: Verdict = forever
    seen: set[str] = field(default_factory=set)
    holding_on: bool = False
    """Deleted pods stay, as on a node that does not answer."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                async for event in self.client.watch(PODS):
                    if event.type in ("ADDED", "MODIFIED"):
                        tasks.create_task(self._serve(event.object))

    async def _serve(self, pod: Pod) -> None:
        try:
            await self._step(pod)
        except NotFound:
            return

    async def _step(self, pod: Pod) -> None:
        meta = pod.metadata
        if meta.deletion_timestamp:
            if not self.holding_on:
                await self.client.delete(
                    PODS, meta.name, meta.namespace, grace_seconds=0, uid=meta.uid
                )
            return
        if meta.uid not in self.seen:
            self.seen.add(meta.uid)
            await self._mark(pod, "Running")
        code = self.verdict(pod)
        if code is not None and pod.status.phase == "Running":
            await self._mark(pod, "Failed" if code else "Succeeded", code)

    async def _mark(self, pod: Pod, phase: str, code: int | None = None) -> None:
        state: dict[str, Any] = (
            {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        )
        container = {"name": "pytorch", "image": "x", "imageID": "", "ready": code is None}
        status = {
            "phase": phase,
            "containerStatuses": [{**container, "restartCount": 0, "state": state}],
        }
        await self.client.patch(
            PODS,
            pod.metadata.name,
            {"status": status},
            pod.metadata.namespace,
            subresource="status",
        )

    async def end(self, name: str, code: int) -> None:
        """End one pod now."""
        await self._mark(
            await self.client.get(PODS, name, NAMESPACE), "Failed" if code else "Succeeded", code
        )


class Scene:
    """A test's view of the cluster."""

    def __init__(self, client: ApiClient, kubelets: Kubelets) -> None:
        self.client = client
        self.kubelets = kubelets
        self.operator: asyncio.Task[None] | None = None
        self.kinds: frozenset[str] = frozenset()
        """The kinds that the operator serves; empty: all."""

    async def start_operator(self, client: ApiClient | None = None, **settings: Any) -> None:
        """Start the operator, perhaps with a client of its own."""
        chosen = OperatorSettings(**{"kinds": self.kinds, **settings})
        self.operator = asyncio.create_task(
            run(client or self.client, chosen, asyncio.Event()), name="operator"
        )

    async def kill_operator(self) -> None:
        """Stop the operator between two instructions."""
        await stop(self.operator)

    async def submit(
        self,
        *roles: int | None,
        name: str = "train",
        template: dict[str, Any] | None = None,
        **options: Any,
    ) -> PyTorchJob:
        """Create a job; ``template`` replaces the pod specification of all its roles."""
        written = manifest(*roles, name=name, **options)
        written["metadata"] = {"name": name}
        if template is not None:
            for role in written["spec"]["pytorchReplicaSpecs"].values():
                role["template"] = {"spec": template}
        return await self.client.create(PYTORCH_JOBS, written, NAMESPACE)

    async def job(self, name: str = "train") -> PyTorchJob:
        return await self.client.get(PYTORCH_JOBS, name, NAMESPACE)

    async def pods(self, name: str = "train") -> dict[str, Pod]:
        labels = f"training.kubeflow.org/job-name={name}"
        listing = await self.client.list(PODS, NAMESPACE, labels=labels)
        return {pod.metadata.name: pod for pod in listing.items}

    async def until(self, claim: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for a claim to become true, asking after each change that could matter."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await claim():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"never: {what}: {await self._told()}") from None

    async def until_condition(self, type_: str, name: str = "train") -> PyTorchJob:
        """Wait until a condition of a job is True."""

        async def holds() -> bool:
            job = await self.job(name)
            return any(c.type == type_ and c.status == "True" for c in job.status.conditions)

        await self.until(holds, f"{name} is {type_}")
        return await self.job(name)

    async def until_gone(self, resource: Resource[Any], name: str) -> None:
        """Wait until an object is no more."""

        async def gone() -> bool:
            try:
                await self.client.get(resource, name, NAMESPACE)
            except NotFound:
                return True
            return False

        await self.until(gone, f"{resource.kind} {name} is gone")

    async def install(self, *names: str) -> None:
        """Install the definitions of some of our kinds."""
        await install(self.client, *names)

    async def until_pods(self, wanted: dict[str, str], name: str = "train") -> None:
        """Wait until the job has exactly these pods, in these phases."""

        async def match() -> bool:
            pods = await self.pods(name)
            return {n.removeprefix(f"{name}-"): p.status.phase for n, p in pods.items()} == wanted

        await self.until(match, f"pods of {name} are {wanted}")

    async def _told(self) -> str:
        jobs = await self.client.list(PYTORCH_JOBS, NAMESPACE)
        pods = await self.client.list(PODS, NAMESPACE)
        return "; ".join(
            [f"{j.metadata.name}: {j.status}" for j in jobs.items]
            + [f"{p.metadata.name}: {p.status.phase}" for p in pods.items]
        )[:4000]


async def stop(operator: asyncio.Task[None] | None) -> None:
    """End an operator."""
    if operator:
        operator.cancel()
        await asyncio.gather(operator, return_exceptions=True)


def reported(job: PyTorchJob) -> list[str]:
    """A job's conditions in their order, those that no longer hold in parentheses."""
    return [c.type if c.status == "True" else f"({c.type})" for c in job.status.conditions]


_definitions = functools.cache(crd.crd_manifests)


async def install(client: ApiClient, *names: str) -> None:
    """Install the definitions of our kinds, or of some of them."""
    definitions = [made for name, made in _definitions().items() if not names or name in names]
    await asyncio.gather(*(install_definition(client, made) for made in definitions))


async def install_definition(client: ApiClient, definition: dict[str, Any]) -> None:
    """Install a definition and wait until its kind is served."""
    await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
    spec = definition["spec"]
    version = spec["versions"][0]["name"]
    await _answers(client, f"/apis/{spec['group']}/{version}/{spec['names']['plural']}")


async def _answers(client: ApiClient, path: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await client.request_json("GET", path)
            except ApiError:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def scene(client: ApiClient) -> AsyncIterator[Scene]:
    """Run kubelets on a cluster with our kinds; the test starts the operator."""
    kubelets = Kubelets(client)
    task = asyncio.create_task(kubelets.run())
    stage = Scene(client, kubelets)
    try:
        yield stage
    finally:
        await stage.kill_operator()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def pytorch_stage(client: ApiClient) -> AsyncIterator[Scene]:
    """A cluster with PyTorchJobs and groups alone, which is quick to start, and kubelets."""
    await install(client, "kubeflow.org_pytorchjobs", "scheduling.volcano.sh_podgroups")
    async with scene(client) as ready:
        ready.kinds = frozenset({PYTORCH_JOBS.kind})
        yield ready
