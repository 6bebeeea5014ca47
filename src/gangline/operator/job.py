"""The common form of a training job, into which every kind is read.

A job is a set of roles, each with a number of replicas, a pod template and a restart policy; a
run policy that bounds its life; and rules that only its kind knows (``Rules``): which environment
a replica gets, which replica is the master, when the job has succeeded. The engine (``decide``)
knows nothing but this form. What is here is read-only and holds no live state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

from gangline.api.meta import ObjectMeta, OwnerReference
from gangline.operator.replicas import Gang

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
    ttl: timedelta | None = None
    active_deadline: timedelta | None = None
    backoff_limit: int | None = None
    suspended: bool = False
    managed_by: str | None = None
    scheduling: Scheduling = field(default_factory=Scheduling)


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

    @property
    def api_version(self) -> str:
        """Group and version as objects spell them."""
        return f"{self.group}/{self.version}"


class Rules(Protocol):
    """What only the kind of a job knows. One small class for each kind implements it."""

    def environment(self, job: "TrainingJob", role: Role, index: int) -> list[Manifest]:
        """List the variables that every container of a replica gets, in order."""

    def is_master(self, job: "TrainingJob", role: Role, index: int) -> bool:
        """Say whether this replica leads the others (and carries the master label)."""

    def has_succeeded(self, job: "TrainingJob", gang: Gang) -> bool:
        """Say whether what has succeeded so far makes the job a success."""

    def is_running(self, job: "TrainingJob", gang: Gang) -> bool:
        """Say whether enough runs to call the job running."""


@runtime_checkable
class ShapesPods(Protocol):
    """For kinds whose pods need more than variables: init containers, volumes, networking."""

    def shape_pod(self, job: "TrainingJob", role: Role, index: int, pod: Manifest) -> Manifest:
        """Return the pod as it shall be created; ``pod`` itself is left as it is."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A job of any kind."""

    kind: Kind
    meta: ObjectMeta
    roles: Sequence[Role]
    """In the kind's order, which is also the order of creation."""
    policy: RunPolicy
    rules: Rules

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
