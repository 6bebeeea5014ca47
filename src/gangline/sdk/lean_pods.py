"""Pods with only the fields that job lists read, so that other fields are not decoded.

The fields are a subset of those of ``gangline.api.core.pod``.
"""

from datetime import datetime

import msgspec

from gangline.api.job_resources import PODS
from gangline.api.meta.field_doc import ResourceList
from gangline.api.meta.objects import OwnerReference, Wire
from gangline.api.meta.resource import Resource


class ListedMeta(Wire):
    """Name, labels and owners of a pod."""

    name: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages the pod; None without one."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class ListedRequirements(Wire):
    """Requests and limits."""

    requests: ResourceList = msgspec.field(default_factory=dict)
    limits: ResourceList = msgspec.field(default_factory=dict)


class ListedContainer(Wire):
    """Name and resources of a container."""

    name: str = ""
    resources: ListedRequirements = ListedRequirements()
    restart_policy: str = ""


class ListedSpec(Wire):
    """Requests, node and scheduler of a pod."""

    containers: tuple[ListedContainer, ...] = ()
    init_containers: tuple[ListedContainer, ...] = ()
    node_name: str = ""
    overhead: ResourceList = msgspec.field(default_factory=dict)
    resources: ListedRequirements | None = None
    scheduler_name: str = ""


class ListedCondition(Wire):
    """A condition of a pod."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class ListedWaiting(Wire):
    """Why a container has not started."""

    reason: str = ""
    message: str = ""


class ListedRunning(Wire):
    """A container runs."""


class ListedTerminated(Wire):
    """How a container ended."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None


class ListedState(Wire):
    """State of a container."""

    waiting: ListedWaiting | None = None
    running: ListedRunning | None = None
    terminated: ListedTerminated | None = None


class ListedContainerStatus(Wire):
    """Status of a container."""

    name: str = ""
    state: ListedState = ListedState()
    last_state: ListedState = ListedState()
    restart_count: int = 0
    started: bool | None = None


class ListedStatus(Wire):
    """Status of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[ListedCondition, ...] = ()
    host_ip: str = msgspec.field(name="hostIP", default="")
    pod_ip: str = msgspec.field(name="podIP", default="")
    init_container_statuses: tuple[ListedContainerStatus, ...] = ()
    container_statuses: tuple[ListedContainerStatus, ...] = ()


class ListedPod(Wire):
    """A pod with the fields that lists read."""

    metadata: ListedMeta = ListedMeta()
    spec: ListedSpec = ListedSpec()
    status: ListedStatus = ListedStatus()


LISTED_PODS: Resource[ListedPod] = Resource(
    ListedPod, PODS.group, PODS.version, PODS.plural, PODS.kind
)
