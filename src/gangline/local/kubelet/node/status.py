"""The Node object of a virtual node: resources, addresses and conditions."""

import platform
import uuid
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

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
from gangline.local.kubelet.settings import VirtualNodeSpec

RESOURCES_ANNOTATION = "gangline.dev/resources"
"""Node annotation: the extended resources that the kubelet provides, separated by commas."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_HEALTHY = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


def node_allocatable(node: VirtualNodeSpec) -> ResourceAmounts:
    """The resources of a node for pods, in thousandths of cpu and integer units."""
    amounts = {
        CPU: node.cpu_milli,
        MEMORY: node.memory_bytes,
        EPHEMERAL_STORAGE: node.storage_bytes,
        PODS: node.pods,
    }
    return amounts | node_extended_resources(node)


def node_extended_resources(node: VirtualNodeSpec) -> ResourceAmounts:
    """The extended resources that the kubelet itself provides."""
    return ({GPU: len(node.gpus)} if node.gpus else {}) | dict(node.resources)


def withdrawn_resources(node: VirtualNodeSpec, stored: Node) -> frozenset[str]:
    """The extended resources that an earlier kubelet of the node provided and this one does not.

    Other resources in the node's status were added by users, and stay. Nodes of releases without
    the annotation had only resources of the kubelet.
    """
    listed = stored.metadata.annotations.get(RESOURCES_ANNOTATION)
    before = set(stored.status.capacity) if listed is None else set(listed.split(","))
    return frozenset(before - node_allocatable(node).keys() - {""})


def node_annotations(node: VirtualNodeSpec) -> dict[str, str]:
    return {RESOURCES_ANNOTATION: ",".join(sorted(node_extended_resources(node)))}


def is_status_outdated(node: VirtualNodeSpec, known: Node) -> bool:
    """Return whether users changed the capacity so that the allocatable resources must follow."""
    own = node_allocatable(node)
    amounts = [
        {name: value for name, value in found.items() if name not in own}
        for found in (known.status.capacity, known.status.allocatable)
    ]
    return amounts[0] != amounts[1]


def node_labels(node: VirtualNodeSpec) -> dict[str, str]:
    """The labels of a node: the well-known ones, and its own."""
    machine = _ARCHITECTURES.get(platform.machine(), platform.machine())
    return {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine,
        **node.labels,
    }


def build_node(node: VirtualNodeSpec) -> Node:
    """The object for the registration of a node."""
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
    """The status of a node.

    Args:
        node: the node.
        port: the port of the kubelet server.
        before: the stored status; it preserves transition times, and resources that users added.
        limitations: what this machine does not allow.
        now: the time.
        withdrawn: resources of the stored status that the node no longer has.
    """
    added = {name: value for name, value in before.capacity.items() if name not in withdrawn}
    have = {**added, **format_resources(node_allocatable(node))}
    now = now.replace(microsecond=0)
    conditions = before.conditions
    for condition in _conditions(limitations):
        conditions = set_condition(conditions, condition, now)
    conditions = [msgspec.structs.replace(each, last_heartbeat_time=now) for each in conditions]
    return NodeStatus(
        capacity=have,
        allocatable=have,
        conditions=conditions,
        addresses=[
            NodeAddress("InternalIP", node.address),
            NodeAddress("Hostname", node.name),
        ],
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
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    machine_id = _first_line("/etc/machine-id") or _id_of_name()
    own_version = version("gangline")
    kubelet = f"v1.31.0-gangline.{own_version}"
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
        architecture=_ARCHITECTURES.get(platform.machine(), platform.machine()),
    )


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _id_of_name() -> str:
    """An id for machines without one (small containers): the field must not be empty."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, platform.node() or "localhost").hex
