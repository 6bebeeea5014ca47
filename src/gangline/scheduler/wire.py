"""What the scheduler reads of pods and nodes: lean structs, since there may be very many.

The full types of ``gangline.api`` describe these kinds for writers; here only what a decision
depends on is decoded, the rest is skipped on the wire.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from gangline.api.affinity import (
    NodeSelector,
    PodAffinity,
    PreferredSchedulingTerm,
    Toleration,
    TopologySpreadConstraint,
)
from gangline.api.describe import ResourceList
from gangline.api.meta import Condition, LabelSelector, Object, Wire
from gangline.api.resource import Resource
from gangline.api.resources import PODS
from gangline.api.scheduling import GROUP_NAME_ANNOTATION


class LeanResources(Wire):
    """Amounts that a container asks for."""

    requests: ResourceList = {}
    limits: ResourceList = {}


class LeanPort(Wire):
    """A port of the node that a container takes."""

    host_port: int = 0
    protocol: str = ""


class LeanContainer(Wire):
    """A container: what it asks for, and whether it is a sidecar."""

    resources: LeanResources = LeanResources()
    ports: list[LeanPort] = []
    restart_policy: str = ""


class ImagedContainer(LeanContainer):
    """A container where it counts what it is made from, too."""

    image: str = ""


class LeanNodeAffinity(Wire):
    """Nodes that a pod must or would like to go to."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredSchedulingTerm] = []


class LeanAffinity(Wire):
    """Wishes about nodes, and about other pods."""

    node_affinity: LeanNodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class LeanGate(Wire):
    """Something that a pod waits for before it may be scheduled."""

    name: str = ""


class LeanClaimVolume(Wire):
    """A volume that a claim stands for."""

    claim_name: str = ""


class LeanEphemeral(Wire):
    """A volume whose claim is made with the pod."""


class LeanVolume(Wire):
    """A volume of a pod, as far as claims are concerned."""

    name: str = ""
    persistent_volume_claim: LeanClaimVolume | None = None
    ephemeral: LeanEphemeral | None = None

    @property
    def needs_claim(self) -> bool:
        """Whether there is a claim to it."""
        return self.persistent_volume_claim is not None or self.ephemeral is not None


class LeanPodSpec(Wire):
    """What a decision about a pod depends on."""

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


class ImagedPodSpec(LeanPodSpec):
    """The same where images count."""

    containers: Sequence[ImagedContainer] = []
    init_containers: Sequence[ImagedContainer] = []


class LeanTerminated(Wire):
    """How a container ended."""

    finished_at: datetime | None = None


class LeanContainerState(Wire):
    """Where a container is in its life."""

    terminated: LeanTerminated | None = None


class LeanContainerStatus(Wire):
    """What became of a container."""

    state: LeanContainerState = LeanContainerState()


class LeanPodStatus(Wire):
    """Where a pod is in its life, and what was last said about its scheduling."""

    phase: str = ""
    start_time: datetime | None = None
    conditions: list[Condition] = []
    container_statuses: list[LeanContainerStatus] = []


class LeanPod(Object):
    """A pod as the scheduler sees it."""

    spec: LeanPodSpec = LeanPodSpec()
    status: LeanPodStatus = LeanPodStatus()


class ImagedPod(LeanPod):
    """A pod as the scheduler sees it where images count."""

    spec: ImagedPodSpec = ImagedPodSpec()


class QuotaScope(Wire):
    """A condition on the pods that a quota is for."""

    scope_name: str = ""
    operator: str = ""
    values: list[str] = []


class QuotaScopeSelector(Wire):
    """The pods that a quota is for: all conditions hold of them."""

    match_expressions: list[QuotaScope] = []


class ResourceQuotaSpec(Wire):
    """What a namespace may have at most."""

    hard: ResourceList = {}
    scopes: list[str] = []
    scope_selector: QuotaScopeSelector | None = None


class ResourceQuotaStatus(Wire):
    """What holds of it now."""

    hard: ResourceList = {}
    used: ResourceList = {}


class ResourceQuota(Object):
    """A namespace's quota, as far as pods are concerned."""

    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class CSINodeAllocatable(Wire):
    """What a driver can do on a node."""

    count: int | None = None


class CSINodeDriver(Wire):
    """A storage driver on a node."""

    name: str = ""
    allocatable: CSINodeAllocatable | None = None


class CSINodeSpec(Wire):
    """The storage drivers of a node."""

    drivers: list[CSINodeDriver] = []


class CSINode(Object):
    """What storage drivers say of a node."""

    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(Wire):
    """What a storage driver does."""

    storage_capacity: bool | None = None


class CSIDriver(Object):
    """A storage driver."""

    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Object):
    """How much a storage driver has left for volumes of a class, for some nodes."""

    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None


_STORAGE = "storage.k8s.io"
_CAPACITIES = "csistoragecapacities"
CSI_DRIVERS = Resource(CSIDriver, _STORAGE, "v1", "csidrivers", "CSIDriver", namespaced=False)
STORAGE_CAPACITIES = Resource(CSIStorageCapacity, _STORAGE, "v1", _CAPACITIES, "CSIStorageCapacity")
OLD_STORAGE_CAPACITIES = Resource(
    CSIStorageCapacity, _STORAGE, "v1beta1", _CAPACITIES, "CSIStorageCapacity"
)
"""Until Kubernetes 1.26."""
CSI_NODES = Resource(CSINode, "storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False)
RESOURCE_QUOTAS = Resource(ResourceQuota, "", "v1", "resourcequotas", "ResourceQuota")
LEAN_PODS = Resource(LeanPod, PODS.group, PODS.version, PODS.plural, PODS.kind)
IMAGED_PODS: Resource[LeanPod] = Resource(
    ImagedPod, PODS.group, PODS.version, PODS.plural, PODS.kind
)
"""The same pods, read with their images."""

ROLE_KEY = "volcano.sh/task-spec"
"""Annotation, or else label, of a pod: its role in the gang."""
AFFINITY_KEY = "volcano.sh/task-topology-affinity"
"""Annotation of a group: roles that share nodes, such as ``ps,worker``."""
ANTI_AFFINITY_KEY = "volcano.sh/task-topology-anti-affinity"
"""Annotation of a group: roles that do not, such as ``ps``."""
NODE_GROUP_KEY = "volcano.sh/nodegroup-name"
"""Label of a node: the group that it belongs to, for queues that are kept to some."""
PREEMPTABLE_KEY = "volcano.sh/preemptable"
"""Annotation, or else label, of a pod or a group: ``false`` protects it from eviction."""
_KEPT_ANNOTATIONS = frozenset({GROUP_NAME_ANNOTATION, ROLE_KEY, PREEMPTABLE_KEY})
_KEPT_CONDITIONS = frozenset({"PodScheduled"})
_ENDED = frozenset({"Succeeded", "Failed"})


def slim(pod: LeanPod) -> LeanPod:
    """Drop what was decoded and is not needed in memory; of most pods that is little or nothing."""
    replace = msgspec.structs.replace
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    if metadata.owner_references or metadata.finalizers or metadata.annotations:
        annotations = _kept(metadata.annotations, _KEPT_ANNOTATIONS)
        metadata = replace(metadata, annotations=annotations, owner_references=[], finalizers=[])
    if spec.volumes:
        spec = replace(spec, volumes=[volume for volume in spec.volumes if volume.needs_claim])
    if status.conditions or status.container_statuses:
        conditions = [kept for kept in status.conditions if kept.type in _KEPT_CONDITIONS]
        ended = status.container_statuses if status.phase in _ENDED else []
        status = replace(status, conditions=conditions, container_statuses=ended)
    return replace(pod, metadata=metadata, spec=spec, status=status)


def _kept(entries: dict[str, str], keys: frozenset[str]) -> dict[str, str]:
    return {key: value for key, value in entries.items() if key in keys}
