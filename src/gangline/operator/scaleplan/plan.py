"""Decides the next step of a ScalePlan for an ElasticJob.

The plans of a job are applied one after the other, in order of creation. Applying a plan is a
single write of the job's status, which contains both the changes and the uid of the plan.
Invariant: an operator that is killed in between neither loses a plan nor applies it twice. The
engine then creates and deletes pods as for any other change. A number of replicas that a plan sets
is valid until the specification's number changes.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from gangline.api.jobs.elastic import (
    AUTO,
    PHASE_FAILED,
    PHASE_SUCCEEDED,
    SCALE_TYPE_LABEL,
    ElasticJobRecord,
    PodMeta,
    ScalePlan,
    ScalePlanStatus,
)
from gangline.api.meta.conditions import MAX_MESSAGE_LENGTH
from gangline.api.schema.field_error import FieldError, child_path
from gangline.api.validation.jobs.elastic import is_manual
from gangline.api.validation.validate import validate_job
from gangline.operator.engine.slots import assign_slots
from gangline.operator.frameworks.elastic.pods import replica_spec_of
from gangline.operator.frameworks.elastic.rules import ElasticRules
from gangline.operator.model import conditions
from gangline.operator.model.plan import ObservedJob
from gangline.operator.scaleplan.effect import RejectedScalePlan, apply_scale_plan

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
    """Return the unfinished plans in the order in which they are applied."""
    return sorted((plan for plan in plans if not is_plan_finished(plan)), key=_age)


def is_plan_finished(plan: ScalePlan) -> bool:
    return plan.status.phase in (PHASE_SUCCEEDED, PHASE_FAILED)


def next_step(
    plans: Sequence[ScalePlan], observed: ObservedJob | None, now: datetime
) -> ScalePlanStep | None:
    """Return the next step for the first plan of a job; None if there is nothing to do.

    Args:
        plans: the unfinished plans of one job, in order.
        observed: the observed job; None if it does not exist.
        now: the time.
    """
    if not plans:
        return None
    stamp = now.replace(microsecond=0)
    plan, more = plans[0], len(plans) > 1
    if errors := validate_job(plan):
        return _failed_step(plan, "; ".join(map(str, errors)), stamp)
    if observed is None or observed.job.is_deleting:
        return _without_job(plan, stamp)
    memory = observed.status
    if not isinstance(memory, ElasticJobRecord):
        return None
    if memory.scale_plan_uid == plan.metadata.uid:
        return _scaling_step(plan, observed, stamp, superseded=more)
    if conditions.is_finished(memory.conditions):
        problem = FieldError("spec.ownerJob", plan.job_name, "has ended")
        return _failed_step(plan, str(problem), stamp)
    if observed.spec_errors:
        message = f"waits for a valid job: {observed.spec_errors}"
        return ScalePlanStep(plan, _status(plan, PENDING, stamp, message))
    if forbidden := list(_forbidden(plan, observed)):
        return _failed_step(plan, "; ".join(map(str, forbidden)), stamp)
    effect = apply_scale_plan(plan.spec, observed.job, memory)
    if isinstance(effect, RejectedScalePlan):
        return _failed_step(plan, str(effect), stamp)
    noted = replace(effect, scale_plan=plan.metadata.name, scale_plan_uid=plan.metadata.uid)
    return ScalePlanStep(plan, _status(plan, SCALING, stamp), noted)


def _without_job(plan: ScalePlan, now: datetime) -> ScalePlanStep:
    problem = str(
        FieldError("spec.ownerJob", plan.job_name, "is not an ElasticJob of this namespace")
    )
    since = plan.status.create_time or now
    left = since + MISSING_JOB_TIMEOUT - now
    if left <= timedelta(0):
        return _failed_step(plan, problem, now)
    return ScalePlanStep(plan, _status(plan, PENDING, now, problem), requeue_after=left)


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
    lists: tuple[tuple[str, list[PodMeta]], ...] = (
        ("createPods", spec.create_pods),
        ("removePods", spec.remove_pods),
        ("migratePods", spec.migrate_pods),
    )
    for field, pods in lists:
        for place, pod in enumerate(pods):
            yield f"spec.{field}[{place}].type", pod.type.lower() or "worker"


def _failed_step(plan: ScalePlan, why: str, now: datetime) -> ScalePlanStep:
    return ScalePlanStep(plan, _status(plan, PHASE_FAILED, now, why))


def _status(plan: ScalePlan, phase: str, now: datetime, message: str = "") -> ScalePlanStatus:
    over = phase in (PHASE_SUCCEEDED, PHASE_FAILED)
    return ScalePlanStatus(
        phase=phase,
        create_time=plan.status.create_time or now,
        finish_time=now if over else None,
        message=message[:MAX_MESSAGE_LENGTH],
    )


def _age(plan: ScalePlan) -> tuple[float, list[tuple[bool, int, str]], str]:
    """By creation time, and within a second by the numbers in the name: ``JOB-scaleplan-10`` after
    9.
    """
    meta = plan.metadata
    created = meta.creation_timestamp
    parts = [
        (part.isdigit(), int(part) if part.isdigit() else 0, part)
        for part in _NUMBER.split(meta.name)
    ]
    return created.timestamp() if created else float("inf"), parts, meta.uid
