"""The common form of a training job, into which every kind is read.

A job is a set of roles, each with a number of replicas, a pod template and a restart policy; a run
policy that bounds its life; and the rules of its kind (``JobRules``): the environment of a replica,
which replica is the master, when the job has succeeded. The engine knows only this form.

Kinds that need more implement capability protocols, such as ``OwnsObjects``. All values are
immutable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import cache
from typing import Any, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

import msgspec

from gangline.api.job_resources import JOB_KINDS
from gangline.api.jobs.kind import FieldsEntry, JobKind
from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.meta.objects import Object, ObjectMeta, OwnerReference
from gangline.api.meta.resource import Resource
from gangline.api.validation.jobs import rules_of
from gangline.api.volcano.scheduling import NetworkTopology
from gangline.operator.model.replicas import ReplicaGang

Manifest: TypeAlias = dict[str, Any]
"""JSON that belongs to the user, such as a pod template: passed through, never modelled."""


class RestartPolicy(StrEnum):
    """What happens when the process of a replica ends."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class CleanPodPolicy(StrEnum):
    """Which pods are deleted when the job has finished."""

    ALL = "All"
    RUNNING = "Running"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class ReplicaRole:
    """Replicas that share a template, such as the workers."""

    name: str
    """The name as in the specification: ``Worker``."""
    replicas: int
    restart: RestartPolicy
    template: Manifest
    """A pod template that declares the kind's default port."""
    min_replicas: int
    """The number of replicas that the job can start with: all of them unless it is elastic."""
    joins_later: bool = False
    """True if its pods are created when others run: the gang starts without them, but only where
    they fit too.
    """

    backoff_limit: int | None = None
    """Restarts of its pods until the job fails; None: only the job's limit counts."""
    first_label: int = 0
    """The number of its first replica in labels."""

    @property
    def label(self) -> str:
        """The name as in labels, annotations and object names: ``worker``."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class SchedulingRequest:
    min_available: int | None = None
    queue: str = ""
    priority_class: str = ""
    min_resources: Mapping[str, int | float | str] | None = None
    timeout: timedelta | None = None
    topology: NetworkTopology | None = None


@dataclass(frozen=True, slots=True)
class JobRunPolicy:
    """The bounds of the job's life. ``None`` means unbounded."""

    clean_pods: CleanPodPolicy = CleanPodPolicy.NONE
    clean_after_failure: CleanPodPolicy | None = None
    """The policy after a failure, for kinds that distinguish; None: the same as after success."""
    ttl: timedelta | None = None
    active_deadline: timedelta | None = None
    backoff_limit: int | None = None
    suspended: bool = False
    managed_by: str | None = None
    scheduling: SchedulingRequest = field(default_factory=SchedulingRequest)

    def clean_policy_after_end(self, *, failure: bool) -> CleanPodPolicy:
        if failure and self.clean_after_failure is not None:
            return self.clean_after_failure
        return self.clean_pods


@dataclass(frozen=True, slots=True)
class JobKindInfo:
    """The properties that all jobs of a kind share."""

    entry: JobKind
    """Its entry in the table of job kinds."""
    container: str
    """The name of the main container, which runs the training program."""
    port_name: str = ""
    port: int = 0
    env_in_all_containers: bool = True
    """True if every container of the pod gets the framework's environment variables; False if only
    the main container does.
    """
    owned_kinds: tuple[str, ...] = ()
    """Kinds of owned objects that the operator watches: ``ConfigMap``."""
    finalizers: tuple[str, ...] = ()
    """Finalizers of an upstream operator: removed when the job is deleted, never set."""
    shared_memory_roles: frozenset[str] = frozenset()
    """The roles whose pods mount memory at /dev/shm unless the job disables it."""
    related_resources: tuple[Resource[Any], ...] = ()
    """Other resources about these jobs that the webhook validates."""
    status_field: str = ""
    """The field of the status that holds the common status; empty: it is the status itself."""

    @property
    def kind(self) -> str:
        return self.entry.resource.kind

    @property
    def identity(self) -> str:
        """The kind's name, which no other kind has."""
        return self.entry.identity

    @property
    def resource(self) -> Resource[Any]:
        return self.entry.resource

    @property
    def api_version(self) -> str:
        return self.entry.resource.api_version

    @property
    def operator_variables(self) -> frozenset[str]:
        """Variables that replace those of a template; others of the operator do not."""
        return rules_of(self.entry).OPERATOR_VARIABLES

    @property
    def framework(self) -> str:
        """The ``framework`` label of metrics: ``pytorch``."""
        return self.entry.module

    @property
    def controller(self) -> str:
        """The value of the operator-name label: ``pytorchjob-controller``, as in upstream.

        Kinds of one name have one value.
        """
        return f"{self.kind.lower()}-controller"

    def is_kind_of(self, owner: OwnerReference) -> bool:
        group = owner.api_version.rpartition("/")[0]
        return (group, owner.kind) == (self.resource.group, self.kind)


def table_entry(identity: str) -> JobKind:
    return next(entry for entry in JOB_KINDS if entry.identity == identity)


class JobRules(Protocol):
    """The rules that only the kind of a job knows; each kind has one class that implements them."""

    def environment(
        self, job: "NormalizedJob", role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        """List the environment variables of a replica's containers, in order."""

    def is_master(self, job: "NormalizedJob", role: ReplicaRole, index: int) -> bool:
        """Return whether this replica gets the master label."""

    def has_succeeded(self, job: "NormalizedJob", gang: ReplicaGang) -> bool:
        """Return whether the job has succeeded, given the replicas that have."""

    def is_running(self, job: "NormalizedJob", gang: ReplicaGang) -> bool:
        """Return whether the job counts as running."""


@runtime_checkable
class ShapesPods(Protocol):
    """For kinds whose pods need more than variables: init containers, volumes, network settings."""

    def shape_pod(
        self, job: "NormalizedJob", role: ReplicaRole, index: int, pod: Manifest, gang: ReplicaGang
    ) -> Manifest:
        """Return the pod to create; ``pod`` itself is not changed."""


@runtime_checkable
class ConfiguresServices(Protocol):
    """For kinds whose replicas do not all have the default headless service."""

    def service_overrides(
        self, job: "NormalizedJob", role: ReplicaRole, index: int
    ) -> Manifest | None:
        """Return the fields of the service's spec that differ from the headless default.

        A field that is None is removed. None instead of fields: the replica has no service.
        """


@runtime_checkable
class OrdersStartup(Protocol):
    """For kinds that create some pods only when others, or their services, exist."""

    def can_start(
        self, job: "NormalizedJob", role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> bool:
        """Return whether the pod of a replica can be created now."""


@runtime_checkable
class OwnsObjects(Protocol):
    """For kinds that need other objects than pods and services, such as a ConfigMap."""

    def owned_objects(self, job: "NormalizedJob", gang: ReplicaGang) -> list[Manifest]:
        """List the objects that the job needs now, each with apiVersion, kind and a name.

        The engine adds namespace, owner and labels. An object that is no longer listed is deleted.
        """


@runtime_checkable
class RetainsObjects(Protocol):
    """For kinds some of whose owned objects outlive a suspension."""

    def is_retained(self, name: str) -> bool:
        """Return whether an owned object stays while the job is suspended."""

    def is_needed_early(self, name: str) -> bool:
        """Return whether an owned object is created for a suspended job too."""


@runtime_checkable
class ToleratesFailures(Protocol):
    """For kinds that continue without a replica that has failed."""

    def tolerates_failures(self, job: "NormalizedJob", role: ReplicaRole) -> bool:
        """Return whether failed pods of a role are neither replaced nor the end of the job."""

    def failure_reason(self, job: "NormalizedJob", gang: ReplicaGang) -> str:
        """Return why the job can no longer succeed; empty if it can."""


@runtime_checkable
class MeetsInCollectives(Protocol):
    """For kinds whose replicas train in collectives that all of them must join."""

    def needs_all_ranks(self, job: "NormalizedJob") -> bool:
        """Return whether no replica can join the others after one of them has ended."""


@runtime_checkable
class ExtendsStatus(Protocol):
    """For kinds whose status has fields of its own."""

    def status_fields(self, job: "NormalizedJob", gang: ReplicaGang, status: JobStatus) -> Manifest:
        """Return these fields, as a function of the observed replicas and the common status."""


_Capability = TypeVar("_Capability")


def implements(rules: JobRules, protocol: type[_Capability]) -> TypeGuard[_Capability]:
    """Return whether the rules of a kind implement a capability protocol.

    The result is cached: ``isinstance`` checks each method of the protocol on each call, which was
    a tenth of the engine's CPU time.
    """
    asked: Any = protocol
    return _implements(type(rules), asked)


@cache
def _implements(rules: type, protocol: type) -> bool:
    return issubclass(rules, protocol)


@dataclass(frozen=True, slots=True)
class NormalizedJob:
    """A job of any kind, in the common form."""

    kind: JobKindInfo
    meta: ObjectMeta
    roles: Sequence[ReplicaRole]
    """In the kind's order, which is also the order of creation."""
    policy: JobRunPolicy
    rules: JobRules
    restarts_together: bool = False
    """True if the failure of one replica restarts all, as the annotation requests it too."""
    restart_on_resize: bool = False
    """True if a changed number of replicas restarts all, because running ones cannot be notified.
    """
    api_version: str = ""
    """The version in which the job was written, for kinds with several versions."""

    @property
    def name(self) -> str:
        return self.meta.name

    @property
    def is_deleting(self) -> bool:
        """True if the job has a deletion timestamp: the garbage collector deletes its objects."""
        return self.meta.deletion_timestamp is not None

    @property
    def size(self) -> int:
        """The desired number of replicas of all roles."""
        return sum(role.replicas for role in self.roles)

    def find_role(self, name: str) -> ReplicaRole | None:
        return next((role for role in self.roles if role.name == name), None)

    def count(self, name: str) -> int:
        """Return the number of replicas of a role; zero if the job does not have it."""
        role = self.find_role(name)
        return role.replicas if role else 0

    def owner_reference(self) -> OwnerReference:
        return OwnerReference(
            api_version=self.kind.api_version,
            kind=self.kind.kind,
            name=self.meta.name,
            uid=self.meta.uid,
            controller=True,
            block_owner_deletion=True,
        )


class RawMeta(ObjectMeta):
    managed_fields: tuple[FieldsEntry, ...] = ()


class RawJob(Object):
    """A stored job of any kind, with specification and status as bytes.

    Bytes keep a cache of many jobs small. They are decoded when the job is reconciled, so an
    unreadable job is an error of that job and does not end the watch.
    """

    metadata: RawMeta = RawMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


def detach(job: RawJob) -> RawJob:
    """Copy a job out of its watch message, which otherwise stays in memory with it."""
    return msgspec.structs.replace(
        job, spec=msgspec.Raw(bytes(job.spec)), status=msgspec.Raw(bytes(job.status))
    )
