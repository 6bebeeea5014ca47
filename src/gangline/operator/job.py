"""The common form of a training job, into which every kind is read.

A job is a set of roles, each with a number of replicas, a pod template and a restart policy; a
run policy that bounds its life; and rules that only its kind knows (``Rules``): which environment
a replica gets, which replica is the master, when the job has succeeded. The engine (``decide``)
knows nothing but this form. What is here is read-only and holds no live state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

from gangline.api.kubeflow import JobStatus
from gangline.api.meta import ObjectMeta, OwnerReference
from gangline.api.resource import Resource
from gangline.operator.replicas import Gang, Pod

Manifest: TypeAlias = dict[str, Any]
"""A piece of JSON that belongs to the user, such as a pod template: carried, never modelled."""


class RestartPolicy(StrEnum):
    """What happens when a replica's process ends."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class CleanPodPolicy(StrEnum):
    """Which pods are removed when the job has finished."""

    ALL = "All"
    RUNNING = "Running"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class Role:
    """Replicas that share a template, such as the workers."""

    name: str
    """As the specification spells it: ``Worker``."""
    replicas: int
    restart: RestartPolicy
    template: Manifest
    """A pod template with the kind's default port in it."""
    least: int
    """How many replicas the job can start with: all of them unless it is elastic."""

    @property
    def label(self) -> str:
        """The role as labels, annotations and object names spell it: ``worker``."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What the job asks of the gang scheduler."""

    min_available: int | None = None
    queue: str = ""
    priority_class: str = ""
    min_resources: Mapping[str, int | float | str] | None = None
    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """The bounds of the job's life. ``None`` means without bound."""

    clean_pods: CleanPodPolicy = CleanPodPolicy.NONE
    clean_after_failure: CleanPodPolicy | None = None
    """Where a kind tells the two ends apart; None: as after success."""
    ttl: timedelta | None = None
    active_deadline: timedelta | None = None
    backoff_limit: int | None = None
    suspended: bool = False
    managed_by: str | None = None
    scheduling: Scheduling = field(default_factory=Scheduling)

    def clean_after(self, *, failure: bool) -> CleanPodPolicy:
        """Say which pods go after this end of the job."""
        if failure and self.clean_after_failure is not None:
            return self.clean_after_failure
        return self.clean_pods


@dataclass(frozen=True, slots=True)
class Kind:
    """The facts of a job kind that are the same for all its jobs."""

    kind: str
    group: str
    version: str
    plural: str
    framework: str
    """The ``framework`` label of metrics: ``pytorch``."""
    controller: str
    """The value of the operator-name label: ``pytorchjob-controller``."""
    container: str
    """The name of the container that trains."""
    port_name: str
    port: int
    everywhere: bool = True
    """Whether all containers get the environment, or only the one that trains."""
    makes: tuple[str, ...] = ()
    """Kinds of further objects of its jobs that the operator follows: ``ConfigMap``."""
    finalizers: tuple[str, ...] = ()
    """Finalizers that an upstream operator left on its jobs: taken off at deletion, never set."""
    shares_memory: frozenset[str] = frozenset()
    """The roles whose pods get memory at /dev/shm if the job does not say otherwise."""
    companions: tuple[Resource[Any], ...] = ()
    """What else people write about its jobs, and the webhook looks at."""

    @property
    def api_version(self) -> str:
        """Group and version as objects spell them."""
        return f"{self.group}/{self.version}"


class Rules(Protocol):
    """What only the kind of a job knows. One small class for each kind implements it."""

    def environment(self, job: "TrainingJob", role: Role, index: int, gang: Gang) -> list[Manifest]:
        """List the variables that the containers of a replica get, in order."""

    def is_master(self, job: "TrainingJob", role: Role, index: int) -> bool:
        """Say whether this replica leads the others (and carries the master label)."""

    def has_succeeded(self, job: "TrainingJob", gang: Gang) -> bool:
        """Say whether what has succeeded so far makes the job a success."""

    def is_running(self, job: "TrainingJob", gang: Gang) -> bool:
        """Say whether enough runs to call the job running."""


@runtime_checkable
class ShapesPods(Protocol):
    """For kinds whose pods need more than variables: init containers, volumes, networking."""

    def shape_pod(
        self, job: "TrainingJob", role: Role, index: int, pod: Manifest, gang: Gang
    ) -> Manifest:
        """Return the pod as it shall be created; ``pod`` itself is left as it is."""


@runtime_checkable
class NamesServices(Protocol):
    """For kinds whose replicas are not all reached through a headless service of their own."""

    def service(self, job: "TrainingJob", role: Role, index: int) -> Manifest | None:
        """Return the fields of the service's specification that differ from the headless default.

        A field that is None is left out. None instead of fields: the replica has no service.
        """


@runtime_checkable
class StartsLater(Protocol):
    """For kinds some of whose pods cannot be made before others, or their services, are there."""

    def can_start(self, job: "TrainingJob", role: Role, index: int, gang: Gang) -> bool:
        """Say whether the pod of a replica can be made now."""


@runtime_checkable
class MakesObjects(Protocol):
    """For kinds that need more than pods and services, such as a ConfigMap."""

    def objects(self, job: "TrainingJob", gang: Gang) -> list[Manifest]:
        """List the objects that the job needs now, each with apiVersion, kind and a name.

        Namespace, owner and labels are added. An object that is no longer listed is removed.
        """


@runtime_checkable
class OutlivesFailures(Protocol):
    """For kinds that go on without a replica that has failed."""

    def tolerates(self, job: "TrainingJob", role: Role) -> bool:
        """Say whether failed pods of a role are neither replaced nor the end of the job."""

    def has_failed(self, job: "TrainingJob", gang: Gang) -> str:
        """Say why the job can no longer succeed; empty if it can."""


@runtime_checkable
class ShowsStatus(Protocol):
    """For kinds whose status has fields of its own."""

    def status_fields(self, job: "TrainingJob", gang: Gang, status: JobStatus) -> Manifest:
        """Return these fields, as a function of what is seen and of the common status."""


@runtime_checkable
class KeepsNodes(Protocol):
    """For kinds whose replicas get another name each time they are made anew.

    The status remembers the names, and whatever else has changed the job since it was written.
    """

    def recalled(self, job: "TrainingJob", status: JobStatus) -> "TrainingJob":
        """Return the job as what its status remembers has changed it."""

    def remembered(self, job: "TrainingJob", gang: Gang, status: JobStatus) -> JobStatus:
        """Return the status with what is to be remembered now, such as a replica's next name."""

    def pod_name(self, job: "TrainingJob", role: Role, index: int) -> str:
        """Name the present pod of a replica."""

    def service_name(self, job: "TrainingJob", role: Role, index: int) -> str:
        """Name the service of a replica."""

    def is_present(self, job: "TrainingJob", pod: Pod) -> bool:
        """Say whether a pod is the present one of its replica."""

    def is_awaited(self, job: "TrainingJob", pod: Pod, gang: Gang) -> bool:
        """Say whether a pod that is not present any more works on until the present one runs."""

    def may_make(self, job: "TrainingJob", role: Role, index: int) -> bool:
        """Say whether the name of a missing replica is still good for a new pod."""

    def absent(self, job: "TrainingJob", role: Role) -> frozenset[int]:
        """List the indexes of a role that shall have no pod."""

    def is_replaced(self, job: "TrainingJob", role: Role, index: int, pod: Pod) -> bool:
        """Say whether a failed pod is made anew."""

    def has_failed_before(self, job: "TrainingJob", role: Role, index: int) -> bool:
        """Say whether a replica's former pods failed, so that the next one is not made at once."""

    def patience(
        self, job: "TrainingJob", gang: Gang, now: datetime
    ) -> tuple[timedelta | None, str]:
        """Return how long the job may still wait for pods, and what is said when it is over."""


_Offered = TypeVar("_Offered")


def offers(rules: Rules, protocol: type[_Offered]) -> TypeGuard[_Offered]:
    """Say whether a kind's rules have the methods of one of the protocols above.

    As ``isinstance``, which looks at each method again each time and would be a tenth of the
    engine's work.
    """
    asked: Any = protocol
    return _offers(type(rules), asked)


@cache
def _offers(rules: type, protocol: type) -> bool:
    return issubclass(rules, protocol)


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A job of any kind."""

    kind: Kind
    meta: ObjectMeta
    roles: Sequence[Role]
    """In the kind's order, which is also the order of creation."""
    policy: RunPolicy
    rules: Rules
    resize_together: bool = False
    """Whether a changed number of replicas restarts all: those that run could not be told."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.meta.name

    @property
    def deleting(self) -> bool:
        """Whether somebody has asked for the job to go: the garbage collector does the rest."""
        return self.meta.deletion_timestamp is not None

    @property
    def size(self) -> int:
        """How many replicas the job asks for in all."""
        return sum(role.replicas for role in self.roles)

    def role(self, name: str) -> Role | None:
        """Find a role by the name that the specification spells, if the job has it."""
        return next((role for role in self.roles if role.name == name), None)

    def owner_reference(self) -> OwnerReference:
        """Refer to this job as the controller of what is made for it."""
        return OwnerReference(
            api_version=self.kind.api_version,
            kind=self.kind.kind,
            name=self.meta.name,
            uid=self.meta.uid,
            controller=True,
            block_owner_deletion=True,
        )
