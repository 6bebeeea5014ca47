"""Decides the next step of a ScalePlan, and how it changes the stored state of an ElasticJob.

The plans of a job are applied one after the other, in order of creation, each completely or not at
all, by a single write of the job's status with both the changes and the uid of the plan. Invariant:
an operator that is killed in between neither loses a plan nor applies it twice. The engine then
creates and deletes pods as for any other change.

A number of replicas that a plan sets is valid until the specification's number changes. A removed
rank stays empty: the other ranks keep their numbers. New resources apply to pods that are created
later; ``migratePods`` replaces its pods immediately.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from gangline.api.jobs.elastic import (
    AUTO,
    CONTAINER,
    MASTER,
    PHASE_FAILED,
    PHASE_SUCCEEDED,
    PS,
    SCALE_TYPE_LABEL,
    WORKER,
    ElasticJobRecord,
    PodMeta,
    RoleRecord,
    ScalePlan,
    ScalePlanSpec,
    ScalePlanStatus,
)
from gangline.api.meta.conditions import MAX_MESSAGE_LENGTH
from gangline.api.resource_list import format_resource, parse_resources
from gangline.api.schema.field_error import FieldError, child_path
from gangline.api.validation.common_rules import MAX_JOB_REPLICAS
from gangline.api.validation.jobs.elastic import is_manual
from gangline.api.validation.validate import validate_job
from gangline.operator.engine.slots import assign_slots
from gangline.operator.frameworks.elastic import nodes
from gangline.operator.frameworks.elastic.pods import pod_name, replica_spec_of
from gangline.operator.frameworks.elastic.rules import ElasticRules
from gangline.operator.model import conditions
from gangline.operator.model.job import NormalizedJob
from gangline.operator.model.plan import ObservedJob


@dataclass(frozen=True, slots=True)
class RejectedScalePlan:
    errors: tuple[FieldError, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.errors))


def apply_scale_plan(
    spec: ScalePlanSpec, job: NormalizedJob, memory: ElasticJobRecord
) -> ElasticJobRecord | RejectedScalePlan:
    """Return the status of a job as changed by a plan, or the reasons why that is impossible."""
    draft = _ScalePlanDraft(job, memory)
    errors = tuple(draft.errors(spec))
    if errors:
        return RejectedScalePlan(errors)
    hosts = spec.ps_hosts or memory.ps_hosts
    return replace(memory, roles={**memory.roles, **draft.changed}, ps_hosts=hosts)


class _ScalePlanDraft:
    """The records of a job's roles while a plan changes them."""

    def __init__(self, job: NormalizedJob, memory: ElasticJobRecord) -> None:
        rules = job.rules
        assert isinstance(rules, ElasticRules)
        self.job, self.rules = job, rules
        self.specified = {role.name: role.replicas for role in job.roles}
        recalled = rules.restore_from_status(job, memory).rules
        assert isinstance(recalled, ElasticRules)
        self.records = dict(recalled.records)
        self.changed: dict[str, RoleRecord] = {}

    def errors(self, spec: ScalePlanSpec) -> Iterator[FieldError]:
        """Apply all changes of the plan and yield those that are impossible."""
        for name, scale in spec.replica_resource_specs.items():
            path, role = child_path("spec.replicaResourceSpecs", name), name.lower()
            if role not in self.records:
                yield self._unknown_role(path, name)
                continue
            if scale.resource:
                merged = {**self.records[role].resources, **scale.resource}
                self._set_record(role, replace(self.records[role], resources=merged))
            if scale.replicas is not None:
                yield from self._resize(role, scale.replicas, f"{path}.replicas")
        for field, pods, change in (
            ("removePods", spec.remove_pods, self._remove),
            ("migratePods", spec.migrate_pods, self._migrate),
            ("createPods", spec.create_pods, self._create),
        ):
            for place, pod in enumerate(pods):
                path, role = f"spec.{field}[{place}]", pod.type.lower() or WORKER
                if role not in self.records:
                    yield self._unknown_role(f"{path}.type", pod.type)
                else:
                    yield from change(role, pod, path)
        if spec.ps_hosts and PS not in self.records:
            yield FieldError("spec.psHosts", None, "the job has no parameter servers")
        yield from self._bound_errors()

    def _resize(self, role: str, replicas: int, path: str) -> Iterator[FieldError]:
        """Set the number of ranks: the highest ranks are removed, the lowest free ones added."""
        if replicas > MAX_JOB_REPLICAS:
            yield FieldError(path, replicas, f"is more than {MAX_JOB_REPLICAS}")
            return
        there = sorted(self._ranks(role))[:replicas]
        free = (rank for rank in itertools.count() if rank not in there)
        added = itertools.islice(free, replicas - len(there))
        self._set_ranks(role, frozenset(there).union(added))

    def _remove(self, role: str, pod: PodMeta, path: str) -> Iterator[FieldError]:
        rank = self._find_rank(role, pod)
        if rank is None:
            yield _unknown_pod(path, pod)
        else:
            self._set_ranks(role, self._ranks(role) - {rank})

    def _migrate(self, role: str, pod: PodMeta, path: str) -> Iterator[FieldError]:
        rank = self._find_rank(role, pod)
        if rank is None:
            yield _unknown_pod(path, pod)
            return
        record = nodes.relaunch(self.records[role], {rank: nodes.NodeLoss()})
        self._set_record(role, _with_resources(record, rank, pod))

    def _create(self, role: str, pod: PodMeta, path: str) -> Iterator[FieldError]:
        there = self._ranks(role)
        rank = pod.rank_index
        if rank is None:
            rank = next(index for index in range(len(there) + 1) if index not in there)
        if rank in there:
            yield FieldError(f"{path}.rankIndex", rank, "already has a pod")
            return
        if rank >= MAX_JOB_REPLICAS:
            yield FieldError(f"{path}.rankIndex", rank, f"is more than {MAX_JOB_REPLICAS}")
            return
        self._set_ranks(role, there | {rank})
        self._set_record(role, _with_resources(self.records[role], rank, pod))

    def _bound_errors(self) -> Iterator[FieldError]:
        """Check that the job can still train and stays within its limits."""
        counts = {role: len(self._ranks(role)) for role in self.records if role != MASTER}
        least = self.rules.node_range.min_nodes if self.rules.node_range else 1
        workers = counts.get(WORKER)
        if workers is not None and WORKER in self.changed and workers < least:
            problem = f"leaves {workers} workers, and the job needs at least {least}"
            yield FieldError("spec", None, problem)
        elif not sum(counts.values()):
            yield FieldError("spec", None, "leaves no replica that trains")
        yield from self._limit_errors()

    def _limit_errors(self) -> Iterator[FieldError]:
        limits = parse_resources(self.rules.spec.resource_limits)
        if not limits or not self.changed:
            return
        roles = {
            role.name: dataclasses.replace(
                role, replicas=nodes.rank_count(self.records[role.name], role.replicas)
            )
            for role in self.job.roles
            if role.name != MASTER
        }
        total = nodes.total_requests(roles, self.records, CONTAINER)
        for resource, most in limits.items():
            if total.get(resource, 0) > most:
                asked = format_resource(resource, total[resource])
                given = self.rules.spec.resource_limits[resource]
                problem = (
                    f"requests {asked} of {resource} in total; the job's resourceLimits: {given}"
                )
                yield FieldError("spec", None, problem)

    def _find_rank(self, role: str, pod: PodMeta) -> int | None:
        """Find the rank of a pod that a plan names; None if the job has no such pod."""
        record, there = self.records[role], self._ranks(role)
        for rank in there:
            number = nodes.node_of_rank(record, rank).id
            named = pod.name in ("", pod_name(self.job.name, role, number))
            if named and pod.id in (None, number) and pod.rank_index in (None, rank):
                return rank
        return None

    def _ranks(self, role: str) -> frozenset[int]:
        return nodes.active_ranks(self.records[role], self.specified[role])

    def _set_ranks(self, role: str, ranks: frozenset[int]) -> None:
        record = nodes.resize(self.records[role], ranks, self.specified[role])
        self._set_record(
            role, nodes.assign_node_ids(record, nodes.rank_count(record, self.specified[role]))
        )

    def _set_record(self, role: str, record: RoleRecord) -> None:
        self.records[role] = self.changed[role] = record

    def _unknown_role(self, path: str, name: str) -> FieldError:
        listed = ", ".join(role for role in self.records if role != MASTER)
        return FieldError(path, name, "is not a role of the job", f"it has {listed}")


def _with_resources(record: RoleRecord, rank: int, pod: PodMeta) -> RoleRecord:
    return nodes.update_node(record, rank, resources=pod.resource) if pod.resource else record


def _unknown_pod(path: str, pod: PodMeta) -> FieldError:
    given = (("name", pod.name or None), ("id", pod.id), ("rankIndex", pod.rank_index))
    named = ((name, value) for name, value in given if value is not None)
    field, value = next(named, ("name", None))
    return FieldError(f"{path}.{field}", value, "is not a pod of the job")


PENDING, SCALING = "Pending", "Scaling"
MISSING_JOB_TIMEOUT = timedelta(seconds=60)
"""Time that a plan waits for a missing job: both may have been submitted together."""

_NUMBER = re.compile(r"(\d+)", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class ScalePlanStep:
    """The writes for one plan: first the job's status, then the plan's."""

    plan: ScalePlan
    status: ScalePlanStatus
    memory: ElasticJobRecord | None = None
    """The job's status as changed by the plan; None: unchanged."""
    requeue_after: timedelta | None = None
    """Time until the next check, if nothing changes before."""


def open_plans(plans: Iterable[ScalePlan]) -> list[ScalePlan]:
    return sorted((plan for plan in plans if not is_plan_finished(plan)), key=_age)


def is_plan_finished(plan: ScalePlan) -> bool:
    return plan.status.phase in (PHASE_SUCCEEDED, PHASE_FAILED)


def next_step(
    plans: Sequence[ScalePlan], observed: ObservedJob | None, now: datetime
) -> ScalePlanStep | None:
    """Return the next step for the first of a job's unfinished plans; None if there is nothing to
    do.
    """
    if not plans:
        return None
    stamp = now.replace(microsecond=0)
    plan, more = plans[0], len(plans) > 1
    if errors := validate_job(plan):
        return _failed_step(plan, errors, stamp)
    if observed is None or observed.job.is_deleting:
        return _without_job(plan, stamp)
    memory = observed.status
    if not isinstance(memory, ElasticJobRecord):
        return None
    if memory.scale_plan_uid == plan.metadata.uid:
        return _scaling_step(plan, observed, stamp, superseded=more)
    if conditions.is_finished(memory.conditions):
        problem = FieldError("spec.ownerJob", plan.job_name, "has ended")
        return _failed_step(plan, [problem], stamp)
    if observed.spec_errors:
        message = f"waits for a valid job: {observed.spec_errors}"
        return ScalePlanStep(plan, _status(plan, PENDING, stamp, message))
    if forbidden := list(_forbidden(plan, observed)):
        return _failed_step(plan, forbidden, stamp)
    effect = apply_scale_plan(plan.spec, observed.job, memory)
    if isinstance(effect, RejectedScalePlan):
        return _failed_step(plan, effect.errors, stamp)
    noted = replace(effect, scale_plan=plan.metadata.name, scale_plan_uid=plan.metadata.uid)
    return ScalePlanStep(plan, _status(plan, SCALING, stamp), noted)


def _without_job(plan: ScalePlan, now: datetime) -> ScalePlanStep:
    why = "is not an ElasticJob of this namespace"
    problem = FieldError("spec.ownerJob", plan.job_name, why)
    since = plan.status.create_time or now
    left = since + MISSING_JOB_TIMEOUT - now
    if left <= timedelta(0):
        return _failed_step(plan, [problem], now)
    return ScalePlanStep(plan, _status(plan, PENDING, now, str(problem)), requeue_after=left)


def _scaling_step(
    plan: ScalePlan, observed: ObservedJob, now: datetime, *, superseded: bool
) -> ScalePlanStep:
    """Check whether the pods run; a plan that is followed by another does not wait for them."""
    rules = observed.job.rules
    assert isinstance(rules, ElasticRules)
    job = rules.restore_from_status(observed.job, observed.status)
    gang = assign_slots(dataclasses.replace(observed, job=job), observed.status)
    ended = conditions.is_finished(observed.status.conditions)
    if ended or (gang.all_running_or_succeeded and not gang.surplus):
        return ScalePlanStep(plan, _status(plan, PHASE_SUCCEEDED, now))
    if superseded:
        message = "the next plan superseded it before all of its pods ran"
        return ScalePlanStep(plan, _status(plan, PHASE_SUCCEEDED, now, message))
    return ScalePlanStep(plan, _status(plan, SCALING, now))


def _forbidden(plan: ScalePlan, observed: ObservedJob) -> Iterator[FieldError]:
    """Changes that are forbidden to a plan labelled ``auto`` and allowed to a user."""
    if plan.metadata.labels.get(SCALE_TYPE_LABEL) != AUTO:
        return
    rules = observed.job.rules
    assert isinstance(rules, ElasticRules)
    mode = rules.spec.optimize_mode
    if is_manual(mode):
        where = child_path("metadata.labels", SCALE_TYPE_LABEL)
        yield FieldError(where, AUTO, f"is refused: the job's optimizeMode is {mode!r}")
    for path, role in _affected_roles(plan):
        written = replica_spec_of(rules.spec, role)
        if written is not None and written.auto_scale is False:
            yield FieldError(path, role, "is refused: this role has autoScale: false")


def _affected_roles(plan: ScalePlan) -> Iterator[tuple[str, str]]:
    spec = plan.spec
    for role in spec.replica_resource_specs:
        yield child_path("spec.replicaResourceSpecs", role), role.lower()
    for field, pods in (
        ("createPods", spec.create_pods),
        ("removePods", spec.remove_pods),
        ("migratePods", spec.migrate_pods),
    ):
        for place, pod in enumerate(pods):
            yield f"spec.{field}[{place}].type", pod.type.lower() or WORKER


def _failed_step(plan: ScalePlan, errors: Iterable[object], now: datetime) -> ScalePlanStep:
    return ScalePlanStep(plan, _status(plan, PHASE_FAILED, now, "; ".join(map(str, errors))))


def _status(plan: ScalePlan, phase: str, now: datetime, message: str = "") -> ScalePlanStatus:
    return ScalePlanStatus(
        phase=phase,
        create_time=plan.status.create_time or now,
        finish_time=now if phase in (PHASE_SUCCEEDED, PHASE_FAILED) else None,
        message=message[:MAX_MESSAGE_LENGTH],
    )


def _age(plan: ScalePlan) -> tuple[float, list[tuple[bool, int, str]], str]:
    """Sort by creation time, within a second by the number: ``JOB-scaleplan-10`` after ``-9``."""
    meta = plan.metadata
    created = meta.creation_timestamp
    parts = [
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in _NUMBER.split(meta.name)
    ]
    return created.timestamp() if created else float("inf"), parts, meta.uid
