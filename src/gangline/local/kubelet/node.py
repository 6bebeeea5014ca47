"""The Node object of a virtual node, and its reporter: registration, lease and status."""

import asyncio
import logging
import platform
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from gangline.api.core.core import Lease
from gangline.api.core.node import (
    DaemonEndpoint,
    Node,
    NodeAddress,
    NodeDaemonEndpoints,
    NodeStatus,
    NodeSystemInfo,
)
from gangline.api.meta.conditions import FALSE, TRUE, set_condition
from gangline.api.meta.objects import Condition, ObjectMeta
from gangline.api.resource_list import (
    CPU,
    EPHEMERAL_STORAGE,
    GPU,
    MEMORY,
    PODS,
    ResourceAmounts,
    format_resources,
)
from gangline.api.resources import LEASES, NODES
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import AlreadyExists, ApiError, NotFound
from gangline.local import KUBERNETES_VERSION
from gangline.local.kubelet.settings import KubeletSettings, VirtualNodeSpec

log = logging.getLogger(__name__)

RESOURCES_ANNOTATION = "gangline.dev/resources"
"""Node annotation: the extended resources that the kubelet provides, separated by commas."""

STORAGE_BYTES = 100 << 30
STATUS_PERIOD_S = 60.0
"""Seconds between writes of the node's status without a change (Kubernetes: 5 min)."""

_HEALTHY = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


def node_allocatable(node: VirtualNodeSpec) -> ResourceAmounts:
    amounts = {
        CPU: node.cpu_milli,
        MEMORY: node.memory_bytes,
        EPHEMERAL_STORAGE: STORAGE_BYTES,
        PODS: node.pods,
    }
    return amounts | node_extended_resources(node)


def node_extended_resources(node: VirtualNodeSpec) -> ResourceAmounts:
    return ({GPU: len(node.gpus)} if node.gpus else {}) | dict(node.resources)


def withdrawn_resources(node: VirtualNodeSpec, stored: Node) -> frozenset[str]:
    """The extended resources that an earlier kubelet of the node provided and this one does not.

    Other resources in the node's status were added by users, and stay.
    """
    before = set(stored.metadata.annotations.get(RESOURCES_ANNOTATION, "").split(","))
    return frozenset(before - node_allocatable(node).keys() - {""})


def node_annotations(node: VirtualNodeSpec) -> dict[str, str]:
    return {RESOURCES_ANNOTATION: ",".join(sorted(node_extended_resources(node)))}


def is_status_outdated(node: VirtualNodeSpec, stored: Node) -> bool:
    """Return whether users changed the capacity so that the allocatable resources must follow."""
    own = node_allocatable(node)
    amounts = [
        {name: value for name, value in resources.items() if name not in own}
        for resources in (stored.status.capacity, stored.status.allocatable)
    ]
    return amounts[0] != amounts[1]


def node_labels(node: VirtualNodeSpec) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _architecture(),
        **node.labels,
    }


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def build_node(node: VirtualNodeSpec) -> Node:
    meta = ObjectMeta(name=node.name, labels=node_labels(node), annotations=node_annotations(node))
    return Node(api_version="v1", kind="Node", metadata=meta)


def build_node_status(
    node: VirtualNodeSpec,
    port: int,
    before: NodeStatus,
    limitations: str,
    now: datetime,
    withdrawn: Collection[str] = (),
) -> NodeStatus:
    """The status of a node. The stored status ``before`` preserves transition times, and resources
    that users added.
    """
    added = {name: value for name, value in before.capacity.items() if name not in withdrawn}
    have = {**added, **format_resources(node_allocatable(node))}
    now = now.replace(microsecond=0)
    conditions = before.conditions
    for condition in _conditions(limitations):
        conditions = set_condition(conditions, condition, now)
    conditions = [
        msgspec.structs.replace(condition, last_heartbeat_time=now) for condition in conditions
    ]
    return NodeStatus(
        capacity=have,
        allocatable=have,
        conditions=conditions,
        addresses=[NodeAddress("InternalIP", node.address), NodeAddress("Hostname", node.name)],
        daemon_endpoints=NodeDaemonEndpoints(DaemonEndpoint(port) if port else None),
        node_info=_system_info(node.name),
    )


def node_status_patch(status: NodeStatus, before: NodeStatus) -> dict[str, Any]:
    """A strategic merge patch that writes a node's status and nulls resources that it no longer
    has.
    """
    wire: dict[str, Any] = msgspec.to_builtins(status)
    for name in ("capacity", "allocatable"):
        lost = getattr(before, name).keys() - getattr(status, name).keys()
        wire[name] |= dict.fromkeys(lost)
    return {"status": wire}


def lease_patch(node: str, now: datetime) -> dict[str, Any]:
    renewed = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": renewed}}


def _conditions(gaps: str) -> list[Condition]:
    healthy = [
        Condition(type=name, status=FALSE, reason=reason, message=message)
        for name, (reason, message) in _HEALTHY.items()
    ]
    message = "kubelet is posting ready status" + (f"; {gaps}" if gaps else "")
    return [*healthy, Condition(type="Ready", status=TRUE, reason="KubeletReady", message=message)]


@cache
def _system_info(name: str) -> NodeSystemInfo:
    release: Mapping[str, str] = {}
    with suppress(OSError):
        release = platform.freedesktop_os_release()
    # Small containers have no machine id, but the field must not be empty.
    name_id = uuid.uuid5(uuid.NAMESPACE_DNS, platform.node() or "localhost").hex
    machine_id = _first_line("/etc/machine-id") or name_id
    own_version = version("gangline")
    kubelet = f"v{KUBERNETES_VERSION}-gangline.{own_version}"
    return NodeSystemInfo(
        machine_id=machine_id,
        system_uuid=f"{machine_id}-{name}",
        boot_id=_first_line("/proc/sys/kernel/random/boot_id") or machine_id,
        kernel_version=platform.release(),
        os_image=release.get("PRETTY_NAME", "Linux"),
        container_runtime_version=f"gangline://{own_version}",
        kubelet_version=kubelet,
        kube_proxy_version=kubelet,
        operating_system="linux",
        architecture=_architecture(),
    )


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


LEASE_NAMESPACE = "kube-node-lease"
_RETRY_S = 1.0


@dataclass(slots=True)
class NodeStatusReporter:
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
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._every(self.settings.heartbeat_s, self.renew))
            tasks.create_task(self._every(STATUS_PERIOD_S, self._write_status))
            tasks.create_task(self._every(self.settings.heartbeat_s, self._follow_capacity))

    async def renew(self) -> None:
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
        stored = self.known_node()
        if stored is not None and is_status_outdated(self.node, stored):
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
