"""The steps of a scenario: submit a job, wait for its conditions, read its pods."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from e2e.clusters import ClusterUnderTest
from e2e.waiting import PATIENCE_S, eventually
from gangline.api.core.pod import Pod
from gangline.api.meta.resource import Resource
from gangline.api.resources import NAMESPACES, POD_GROUPS, PODS, PYTORCH_JOBS
from gangline.api.volcano.scheduling import PodGroup
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound

JOB_LABEL = "training.kubeflow.org/job-name"


def condition(subject: Any, kind: str) -> str | None:
    """The status of the condition ``kind``: "True", "False", or None where it is absent."""
    conditions = subject.status.conditions
    return next((entry.status for entry in conditions if entry.type == kind), None)


def finished(job: Any) -> bool:
    """Whether the job has succeeded or failed."""
    return "True" in (condition(job, "Succeeded"), condition(job, "Failed"))


class Scenario:
    """One namespace of a tested cluster, and a client."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        client: ApiClient,
        namespace: str,
        shared: Path,
        jobs: Resource[Any] = PYTORCH_JOBS,
    ) -> None:
        self.cluster = cluster
        self.client = client
        self.namespace = namespace
        self.shared = shared
        self.jobs = jobs

    def of(self, jobs: Resource[Any]) -> "Scenario":
        """The same scenario, with jobs of another kind."""
        return Scenario(self.cluster, self.client, self.namespace, self.shared, jobs)

    async def open(self) -> None:
        """Create the namespace and the directory that pods of this scenario share."""
        self.shared.mkdir(parents=True, exist_ok=True)
        self.shared.chmod(0o777)
        await self.client.create(NAMESPACES, {"metadata": {"name": self.namespace}})

    async def close(self) -> None:
        """Delete the namespace and its objects; the jobs are deleted before the next scenario."""
        await self.client.delete(NAMESPACES, self.namespace, propagation="Background")

        async def gone() -> bool:
            pods = await self.client.list(PODS, self.namespace)
            for pod in pods.items:
                with contextlib.suppress(NotFound):
                    await self.client.delete(
                        PODS, pod.metadata.name, self.namespace, grace_seconds=0
                    )
            return not pods.items

        await eventually(gone, f"pods of {self.namespace} are gone")

    async def submit(self, manifest: Mapping[str, Any]) -> Any:
        """Create the job."""
        return await self.client.create(self.jobs, manifest, self.namespace)

    async def job(self, name: str) -> Any:
        """The current state of the job."""
        return await self.client.get(self.jobs, name, self.namespace)

    async def pods(self, name: str) -> dict[str, Pod]:
        """The job's pods by name."""
        listing = await self.client.list(PODS, self.namespace, labels=f"{JOB_LABEL}={name}")
        return {pod.metadata.name: pod for pod in listing.items}

    async def job_when(
        self,
        name: str,
        claim: Callable[[Any], object],
        what: str,
        patience_s: float = PATIENCE_S,
    ) -> Any:
        """The job, once ``claim`` is true for it."""

        async def probe() -> Any | None:
            job = await self.job(name)
            return job if claim(job) else None

        return await eventually(probe, f"job {name}: {what}", patience_s)

    async def pods_when(
        self,
        name: str,
        claim: Callable[[dict[str, Pod]], object],
        what: str,
        patience_s: float = PATIENCE_S,
    ) -> dict[str, Pod]:
        """The job's pods, once ``claim`` is true for them."""

        async def probe() -> tuple[dict[str, Pod]] | None:
            pods = await self.pods(name)
            return (pods,) if claim(pods) else None

        return (await eventually(probe, f"pods of {name}: {what}", patience_s))[0]

    async def running(self, name: str, count: int) -> dict[str, Pod]:
        """The job's pods, once ``count`` of them run."""
        return await self.pods_when(
            name,
            lambda pods: sum(p.status.phase == "Running" for p in pods.values()) >= count,
            f"{count} run",
        )

    async def outcome(self, name: str, patience_s: float = PATIENCE_S) -> str:
        """ "Succeeded" or "Failed" once the job has finished, never both."""
        job = await self.job_when(name, finished, "is finished", patience_s)
        ends = [kind for kind in ("Succeeded", "Failed") if condition(job, kind) == "True"]
        assert len(ends) == 1, job.status.conditions
        return ends[0]

    async def gone(self, name: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until neither the job nor its pods exist."""

        async def probe() -> bool:
            try:
                await self.job(name)
            except NotFound:
                return not await self.pods(name)
            return False

        await eventually(probe, f"job {name} is gone", patience_s)

    async def pod_group(self, name: str) -> PodGroup:
        """The job's PodGroup."""
        return await self.client.get(POD_GROUPS, name, self.namespace)

    async def patch(self, name: str, patch: Mapping[str, Any]) -> Any:
        """Merge ``patch`` into the job."""
        return await self.client.patch(self.jobs, name, patch, self.namespace)

    async def delete(self, name: str) -> None:
        """Delete the job in the background."""
        await self.client.delete(self.jobs, name, self.namespace, propagation="Background")

    def let(self, mark: str) -> None:
        """Create the file that ``until(mark)`` in a pod waits for."""
        (self.shared / mark).touch()
