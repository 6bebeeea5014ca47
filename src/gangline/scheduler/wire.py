"""Lean msgspec structs for the watches: only what a scheduling decision depends on is decoded.

``gangline.api`` has the complete types for writers. There may be very many pods and nodes, so
everything else is skipped while decoding.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import ClassVar

import msgspec

from gangline.api.core.affinity import (
    NodeSelector,
    PodAffinity,
    PreferredSchedulingTerm,
    Toleration,
    TopologySpreadConstraint,
)
from gangline.api.meta.field_doc import ResourceList
from gangline.api.meta.objects import (
    Condition,
    LabelSelector,
    Object,
    ObjectMeta,
    OwnerReference,
    Wire,
)
from gangline.api.meta.resource import Resource
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import largest_quantities
from gangline.api.resources import PODS
from gangline.api.volcano.scheduling import (
    GROUP_MIN_MEMBER_ANNOTATION,
    GROUP_MIN_RESOURCES_ANNOTATION,
    GROUP_NAME_ANNOTATION,
    QUEUE_NAME_ANNOTATION,
    VOLCANO_GROUP_NAME_ANNOTATION,
)


class LeanResources(Wire):
    requests: ResourceList = {}
    limits: ResourceList = {}


class LeanPort(Wire):
    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = ""


class LeanContainer(Wire):
    name: str = ""
    resources: LeanResources = LeanResources()
    ports: list[LeanPort] = []
    restart_policy: str = ""


class ImagedContainer(LeanContainer):
    """A container with its image, for image locality."""

    image: str = ""


class LeanNodeAffinity(Wire):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredSchedulingTerm] = []


class LeanAffinity(Wire):
    node_affinity: LeanNodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class LeanGate(Wire):
    name: str = ""


class LeanClaimVolume(Wire):
    claim_name: str = ""


class LeanEphemeral(Wire):
    """A generic ephemeral volume: its claim is created with the pod."""


class LeanVolume(Wire):
    name: str = ""
    persistent_volume_claim: LeanClaimVolume | None = None
    ephemeral: LeanEphemeral | None = None

    @property
    def needs_claim(self) -> bool:
        return self.persistent_volume_claim is not None or self.ephemeral is not None


class LeanResourceClaim(Wire):
    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class LeanResourceClaimStatus(Wire):
    """The claim that was created for a pod from a template; none may be needed."""

    name: str = ""
    resource_claim_name: str = ""


class LeanSchedulingGroup(Wire):
    pod_group_name: str = ""


class LeanPodSpec(Wire):
    containers: Sequence[LeanContainer] = []
    init_containers: Sequence[LeanContainer] = []
    overhead: ResourceList = {}
    resources: LeanResources | None = None
    node_selector: dict[str, str] = {}
    node_name: str = ""
    affinity: LeanAffinity | None = None
    tolerations: list[Toleration] = []
    topology_spread_constraints: list[TopologySpreadConstraint] = []
    scheduler_name: str = ""
    scheduling_gates: list[LeanGate] = []
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str = ""
    active_deadline_seconds: int | None = None
    volumes: list[LeanVolume] = []
    resource_claims: list[LeanResourceClaim] = []
    scheduling_group: LeanSchedulingGroup | None = None


class ImagedPodSpec(LeanPodSpec):
    """A pod spec with images, for image locality."""

    containers: Sequence[ImagedContainer] = []
    init_containers: Sequence[ImagedContainer] = []


class LeanContainerStatus(Wire):
    name: str = ""
    resources: LeanResources | None = None
    allocated_resources: ResourceList | None = None


class LeanPodStatus(Wire):
    phase: str = ""
    start_time: datetime | None = None
    conditions: list[Condition] = []
    nominated_node_name: str = ""
    resource_claim_statuses: list[LeanResourceClaimStatus] = []
    container_statuses: tuple[LeanContainerStatus, ...] = ()
    """This and what follows is not kept in memory."""
    init_container_statuses: tuple[LeanContainerStatus, ...] = ()
    resources: LeanResources | None = None
    allocated_resources: ResourceList | None = None
    SELDOM_READ: ClassVar = frozenset(
        {"container_statuses", "init_container_statuses", "resources", "allocated_resources"}
    )


class LeanPod(Object):
    spec: LeanPodSpec = LeanPodSpec()
    status: LeanPodStatus = LeanPodStatus()

    @property
    def needs_all_fields(self) -> bool:
        """True if the pod may be resized in place: its specification was changed, or a condition
        says so.
        """
        return self.metadata.generation > 1 or any(
            [condition.type.startswith(_RESIZE) for condition in self.status.conditions]
        )


class ImagedPod(LeanPod):
    """A pod with images, for image locality."""

    spec: ImagedPodSpec = ImagedPodSpec()


class CSINodeAllocatable(Wire):
    count: int | None = None


class CSINodeDriver(Wire):
    name: str = ""
    allocatable: CSINodeAllocatable | None = None


class CSINodeSpec(Wire):
    drivers: list[CSINodeDriver] = []


class CSINode(Object):
    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(Wire):
    storage_capacity: bool | None = None


class CSIDriver(Object):
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Object):
    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None


_STORAGE = "storage.k8s.io"
_CAPACITIES = "csistoragecapacities"
CSI_DRIVERS = Resource(CSIDriver, _STORAGE, "v1", "csidrivers", "CSIDriver", namespaced=False)
STORAGE_CAPACITIES = Resource(CSIStorageCapacity, _STORAGE, "v1", _CAPACITIES, "CSIStorageCapacity")
BETA_STORAGE_CAPACITIES = Resource(
    CSIStorageCapacity, _STORAGE, "v1beta1", _CAPACITIES, "CSIStorageCapacity"
)
"""Served until Kubernetes 1.26."""
CSI_NODES = Resource(CSINode, "storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False)
LEAN_PODS = Resource(LeanPod, PODS.group, PODS.version, PODS.plural, PODS.kind)
IMAGED_PODS: Resource[LeanPod] = Resource(
    ImagedPod, PODS.group, PODS.version, PODS.plural, PODS.kind
)
"""The same pods, decoded with their images."""

ROLE_KEY = "volcano.sh/task-spec"
"""Annotation, or else label, of a pod: its role in the gang."""
AFFINITY_KEY = "volcano.sh/task-topology-affinity"
"""Annotation of a group: roles that prefer to share nodes, such as ``ps,worker``."""
ANTI_AFFINITY_KEY = "volcano.sh/task-topology-anti-affinity"
"""Annotation of a group: roles that prefer not to share nodes, such as ``ps``."""
NODE_GROUP_KEY = "volcano.sh/nodegroup-name"
"""Label of a node: its node group, which queues may require or prefer."""
PREEMPTABLE_KEY = "volcano.sh/preemptable"
"""Annotation, or else label, of a pod or a group: ``false`` protects it from eviction."""
IMPLIED_GROUP_ANNOTATIONS = frozenset(
    (QUEUE_NAME_ANNOTATION, GROUP_MIN_MEMBER_ANNOTATION, GROUP_MIN_RESOURCES_ANNOTATION)
)
"""Annotations of a pod that describe its gang."""
_KEPT_ANNOTATIONS = IMPLIED_GROUP_ANNOTATIONS | {
    GROUP_NAME_ANNOTATION,
    VOLCANO_GROUP_NAME_ANNOTATION,
    ROLE_KEY,
    PREEMPTABLE_KEY,
}
_RESIZE = "PodResize"
_RESIZE_PENDING = "PodResizePending"
_KEPT_CONDITIONS = frozenset({"PodScheduled"})
_JOB_OWNERS = [OwnerReference(api_version="batch/v1", kind="Job", controller=True)]
"""Kept instead of the owners of a pod that a Job controls: one list for all pods."""
_NO_OWNERS: list[OwnerReference] = []
_NO_FINALIZERS: list[str] = []


def belongs_to_job(metadata: ObjectMeta) -> bool:
    """Return whether a Job of Kubernetes controls the pod."""
    return bool(metadata.owner_references) and any(
        owner.controller and owner.kind == "Job" and owner.api_version.startswith("batch/")
        for owner in metadata.owner_references
    )


def slim_pod(pod: LeanPod) -> LeanPod:
    """Drop decoded fields that are not needed in memory.

    Requests of a pod that is resized are replaced by those that count meanwhile.
    """
    replace = msgspec.structs.replace
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    if pod.needs_all_fields:
        with suppress(QuantityError):  # pod_info reports one of the specification
            spec = _counted_spec(spec, status)
    if metadata.owner_references or metadata.finalizers or metadata.annotations:
        annotations = _select_keys(metadata.annotations, _KEPT_ANNOTATIONS)
        owners = _JOB_OWNERS if belongs_to_job(metadata) else _NO_OWNERS
        if not IMPLIED_GROUP_ANNOTATIONS.isdisjoint(annotations):
            # The gang is named after the owner.
            owners = [owner for owner in metadata.owner_references if owner.controller]
        metadata = replace(
            metadata, annotations=annotations, owner_references=owners, finalizers=_NO_FINALIZERS
        )
    if spec.volumes:
        spec = replace(spec, volumes=[volume for volume in spec.volumes if volume.needs_claim])
    conditions = [kept for kept in status.conditions if kept.type in _KEPT_CONDITIONS]
    status = LeanPodStatus(
        status.phase,
        status.start_time,
        conditions,
        status.nominated_node_name,
        status.resource_claim_statuses,
    )
    return replace(pod, metadata=metadata, spec=spec, status=status)


def _counted_spec(spec: LeanPodSpec, status: LeanPodStatus) -> LeanPodSpec:
    """Return a spec with the requests that count while the pod is resized, as in kube-scheduler.

    These are the largest of what is requested, allocated by the node, and in effect. A resize that
    the node can never do does not count.
    """
    pending = [condition for condition in status.conditions if condition.type == _RESIZE_PENDING]
    is_infeasible = bool(pending) and pending[0].reason == "Infeasible"
    observed = {
        one.name: one for one in (*status.init_container_statuses, *status.container_statuses)
    }

    def counted(
        desired: LeanResources, actual: LeanContainerStatus | LeanPodStatus | None
    ) -> LeanResources:
        if actual is None or actual.resources is None:
            return desired
        requests = (actual.resources.requests, actual.allocated_resources or {})
        wanted = {} if is_infeasible else {**desired.limits, **desired.requests}
        return LeanResources(largest_quantities((wanted, *requests)))

    def resized(containers: Sequence[LeanContainer], *, sidecars: bool) -> list[LeanContainer]:
        return [
            container
            if sidecars and container.restart_policy != "Always"
            else msgspec.structs.replace(
                container, resources=counted(container.resources, observed.get(container.name))
            )
            for container in containers
        ]

    return msgspec.structs.replace(
        spec,
        containers=resized(spec.containers, sidecars=False),
        init_containers=resized(spec.init_containers, sidecars=True),
        resources=spec.resources and counted(spec.resources, status),
    )


def _select_keys(entries: dict[str, str], keys: frozenset[str]) -> dict[str, str]:
    return {key: value for key, value in entries.items() if key in keys}
