"""What the engine observes and what it plans: plain values.

``ObservedJob`` is everything that a plan may depend on, besides the clock and the settings.
``ReconcilePlan`` is everything to write, in this order: deletions, patches, creations, then one
status write, then events about the new status.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TypeAlias

from gangline.api.cluster.workload import KubernetesPodGroup
from gangline.api.jobs.kubeflow import JobStatus, ValidSpec
from gangline.api.meta.objects import Object
from gangline.api.volcano.scheduling import PodGroup
from gangline.operator.model.job import Manifest, NormalizedJob
from gangline.operator.model.replicas import ObservedPod, ObservedService

AnyPodGroup: TypeAlias = PodGroup | KubernetesPodGroup

RANDOM_VALUE = "gangline.dev/random"
"""Placeholder for a secret value: it becomes 32 random bytes, in hexadecimal, on creation.

Plans stay deterministic, and the value never changes after the Secret is created.
"""
SSH_PRIVATE_KEY = "gangline.dev/ssh-private-key"
SSH_PUBLIC_KEY = "gangline.dev/ssh-public-key"
"""Placeholders for the two keys of a new pair: PEM, and the form of ``authorized_keys``."""


class TargetKind(StrEnum):
    """The kinds of objects that the engine writes for a job."""

    POD = "Pod"
    SERVICE = "Service"
    POD_GROUP = "PodGroup"
    JOB = "Job"
    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"
    SERVICE_ACCOUNT = "ServiceAccount"
    ROLE = "Role"
    ROLE_BINDING = "RoleBinding"
    AUTOSCALER = "HorizontalPodAutoscaler"
    CLAIM = "PersistentVolumeClaim"


UNWATCHED = frozenset({TargetKind.SECRET})
"""Kinds that the operator creates and has no right to read, so that it cannot read users' Secrets.

The names of such objects contain the job's uid, so an existing one is the job's own. They are
created before each pod that may need them, and deleted with the job.
"""


class OwnedObject(Object):
    """An object that a job owns besides pods, services and pod group; its content is not read."""

    kind: str = ""

    @property
    def target(self) -> TargetKind:
        return TargetKind(self.kind)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The administrator's settings that apply to all jobs."""

    gang_scheduling: bool = True
    """True if the cluster has pod groups and jobs get one."""
    kubernetes_groups: bool = False
    """True if these are Kubernetes' own, which a pod names in ``spec.schedulingGroup``."""
    scheduler_name: str = "gangline"
    """Scheduler of pods in a gang whose template names none. Empty: the template is not changed."""
    force_delete_after: timedelta = timedelta(seconds=10)
    """Time after its grace period at which a pod on a lost node is deleted by force."""
    progress_url: str = ""
    """The address to which pods report their progress, without a path; empty if they cannot."""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """The observed state of one job and its objects."""

    job: NormalizedJob
    status: JobStatus
    pods: Sequence[ObservedPod] = ()
    """Pods whose controller has the uid of the job."""
    services: Sequence[ObservedService] = ()
    """Services whose controller has the uid of the job."""
    pod_group: AnyPodGroup | None = None
    owned_objects: Sequence[OwnedObject] = ()
    """The other objects that the job owns."""
    occupied: frozenset[tuple[TargetKind, str]] = frozenset()
    """Names of existing objects that belong to another owner, such as a deleted job."""
    lost_nodes: frozenset[str] = frozenset()
    """Nodes that were deleted or do not report."""
    disrupted: Sequence[ObservedPod] = ()
    """Pods that the cluster deleted, by preemption or drain, and whose successors do not run."""
    spec_errors: str = ""
    """The errors in the specification; empty if it is valid."""
    has_earlier_spec: bool = False
    """True if the specification is invalid and ``job`` is made from an earlier one."""
    last_valid_spec: ValidSpec | None = None
    """The record of the specification that ``job`` is made from; None if it is not recorded."""
    given_group: AnyPodGroup | None = None
    """A pod group of the job's name that a user created: the job's pods join it. It is neither
    changed nor deleted.
    """


@dataclass(frozen=True, slots=True)
class PlannedCreation:
    target: TargetKind
    manifest: Manifest

    @property
    def name(self) -> str:
        name: str = self.manifest["metadata"]["name"]
        return name


@dataclass(frozen=True, slots=True)
class PlannedDeletion:
    """An object to delete, if its uid is still the observed one."""

    target: TargetKind
    name: str
    uid: str
    force: bool = False
    """Delete without a grace period; only for pods on lost nodes."""


@dataclass(frozen=True, slots=True)
class PlannedPatch:
    """A JSON patch of one of the job's objects."""

    target: TargetKind
    name: str
    operations: list[Manifest]


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """The writes that bring a job to its desired state."""

    status: JobStatus
    creations: tuple[PlannedCreation, ...] = ()
    deletions: tuple[PlannedDeletion, ...] = ()
    patches: tuple[PlannedPatch, ...] = ()
    requeue_after: timedelta | None = None
    """Time until the next pass even if nothing changes; None: no further pass is needed."""
    kind_status: Manifest | None = None
    """Status fields that only this kind has; None if the kind has none."""
