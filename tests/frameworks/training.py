"""Helpers of the framework tests: run an example as a user does, and check its end.

An example is a manifest and a script in ``examples/FRAMEWORK``. As its first lines say, the script
goes into a ConfigMap of its own name, and the manifest is applied as it is. Nothing here knows a
kind of job: plurals are asked of the API server, and an end is read from conditions or phase.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gangline.api.jobs.kubeflow import RESTART_ANNOTATION
from gangline.api.meta.resource import Resource
from gangline.api.resources import CONFIG_MAPS, EVENTS, PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, NotFound
from integration.cluster.embedded import EmbeddedCluster, embedded, until

Manifest = dict[str, Any]

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMESPACE = "default"
PATIENCE_S = 400.0
"""Time limit of a training; on two busy cores the import of a framework takes many seconds."""
POLLED_EVERY_S = 0.25
ACCURACY = r"test accuracy (\d\.\d+)"
"""What the examples print at their end."""
LAST_LINES = 25
"""Number of log lines per pod in the message of a failed test."""


def end_of(job: Manifest) -> str:
    """Return "Succeeded", "Failed", or "" while the job has not ended.

    Kubeflow's and MindSpore's kinds say so in conditions, PaddleJob in its phase.
    """
    status = job.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition["type"] in {"Succeeded", "Failed"} and condition["status"] == "True":
            return str(condition["type"])
    return {"Completed": "Succeeded", "Failed": "Failed"}.get(status.get("phase", ""), "")


class Training:
    """A cluster for examples."""

    def __init__(self, cluster: EmbeddedCluster, client: ApiClient) -> None:
        self.cluster = cluster
        self.client = client

    async def start(
        self,
        framework: str,
        example: str,
        *,
        script: str = "",
        together: bool = False,
        more: Sequence[str] = (),
    ) -> "RunningExample":
        """Follow the first lines of ``examples/FRAMEWORK/EXAMPLE.yaml``; return its job.

        Args:
            framework: the folder below ``examples``.
            example: the manifest's name without its ending.
            script: the script's, where it is another one; also the name of its ConfigMap.
            together: annotate the job so that its replicas restart all together.
            more: further arguments of the script.
        """
        folder = EXAMPLES / framework
        script = script or example
        source = (folder / f"{script}.py").read_text()
        config_map = {"metadata": {"name": script}, "data": {f"{script}.py": source}}
        await self.client.create(CONFIG_MAPS, config_map, NAMESPACE)
        job: RunningExample | None = None
        for manifest in _read(folder / f"{example}.yaml"):
            resource = await self.resource(manifest)
            if manifest["kind"].endswith("Job"):
                job = RunningExample(self, resource, manifest["metadata"]["name"])
                if together:
                    manifest["metadata"]["annotations"] = {RESTART_ANNOTATION: "gang"}
                for container in _containers(manifest) if more else ():
                    container["command"] += more
            await self.client.create(resource, manifest, NAMESPACE)
        assert job is not None, f"{example}.yaml holds no job"
        return job

    async def resource(self, manifest: Manifest) -> Resource[Manifest]:
        """The resource of the kind of ``manifest``, once the API server serves it."""
        group, _, version = manifest["apiVersion"].rpartition("/")
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"

        async def plural() -> str:
            with contextlib.suppress(NotFound):  # our kinds are served a little later
                for entry in (await self.client.request_json("GET", path))["resources"]:
                    if entry["kind"] == manifest["kind"] and "/" not in entry["name"]:
                        return str(entry["name"])
            return ""

        return Resource(dict, group, version, await until(plural), manifest["kind"])


@dataclass(frozen=True)
class RunningExample:
    """The job of a started example."""

    training: Training
    resource: Resource[Manifest]
    name: str

    async def read(self) -> Manifest:
        """The current state of the job."""
        return await self.training.client.get(self.resource, self.name, NAMESPACE)

    async def succeeds(self, patience_s: float = PATIENCE_S) -> Manifest:
        """Wait until the job succeeds; return its state.

        Raises:
            AssertionError: it failed or takes too long; with status, events and logs.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not end_of(await self.read()):
                    await asyncio.sleep(POLLED_EVERY_S)
        job = await self.read()
        assert end_of(job) == "Succeeded", await self._diagnosis(job)
        return job

    async def log(self, replica: str, *, previous: bool = False) -> str:
        """The log of a replica, such as ``worker-0``."""
        return await self._log(f"{self.name}-{replica}", previous=previous)

    async def number(self, replica: str, pattern: str) -> float:
        """The number that a replica has printed, which is the group of a pattern.

        Raises:
            AssertionError: the log does not contain it.
        """
        output = await self.log(replica)
        found = re.search(pattern, output, re.MULTILINE)
        assert found is not None, output
        return float(found.group(1))

    async def says(
        self, replica: str, text: str, patience_s: float = PATIENCE_S, *, outlives: bool = False
    ) -> None:
        """Wait until a replica, one that ``outlives`` the job or not, has written ``text``.

        Raises:
            AssertionError: the job ended before, or it takes too long.
        """
        try:
            async with asyncio.timeout(patience_s):
                while text not in await self.log(replica):
                    job = await self.read()
                    assert outlives or not end_of(job), await self._diagnosis(job)
                    await asyncio.sleep(POLLED_EVERY_S)
        except TimeoutError:
            diagnosis = await self._diagnosis(await self.read())
            raise AssertionError(f"{replica} has not written {text!r}\n{diagnosis}") from None

    async def runs_only(self, replicas: set[str], patience_s: float = 60.0) -> None:
        """Wait until only pods of ``replicas`` are running.

        Raises:
            AssertionError: it takes too long; the message names those that run.
        """
        running: set[str] = set()
        try:
            async with asyncio.timeout(patience_s):
                while (running := await self._running()) != replicas:
                    await asyncio.sleep(POLLED_EVERY_S)
        except TimeoutError:
            raise AssertionError(f"still running: {sorted(running)}") from None

    async def _running(self) -> set[str]:
        pods = await self.training.client.list(PODS, NAMESPACE)
        return {
            pod.metadata.name.removeprefix(f"{self.name}-")
            for pod in pods.items
            if pod.status.phase not in {"Succeeded", "Failed"}
        }

    def kill(self, replica: str) -> None:
        """Send SIGKILL to the training process of a replica, as the OOM killer does."""
        process = self.training.cluster.process
        assert process is not None
        mark = f"HOSTNAME={self.name}-{replica}".encode()
        killed = False
        for pid in _descendants(process.pid):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if command[0].endswith(b"python") and mark in environment:
                    os.kill(pid, signal.SIGKILL)
                    killed = True
        assert killed, f"{replica} has no process"

    async def _log(self, pod: str, *, previous: bool = False) -> str:
        lines = []
        with contextlib.suppress(ApiError):  # the container has not started yet, or the pod is new
            async for line in self.training.client.logs(pod, NAMESPACE, previous=previous):
                lines.append(line.decode(errors="replace"))
        return "\n".join(lines)

    async def _diagnosis(self, job: Manifest) -> str:
        """Information for the diagnosis of a failed training."""
        client = self.training.client
        parts = [yaml.safe_dump(job.get("status")), self.training.cluster.said()]
        events = await client.list(EVENTS, NAMESPACE)
        parts += [f"{event.involved_object.name}: {event.message}" for event in events.items]
        for pod in (await client.list(PODS, NAMESPACE)).items:
            name = pod.metadata.name
            lines = (await self._log(name)).splitlines()[-LAST_LINES:]
            parts.append(f"--- {name} {pod.status.phase}:\n" + "\n".join(lines))
        return "\n".join([f"{self.name} ended as {end_of(job) or 'nothing yet'}", *parts])


def _read(path: Path) -> list[Manifest]:
    """The objects of a manifest, without sharing between anchors."""
    return [json.loads(json.dumps(each)) for each in yaml.safe_load_all(path.read_text())]


def _containers(part: Any) -> Iterator[Manifest]:
    """Every container of the templates below ``part``, for any names of roles."""
    if isinstance(part, dict):
        yield from part.get("containers", [])
    for below in part.values() if isinstance(part, dict) else part:
        if isinstance(below, dict | list):
            yield from _containers(below)


def _descendants(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            for child in (thread / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


@contextlib.asynccontextmanager
async def training_cluster(image_map: Path, home: Path) -> AsyncIterator[Training]:
    """A new cluster of two nodes with simulated processors; the examples request few."""
    size = ("--nodes", "2", "--cpus", "4", "--memory", "8Gi")
    async with (
        embedded(home, *size, "--image-map", str(image_map)) as cluster,
        cluster.client() as client,
    ):
        yield Training(cluster, client)
