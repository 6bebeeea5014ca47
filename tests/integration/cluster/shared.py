"""One embedded cluster for all tests of a worker that neither configure nor kill theirs.

After each test every object that it made is removed, in all namespaces and outside of them. A
cluster that has ended, or that cannot be emptied, is replaced before the next test.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, NotFound
from gangline.kube.http.request import Request
from gangline.local import cleanup
from integration.cluster.embedded import EmbeddedCluster, until

NODES = 2
ARGUMENTS = (
    "--nodes",
    str(NODES),
    "--cpus",
    "8",
    "--memory",
    "16Gi",
    "--gpus",
    "2",
    "--heartbeat",
    "0.5",
)
EMPTY_WITHIN_S = 30.0
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
OF_CONTROLLERS = {"leases", "endpoints", "endpointslices", "controllerrevisions"}
"""Kinds that controllers write and remove, and that no test makes on a shared cluster."""


class Kind(NamedTuple):
    """A kind of objects, by where they are listed."""

    version: str
    name: str


class SharedCluster:
    """Starts the cluster at its first use, and empties it after each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starts = 0
        self._cluster: EmbeddedCluster | None = None
        self._own: set[str] = set()

    async def ready(self) -> EmbeddedCluster:
        """The running cluster, without objects of earlier tests."""
        if self._cluster is None:
            self._starts += 1
            self._cluster = EmbeddedCluster(self._folder / f"home-{self._starts}", ARGUMENTS)
            await self._cluster.start()
            self._own = await self._settled(self._cluster)
        return self._cluster

    async def _settled(self, cluster: EmbeddedCluster) -> set[str]:
        """Paths of the cluster's own objects, once its nodes are there and it makes no more."""
        seen: set[str] = set()

        async def settled() -> bool:
            nonlocal seen
            objects = [listed for kind in kinds async for listed in _objects(client, kind)]
            before, seen = seen, {path for path, _ in objects}
            return before == seen and sum("/nodes/" in path for path in seen) == NODES

        async with cluster.client() as client:
            kinds = await _kinds(client)
            await until(settled, explain=cluster.said)
        return seen

    async def clear(self) -> None:
        """Remove what a test made; give the cluster up if that does not succeed."""
        assert self._cluster is not None
        assert self._cluster.process is not None
        try:
            async with asyncio.timeout(EMPTY_WITHIN_S), self._cluster.client() as client:
                kinds = await _kinds(client)
                while left := [kind for kind in kinds if await self._remove(client, kind)]:
                    # What is being deleted is looked at alone: a look at all kinds takes long.
                    while left := [kind for kind in left if await self._remove(client, kind)]:
                        await asyncio.sleep(0.05)
        except (TimeoutError, ApiError, OSError):
            await self.stop()

    async def _remove(self, client: ApiClient, kind: Kind) -> bool:
        """Delete each object of a kind that is not the cluster's own; whether there were any."""
        left = False
        async for path, metadata in _objects(client, kind):
            if path in self._own or metadata.get("namespace", "").startswith("kube-"):
                continue
            left = True
            owned, is_pod = "ownerReferences" in metadata, "/pods/" in path
            if is_pod or not (owned or "deletionTimestamp" in metadata):
                grace = {"gracePeriodSeconds": "0"} if is_pod else {}
                try:
                    await client.request_json("DELETE", path, params=grace)
                except NotFound:
                    continue
        return left

    async def stop(self) -> None:
        """End the cluster and remove everything of it; `ready` starts a new one."""
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        if cluster.process is not None and cluster.process.poll() is None:
            try:
                await cluster.end()
            except subprocess.TimeoutExpired:
                cluster.process.kill()
                cluster.process.wait()
        await cleanup.remove_leftovers(cluster.home.folder)


async def _kinds(client: ApiClient) -> list[Kind]:
    """The kinds whose objects can be deleted."""
    groups = (await client.request_json("GET", "/apis"))["groups"]
    listed = [version for group in groups for version in group["versions"]]
    versions = [f"/apis/{version['groupVersion']}" for version in listed]
    return [
        Kind(version, resource["name"])
        for version in ["/api/v1", *versions]
        for resource in (await client.request_json("GET", version))["resources"]
        if {"list", "delete"} <= set(resource["verbs"]) and resource["name"] not in OF_CONTROLLERS
    ]


async def _objects(client: ApiClient, kind: Kind) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Path and metadata of each object of a kind."""
    path = f"{kind.version}/{kind.name}"
    if kind.name == "customresourcedefinitions":  # they are a megabyte
        async with client.transport.receive(Request("GET", path), accept=METADATA_ONLY) as body:
            listed = msgspec.json.decode(b"".join([chunk async for chunk in body.chunks]))
    else:
        listed = await client.request_json("GET", path)
    for item in listed["items"]:
        namespace = item["metadata"].get("namespace")
        scope = f"/namespaces/{namespace}" if namespace else ""
        yield f"{kind.version}{scope}/{kind.name}/{item['metadata']['name']}", item["metadata"]
