"""Pods as far as lists of jobs look at them: of thousands, what nobody reads is not decoded.

The fields are those of ``gangline.api.pod``, fewer of them.
"""

from datetime import datetime

import msgspec

from gangline.api.describe import ResourceList
from gangline.api.job_resources import PODS
from gangline.api.meta import OwnerReference, Wire
from gangline.api.resource import Resource


class ListedMeta(Wire):
    """Which pod it is, and whose."""

    name: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages the pod, if one does."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class ListedRequirements(Wire):
    """What is asked for."""

    requests: ResourceList = msgspec.field(default_factory=dict)
    limits: ResourceList = msgspec.field(default_factory=dict)


class ListedContainer(Wire):
    """A container, as far as its resources go."""

    resources: ListedRequirements = ListedRequirements()
    restart_policy: str = ""


class ListedSpec(Wire):
    """What a pod asks for, and its node."""

    containers: tuple[ListedContainer, ...] = ()
    init_containers: tuple[ListedContainer, ...] = ()
    node_name: str = ""
    overhead: ResourceList = msgspec.field(default_factory=dict)
    resources: ListedRequirements | None = None


class ListedCondition(Wire):
    """One aspect of how a pod is."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class ListedWaiting(Wire):
    """Why a container does not run yet."""

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


class ListedState(Wire):
    """How a container is."""

    waiting: ListedWaiting | None = None
    running: ListedRunning | None = None
    terminated: ListedTerminated | None = None


class ListedContainerStatus(Wire):
    """What became of a container."""

    state: ListedState = ListedState()
    restart_count: int = 0
    started: bool | None = None


class ListedStatus(Wire):
    """What became of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[ListedCondition, ...] = ()
    host_ip: str = msgspec.field(name="hostIP", default="")
    pod_ip: str = msgspec.field(name="podIP", default="")
    init_container_statuses: tuple[ListedContainerStatus, ...] = ()
    container_statuses: tuple[ListedContainerStatus, ...] = ()


class ListedPod(Wire):
    """A pod."""

    metadata: ListedMeta = ListedMeta()
    spec: ListedSpec = ListedSpec()
    status: ListedStatus = ListedStatus()


LISTED_PODS: Resource[ListedPod] = Resource(
    ListedPod, PODS.group, PODS.version, PODS.plural, PODS.kind
)
