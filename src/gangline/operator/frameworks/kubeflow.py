"""Common part of the ``kubeflow.org`` kinds: run policy, roles and defaults."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from gangline.api.jobs import kubeflow as api
from gangline.api.jobs.kind import original_api_version
from gangline.api.jobs.kubeflow_paddle import PaddleElasticPolicy
from gangline.api.meta.objects import Object
from gangline.api.validation.validate import MAX_JOB_REPLICAS, check_job, validate_manifest
from gangline.operator.model import pod_template
from gangline.operator.model.framework import ParsedJob
from gangline.operator.model.job import (
    CleanPodPolicy,
    JobKindInfo,
    JobRules,
    JobRunPolicy,
    Manifest,
    NormalizedJob,
    RawJob,
    ReplicaRole,
    RestartPolicy,
    SchedulingRequest,
)
from gangline.operator.model.replicas import ReplicaGang

ElasticPolicy: TypeAlias = api.ElasticPolicy | PaddleElasticPolicy
_Job = TypeVar("_Job", bound=Object)


class LeadingRoleRules:
    """Rules of kinds in which one role leads: its first replica is the master, its end ends all."""

    __slots__ = ()
    leaders: ClassVar[tuple[str, ...]]
    """The first of these roles that has replicas leads."""

    def leader(self, job: NormalizedJob) -> str:
        return leading_role(job, *self.leaders)

    def is_master(self, job: NormalizedJob, role: ReplicaRole, index: int) -> bool:
        return (role.name, index) == (self.leader(job), 0)

    def has_succeeded(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return gang[self.leader(job)].all_succeeded

    def is_running(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return gang[self.leader(job)].active > 0


@dataclass(frozen=True, slots=True)
class KindDefaults:
    restart: RestartPolicy
    clean_pods: CleanPodPolicy = CleanPodPolicy.NONE


class KubeflowFramework(ABC, Generic[_Job]):
    """A framework of a kind with a run policy and a map of replica specs.

    A kind sets the attributes and implements ``rules``.
    """

    kind: JobKindInfo
    roles: Sequence[str]
    """The roles in the order of creation."""
    defaults: KindDefaults

    @abstractmethod
    def rules(self, job: _Job) -> JobRules:
        """Return the rules of a job."""

    def replica_specs(self, job: _Job) -> Mapping[str, api.ReplicaSpec]:
        specs: Mapping[str, api.ReplicaSpec]
        specs = getattr(_spec(job), self.kind.entry.replica_specs_field)
        return specs

    def adjust_roles(self, job: _Job, roles: list[ReplicaRole]) -> list[ReplicaRole]:
        return roles

    def restarts_on_resize(self, job: _Job) -> bool:
        return False

    def run_policy(self, job: _Job, roles: list[ReplicaRole]) -> JobRunPolicy:
        return parse_run_policy(_spec(job).run_policy, self.defaults)

    def read(self, stored: RawJob) -> ParsedJob:
        meta = stored.metadata
        version = original_api_version(
            self.kind.entry, stored.api_version, meta.annotations, meta.managed_fields
        )
        stored = msgspec.structs.replace(stored, api_version=version)
        return parse_job(stored, self.kind.resource.type, self._normalize)

    def _normalize(self, job: _Job) -> NormalizedJob:
        specs = self.replica_specs(job)
        roles = self.adjust_roles(job, parse_roles(self.kind, specs, self.roles, self.defaults))
        return NormalizedJob(
            kind=self.kind,
            meta=job.metadata,
            roles=roles,
            policy=self.run_policy(job, roles),
            rules=self.rules(job),
            restart_on_resize=self.restarts_on_resize(job),
            api_version=job.api_version,
        )


def _spec(job: Any) -> Any:
    return job.spec


def parse_job(
    stored: RawJob, type_: type[_Job], normalize: Callable[[_Job], NormalizedJob]
) -> ParsedJob:
    """Read a job of a kind.

    ``normalize`` gets an invalid job without the parts that have the wrong type, also inside of pod
    templates, and may raise ValueError for it.
    """
    empty = type_(api_version=stored.api_version, kind=stored.kind, metadata=stored.metadata)
    written = {"apiVersion": stored.api_version, "kind": stored.kind}
    encoded = msgspec.json.encode(written | {"metadata": stored.metadata, "spec": stored.spec})
    try:
        job = msgspec.json.decode(encoded, type=type_)
    except msgspec.ValidationError as error:
        errors = _join_errors(validate_manifest(msgspec.json.decode(encoded)))
        return ParsedJob(normalize(empty), errors or str(error))
    check = check_job(job)
    errors = _join_errors(check.errors)
    try:
        return ParsedJob(_bounded(normalize(check.job or empty if errors else job)), errors)
    except ValueError as error:
        return ParsedJob(_bounded(normalize(empty)), errors or str(error))


def _bounded(job: NormalizedJob) -> NormalizedJob:
    """Limit the replicas of an invalid job, for each of which a plan has a slot."""
    if all(role.replicas <= MAX_JOB_REPLICAS for role in job.roles):
        return job
    limited = [replace(r, replicas=min(r.replicas, MAX_JOB_REPLICAS)) for r in job.roles]
    return replace(job, roles=limited)


def parse_run_policy(policy: api.RunPolicy, defaults: KindDefaults) -> JobRunPolicy:
    """Convert a run policy. Validation has reported values that the schema forbids."""
    return JobRunPolicy(
        clean_pods=CleanPodPolicy(policy.clean_pod_policy or defaults.clean_pods),
        ttl=_seconds(policy.ttl_seconds_after_finished),
        active_deadline=_seconds(policy.active_deadline_seconds),
        backoff_limit=policy.backoff_limit,
        suspended=bool(policy.suspend),
        managed_by=policy.managed_by,
        scheduling=_scheduling(policy.scheduling_policy or api.SchedulingPolicy()),
    )


def parse_roles(
    kind: JobKindInfo,
    specs: Mapping[str, api.ReplicaSpec],
    order: Sequence[str],
    defaults: KindDefaults,
) -> list[ReplicaRole]:
    """Convert the roles, in the kind's order; names are case-insensitive, as in upstream."""
    named = {name.lower(): spec for name, spec in specs.items()}
    declared = ((name, named.get(name.lower())) for name in order)
    return [_role(kind, name, spec, defaults) for name, spec in declared if spec is not None]


def role_port(kind: JobKindInfo, role: ReplicaRole) -> int:
    """Return the port of a role's replicas: the one with the kind's port name, else the default."""
    return pod_template.find_port(role.template, kind.container, kind.port_name, kind.port)


def leading_role(job: NormalizedJob, *names: str) -> str:
    """Return the first of these roles that has replicas, else the last."""
    return next((name for name in names if job.count(name)), names[-1])


def env_vars(pairs: Iterable[tuple[str, object]]) -> list[Manifest]:
    return [{"name": name, "value": str(value)} for name, value in pairs]


def field_variable(name: str, path: str) -> Manifest:
    """Build a variable with the value of a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def worker_range(policy: ElasticPolicy, workers: ReplicaRole | None) -> tuple[int, int]:
    """Return the bounds of an elastic job's workers; a missing bound equals the other."""
    given = [bound for bound in (policy.min_replicas, policy.max_replicas) if bound is not None]
    given = given or [workers.replicas if workers else 0]
    return given[0], given[-1]


def autoscalers(
    job: NormalizedJob, policy: ElasticPolicy | None, workers: ReplicaRole | None
) -> list[Manifest]:
    """Return the autoscaler of an elastic job that names metrics."""
    if policy is None or not policy.metrics:
        return []
    least, most = worker_range(policy, workers)
    return [
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": job.name},
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": job.kind.api_version,
                    "kind": job.kind.kind,
                    "name": job.name,
                },
                "minReplicas": least,
                "maxReplicas": most,
                "metrics": list(policy.metrics),
            },
        }
    ]


def _join_errors(errors: Sequence[object]) -> str:
    return "; ".join(str(error) for error in errors)


def _role(
    kind: JobKindInfo, name: str, spec: api.ReplicaSpec, defaults: KindDefaults
) -> ReplicaRole:
    replicas = 1 if spec.replicas is None else spec.replicas
    written = spec.template
    if kind.port_name:
        written = pod_template.with_port(written, kind.container, kind.port_name, kind.port)
    return ReplicaRole(
        name=name,
        replicas=replicas,
        min_replicas=replicas,
        restart=RestartPolicy(spec.restart_policy or defaults.restart),
        template=written,
    )


def _scheduling(policy: api.SchedulingPolicy) -> SchedulingRequest:
    return SchedulingRequest(
        min_available=policy.min_available,
        queue=policy.queue,
        priority_class=policy.priority_class,
        min_resources=policy.min_resources,
        timeout=_seconds(policy.schedule_timeout_seconds),
    )


def _seconds(count: int | None) -> timedelta | None:
    return None if count is None else timedelta(seconds=count)
