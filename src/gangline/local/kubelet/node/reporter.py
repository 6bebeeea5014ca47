"""Reports a node to the API server: registration, lease and status."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from gangline.api.core.core import Lease
from gangline.api.core.node import Node
from gangline.api.meta.objects import ObjectMeta
from gangline.api.resources import LEASES, NODES
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import AlreadyExists, ApiError, NotFound
from gangline.local.kubelet.node.status import (
    build_node,
    build_node_status,
    is_status_outdated,
    lease_patch,
    node_annotations,
    node_labels,
    node_status_patch,
    withdrawn_resources,
)
from gangline.local.kubelet.settings import KubeletSettings, VirtualNodeSpec

log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
_RETRY_S = 1.0


@dataclass(slots=True)
class NodeStatusReporter:
    """Registers one node and renews its lease and status."""

    client: ApiClient
    node: VirtualNodeSpec
    settings: KubeletSettings
    limitations: str
    """The limitations of this machine, for the message of the Ready condition."""

    known_node: Callable[[], Node | None] = lambda: None
    """Returns the node as last observed; None if it is not observed."""

    async def register(self) -> Node:
        """Create the Node object, or adopt the existing one; returns after it is stored."""
        while True:
            try:
                stored = await self._create_or_adopt()
                await self.renew()
                return stored
            except ApiError as error:
                log.warning("node not registered yet: %s", error, extra={"node": self.node.name})
                await asyncio.sleep(_RETRY_S)

    async def run(self) -> None:
        """Renew lease and status until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._every(self.settings.heartbeat_s, self.renew))
            tasks.create_task(self._every(self.settings.node_status_s, self._write_status))
            tasks.create_task(self._every(self.settings.heartbeat_s, self._follow_capacity))

    async def renew(self) -> None:
        """Renew the lease once.

        Raises:
            ApiError: it was not renewed.
        """
        name, patch = self.node.name, lease_patch(self.node.name, datetime.now(UTC))
        try:
            await self.client.patch(LEASES, name, patch, LEASE_NAMESPACE)
        except NotFound:
            meta = ObjectMeta(name=name, namespace=LEASE_NAMESPACE)
            lease = Lease(api_version=LEASES.api_version, kind=LEASES.kind, metadata=meta)
            await self.client.create(LEASES, lease, LEASE_NAMESPACE)
            await self.client.patch(LEASES, name, patch, LEASE_NAMESPACE)

    async def _every(self, period_s: float, report: Callable[[], Awaitable[object]]) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                await report()
            except NotFound:
                # The Node object was deleted although the node runs: register it again.
                await self.register()
            except ApiError as error:
                log.debug("heartbeat not sent: %s", error, extra={"node": self.node.name})

    async def _create_or_adopt(self) -> Node:
        try:
            await self.client.create(NODES, build_node(self.node))
            return await self._write_status()
        except AlreadyExists:
            stored = await self.client.get(NODES, self.node.name)
        # The status comes first: the annotation shows which resources an earlier kubelet provided.
        await self._write_status(withdrawn_resources(self.node, stored))
        meta = {"labels": node_labels(self.node), "annotations": node_annotations(self.node)}
        return await self.client.patch(NODES, self.node.name, {"metadata": meta})

    async def _follow_capacity(self) -> None:
        """Make a resource allocatable whose capacity a user has patched, as Kubernetes does."""
        known = self.known_node()
        if known is not None and is_status_outdated(self.node, known):
            await self._write_status()

    async def _write_status(self, withdrawn: Collection[str] = ()) -> Node:
        stored = await self.client.get(NODES, self.node.name)
        now = datetime.now(UTC)
        status = build_node_status(
            self.node, self.settings.port, stored.status, self.limitations, now, withdrawn
        )
        return await self.client.patch(
            NODES,
            self.node.name,
            node_status_patch(status, stored.status),
            kind=PatchKind.STRATEGIC,
            subresource="status",
        )
