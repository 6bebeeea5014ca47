"""What a ScalePlan does to an ElasticJob, and how far it has come. Pure.

Plans of a job are carried out one after the other, in the order in which they were made. Carrying
one out is one write of the job's status, which holds both what has changed and which plan it was:
so an operator that dies in between neither forgets a plan nor carries it out twice. The engine then
makes and removes pods as for any other change. A number of replicas that a plan gave counts until
somebody changes the specification's.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from gangline.api.checks.elastic import is_manual
from gangline.api.elastic import (
    AUTO,
    PHASE_FAILED,
    PHASE_SUCCEEDED,
    SCALE_TYPE_LABEL,
    ElasticMemory,
    PodMeta,
    ScalePlan,
    ScalePlanStatus,
)
from gangline.api.fielderror import FieldError, child
from gangline.api.validation import validate_job
from gangline.operator import conditions
from gangline.operator.decision import Observed
from gangline.operator.frameworks.elastic_pod import spec_of
from gangline.operator.frameworks.elastic_rules import ElasticRules
from gangline.operator.places import arranged
from gangline.operator.scaleplan_effect import Refused, carried_out

PENDING, SCALING = "Pending", "Scaling"
NO_JOB_FOR = timedelta(seconds=60)
"""How long a plan waits for a job that is not there: both may have been sent at once."""

_NUMBER = re.compile(r"(\d+)", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """What to do about one plan: first the job's status, then the plan's."""

    plan: ScalePlan
    status: ScalePlanStatus
    memory: ElasticMemory | None = None
    """The job's status as the plan changes it; None: as it is."""
    look_again: timedelta | None = None


def ordered(plans: Iterable[ScalePlan]) -> list[ScalePlan]:
    """Put the plans that are not over in the order in which they are carried out."""
    return sorted((plan for plan in plans if not is_over(plan)), key=_age)


def is_over(plan: ScalePlan) -> bool:
    """Say whether a plan has been carried out, or has failed."""
    return plan.status.phase in (PHASE_SUCCEEDED, PHASE_FAILED)


def step(plans: Sequence[ScalePlan], observed: Observed | None, now: datetime) -> Step | None:
    """Decide what to do about the first of the plans of a job; None if there is nothing to do.

    Args:
        plans: the plans of one job that are not over, in order.
        observed: the job as it is seen; None if there is none.
        now: the time.
    """
    if not plans:
        return None
    stamp = now.replace(microsecond=0)
    plan, more = plans[0], len(plans) > 1
    if mistakes := validate_job(plan):
        return _failed(plan, "; ".join(map(str, mistakes)), stamp)
    if observed is None or observed.job.deleting:
        return _without_job(plan, stamp)
    memory = observed.status
    if not isinstance(memory, ElasticMemory):
        return None
    if memory.scale_plan_uid == plan.metadata.uid:
        return _under_way(plan, observed, stamp, superseded=more)
    if conditions.is_finished(memory.conditions):
        problem = FieldError("spec.ownerJob", plan.spec.owner_job, "has ended")
        return _failed(plan, str(problem), stamp)
    if observed.mistakes:
        told = f"waits until the job is right: {observed.mistakes}"
        return Step(plan, _status(plan, PENDING, stamp, told))
    if forbidden := list(_forbidden(plan, observed)):
        return _failed(plan, "; ".join(map(str, forbidden)), stamp)
    effect = carried_out(plan.spec, observed.job, memory)
    if isinstance(effect, Refused):
        return _failed(plan, str(effect), stamp)
    noted = replace(effect, scale_plan=plan.metadata.name, scale_plan_uid=plan.metadata.uid)
    return Step(plan, _status(plan, SCALING, stamp), noted)


def _without_job(plan: ScalePlan, now: datetime) -> Step:
    problem = str(FieldError("spec.ownerJob", plan.spec.owner_job, "is no ElasticJob here"))
    since = plan.status.create_time or now
    left = since + NO_JOB_FOR - now
    if left <= timedelta(0):
        return _failed(plan, problem, now)
    return Step(plan, _status(plan, PENDING, now, problem), look_again=left)


def _under_way(plan: ScalePlan, observed: Observed, now: datetime, *, superseded: bool) -> Step:
    """Say whether the pods are there; a plan that comes after this one does not wait for them."""
    rules = observed.job.rules
    assert isinstance(rules, ElasticRules)
    job = rules.recalled(observed.job, observed.status)
    gang = arranged(dataclasses.replace(observed, job=job), observed.status)
    ended = conditions.is_finished(observed.status.conditions)
    if ended or (gang.all_up and not gang.surplus):
        return Step(plan, _status(plan, PHASE_SUCCEEDED, now))
    if superseded:
        told = "the next plan came before all of its pods ran"
        return Step(plan, _status(plan, PHASE_SUCCEEDED, now, told))
    return Step(plan, _status(plan, SCALING, now))


def _forbidden(plan: ScalePlan, observed: Observed) -> Iterator[FieldError]:
    """What a program may not change although a person may."""
    if plan.metadata.labels.get(SCALE_TYPE_LABEL) != AUTO:
        return
    rules = observed.job.rules
    assert isinstance(rules, ElasticRules)
    mode = rules.spec.optimize_mode
    if is_manual(mode):
        where = child("metadata.labels", SCALE_TYPE_LABEL)
        yield FieldError(where, AUTO, f"is refused: the job's optimizeMode is {mode!r}")
    for path, role in _touched(plan):
        written = spec_of(rules.spec, role)
        if written is not None and written.auto_scale is False:
            yield FieldError(path, role, "is refused: this role has autoScale: false")


def _touched(plan: ScalePlan) -> Iterator[tuple[str, str]]:
    spec = plan.spec
    for role in spec.replica_resource_specs:
        yield child("spec.replicaResourceSpecs", role), role.lower()
    lists: tuple[tuple[str, list[PodMeta]], ...] = (
        ("createPods", spec.create_pods),
        ("removePods", spec.remove_pods),
        ("migratePods", spec.migrate_pods),
    )
    for field, pods in lists:
        for place, pod in enumerate(pods):
            yield f"spec.{field}[{place}].type", pod.type.lower() or "worker"


def _failed(plan: ScalePlan, why: str, now: datetime) -> Step:
    return Step(plan, _status(plan, PHASE_FAILED, now, why))


def _status(plan: ScalePlan, phase: str, now: datetime, message: str = "") -> ScalePlanStatus:
    over = phase in (PHASE_SUCCEEDED, PHASE_FAILED)
    return ScalePlanStatus(
        phase=phase,
        create_time=plan.status.create_time or now,
        finish_time=now if over else None,
        message=message[: conditions.MESSAGE_LIMIT],
    )


def _age(plan: ScalePlan) -> tuple[float, list[tuple[bool, int, str]], str]:
    """By time, and within a second by the numbers in their names: ``JOB-scaleplan-10`` after 9."""
    meta = plan.metadata
    created = meta.creation_timestamp
    parts = [
        (part.isdigit(), int(part) if part.isdigit() else 0, part)
        for part in _NUMBER.split(meta.name)
    ]
    return created.timestamp() if created else float("inf"), parts, meta.uid
