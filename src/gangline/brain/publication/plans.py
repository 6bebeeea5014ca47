"""An action as the object that carries it out: a ScalePlan, or the tuning of a job. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from gangline.api.jobs.elastic import (
    AUTO,
    PHASE_FAILED,
    PHASE_SUCCEEDED,
    PS,
    SCALE_TYPE_LABEL,
    WORKER,
    PodMeta,
    RoleScale,
    ScalePlan,
    ScalePlanSpec,
)
from gangline.api.jobs.training_facts import (
    FACTS_VERSION,
    CheckpointTuning,
    JobTuning,
    LoaderTuning,
)
from gangline.api.meta.field_doc import ResourceList
from gangline.api.meta.objects import Object, ObjectMeta, OwnerReference
from gangline.api.resource_list import CPU, MEMORY, format_resource
from gangline.api.resources import SCALE_PLANS
from gangline.brain.advisers.advice import What

REASON_ANNOTATION = "gangline.dev/brain-reason"
"""On a plan of the Brain: why it was made."""
ADVICE_ANNOTATION = "gangline.dev/brain-advice"
"""On a plan of the Brain: the number of the advice that it carries out."""
BRAIN_PLAN_LABEL = "gangline.dev/brain"
"""On a plan of the Brain: ``true``. Only these are deleted by it."""
PLAN_RETENTION = timedelta(hours=24)

PLANNED = frozenset(
    {What.WORKERS, What.MEMORY, What.CPU, What.PS_COUNT, What.PS_CPU, What.PS_MEMORY}
)
"""Fields that a ScalePlan changes."""
PRIOR_FAILURES = 4.0
"""Failures for which the expected rate counts beside those that the trainer observes itself."""


class PlannedChange(msgspec.Struct, frozen=True, kw_only=True):
    """One action on one job."""

    action_id: int
    what: What
    role: str = ""
    rank: int | None = None
    device: str = ""
    """The device model that a tuning is meant for; empty: all of them."""
    value: float
    between_failures_s: float | None = None
    """Of a change of the interval between checkpoints; None takes the expectation back."""
    sentence: str = ""
    advice_id: int | None = None


def plan_name(job: str, action_id: int) -> str:
    """Return the name of the plan of an action: a repeated creation collides."""
    return f"{job}-brain-{action_id}"


def scale_plan(job: Object, change: PlannedChange) -> ScalePlan | None:
    """Return the plan that carries a change out; None if no plan can."""
    spec = _spec(job.metadata.name, change)
    if spec is None:
        return None
    meta = job.metadata
    return ScalePlan(
        api_version=SCALE_PLANS.api_version,
        kind=SCALE_PLANS.kind,
        metadata=ObjectMeta(
            name=plan_name(meta.name, change.action_id),
            namespace=meta.namespace,
            labels={SCALE_TYPE_LABEL: AUTO, BRAIN_PLAN_LABEL: "true"},
            annotations={
                REASON_ANNOTATION: change.sentence,
                ADVICE_ANNOTATION: str(change.advice_id or ""),
            },
            owner_references=[
                OwnerReference(
                    api_version=job.api_version, kind=job.kind, name=meta.name, uid=meta.uid
                )
            ],
        ),
        spec=spec,
    )


def _spec(job: str, change: PlannedChange) -> ScalePlanSpec | None:
    count = round(change.value)
    match change.what:
        case What.WORKERS:
            sizes = {change.role or WORKER: RoleScale(replicas=count)}
        case What.PS_COUNT:
            sizes = {PS: RoleScale(replicas=count)}
        case What.MEMORY | What.PS_MEMORY:
            return _resources(job, change, MEMORY)
        case What.CPU | What.PS_CPU:
            return _resources(job, change, CPU)
        case _:
            return None
    return ScalePlanSpec(owner_job=job, replica_resource_specs=sizes)


def _resources(job: str, change: PlannedChange, resource: str) -> ScalePlanSpec:
    role = change.role or (PS if change.what in (What.PS_CPU, What.PS_MEMORY) else WORKER)
    amount: ResourceList = {resource: format_resource(resource, round(change.value))}
    if change.rank is None:
        return ScalePlanSpec(
            owner_job=job, replica_resource_specs={role: RoleScale(resource=amount)}
        )
    pod = PodMeta(type=role, rank_index=change.rank, resource=amount)
    return ScalePlanSpec(owner_job=job, migrate_pods=[pod])


def next_tuning(before: JobTuning | None, change: PlannedChange) -> JobTuning | None:
    """Return the tuning with a change, under the next version; None if tuning cannot carry it.

    ``device`` of the change is the device model that it is meant for; empty: all of them.
    """
    tuning = before or JobTuning(v=FACTS_VERSION, version=0)
    if change.what is What.CHECKPOINT_INTERVAL:
        # The trainer computes the interval itself, from its own observations on top of this one.
        expected_s = change.between_failures_s
        prior = expected_s and CheckpointTuning(PRIOR_FAILURES, PRIOR_FAILURES * expected_s)
        return msgspec.structs.replace(tuning, version=tuning.version + 1, checkpoint=prior or None)
    number = round(change.value)
    old = tuning.devices.get(change.device) if change.device else tuning.dataloader
    loader = old or LoaderTuning()
    if change.what is What.MICRO_BATCH:
        loader = msgspec.structs.replace(loader, batch_size=number)
    elif change.what is What.LOADER_WORKERS:
        loader = msgspec.structs.replace(loader, num_workers=number)
    else:
        return None
    changed = (
        {"devices": {**tuning.devices, change.device: loader}}
        if change.device
        else {"dataloader": loader}
    )
    return msgspec.structs.replace(tuning, version=tuning.version + 1, **changed)


def failed_plans(plans: Iterable[ScalePlan]) -> set[str]:
    """Return the names of the plans that failed."""
    return {plan.metadata.name for plan in plans if plan.status.phase == PHASE_FAILED}


def is_outdated(plan: ScalePlan, now: datetime) -> bool:
    """Return whether a plan of the Brain finished long ago."""
    if plan.metadata.labels.get(BRAIN_PLAN_LABEL) != "true":
        return False
    if plan.status.phase not in (PHASE_SUCCEEDED, PHASE_FAILED):
        return False
    ended = plan.status.finish_time or plan.metadata.creation_timestamp
    return ended is not None and now - ended > PLAN_RETENTION
