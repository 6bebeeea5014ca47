"""What the engine sees and what it decides: plain values, carried out by the shell.

``Observed`` is everything that a decision may depend on, next to the clock and the settings.
``Decision`` is everything that shall be written, in the order in which it has to happen:
deletions, patches, creations, then one status, then events about what the status now says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from gangline.api.kubeflow import JobStatus
from gangline.api.meta import Object
from gangline.api.scheduling import PodGroup
from gangline.operator.job import Manifest, TrainingJob
from gangline.operator.replicas import Pod, Service

RANDOM = "gangline.dev/random"
"""Written for a value of a Secret that nobody shall know: it becomes 32 random bytes, in
hexadecimal, when the Secret is made. That keeps decisions pure, and the Secret as it was made."""


class Target(StrEnum):
    """The kinds of objects that the engine makes for a job."""

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


UNSEEN = frozenset({Target.SECRET})
"""What the operator makes and has no right to read: nobody's Secrets are its business.

Names of such objects hold the job's uid, so one that is there already is the job's own. They are
made before each pod that may need them, and go with the job.
"""


class Extra(Object):
    """A further object of a job: nothing of its content is read."""

    kind: str = ""

    @property
    def target(self) -> Target:
        """What kind of object it is."""
        return Target(self.kind)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an administrator chose for all jobs."""

    gang: bool = True
    """Whether the cluster has pod groups and jobs shall get one."""
    scheduler_name: str = "gangline"
    """Written into pods of a gang whose template names no scheduler. Empty: leave it alone."""
    force_delete_after: timedelta = timedelta(seconds=10)
    """How long a pod may overstay its grace period on a lost node before it is deleted by force."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The state of the world around one job."""

    job: TrainingJob
    status: JobStatus
    pods: Sequence[Pod] = ()
    """The job's own pods: its uid is their controller."""
    services: Sequence[Service] = ()
    """The job's own services."""
    pod_group: PodGroup | None = None
    extras: Sequence[Extra] = ()
    """Further objects of the job."""
    taken: frozenset[tuple[Target, str]] = frozenset()
    """Names of objects that are there, but belong to somebody else (a former job, say)."""
    lost_nodes: frozenset[str] = frozenset()
    """Nodes that are gone or have not been heard of."""
    mistakes: str = ""
    """What is wrong with the specification, if anything is."""


@dataclass(frozen=True, slots=True)
class Creation:
    """An object to make."""

    target: Target
    manifest: Manifest

    @property
    def name(self) -> str:
        """The object's name."""
        name: str = self.manifest["metadata"]["name"]
        return name


@dataclass(frozen=True, slots=True)
class Deletion:
    """An object to remove, if it is still the one that was seen."""

    target: Target
    name: str
    uid: str
    force: bool = False
    """Without waiting for the kubelet: for pods on lost nodes only."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A JSON patch of one of the job's objects."""

    target: Target
    name: str
    operations: list[Manifest]


@dataclass(frozen=True, slots=True)
class Event:
    """Something to tell the user, once."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The writes that bring a job to where its specification wants it."""

    status: JobStatus
    creations: tuple[Creation, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    patches: tuple[Patch, ...] = ()
    requeue_after: timedelta | None = None
    """When to look again even if nothing changes."""
    fields: Manifest | None = None
    """What stands in the status beside the common fields, for kinds that have more."""

    @property
    def writes(self) -> bool:
        """Whether anything but the status is to be written."""
        return bool(self.creations or self.deletions or self.patches)
