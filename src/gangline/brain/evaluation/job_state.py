"""What the guard sees of a job and of the cluster. Pure."""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from gangline.api.jobs.elastic import AUTO, SCALE_TYPE_LABEL, ScalePlan
from gangline.brain.advisers.advice import GuardAction, Verdict, What
from gangline.brain.advisers.view import View, expected_rest_s
from gangline.brain.collection.job_digest import to_ms
from gangline.brain.facts.records import Job
from gangline.brain.guard.state import (
    UNOBSERVED_RESTART_S,
    Bound,
    GuardJobState,
    PersonAct,
)
from gangline.brain.guard.trial import present_segments
from gangline.brain.publication.plans import failed_plans, is_under_way, plan_name


def family_name(job: Job) -> str:
    """Return the name of the family that rollbacks are remembered under."""
    return f"{job.namespace}/{job.kind}/{job.stem}/{job.owner}"


def job_state(
    view: View,
    before: GuardJobState | None,
    actions: Sequence[GuardAction],
    plans: Sequence[ScalePlan],
) -> GuardJobState:
    """Return the state of a job; ``before``, its last state, has what only repetition shows."""
    run, job = view.run, view.run.job
    now = datetime.fromtimestamp(view.now_ms / 1000, UTC)
    closed = [segment.until for segment in run.segments]
    void = tuple(action for action in actions if action.verdict is Verdict.VOID)
    actions = [action for action in actions if action.verdict is not Verdict.VOID]
    return GuardJobState(
        uid=job.uid,
        family=family_name(job),
        kind=job.kind,
        started_ms=job.started_ms or job.submitted_ms,
        last_segment_ms=max(closed, default=None),
        good_segments=len(present_segments(run.segments, max(closed, default=0))),
        bounds=tuple(_bounds(job)),
        streaks=before.streaks if before else (),
        actions=tuple(_with_failed_rollbacks(job, actions, plans)),
        void=void,
        person_acts=_person_acts(before, plans),
        plan_open=any(is_under_way(plan, now) for plan in plans),
        failing=any(pod.ended_ms is None and pod.oom for pod in run.pods),
        restart_cost_s=_restart_cost_s(actions, view.restart_seconds, view.checkpoint_interval_s),
        remaining_s=expected_rest_s(view),
        gpus=sum(role.replicas * role.gpus for role in job.roles),
        probes=sum(action.probe for action in actions),
    )


def _restart_cost_s(
    actions: Sequence[GuardAction], observed_s: float | None, checkpoint_interval_s: float | None
) -> float | None:
    costs = [action.cost_ms / 1000 for action in actions if action.cost_ms is not None]
    if observed_s is not None or costs:
        return max(costs, default=0.0) if observed_s is None else observed_s
    # Half of the steps since a checkpoint are lost on average.
    return checkpoint_interval_s and UNOBSERVED_RESTART_S + checkpoint_interval_s / 2


def prediction_errors(actions: Iterable[GuardAction]) -> dict[str, float]:
    """Return by how much trials missed their predicted ranges, by family.

    Root of the mean square of the logarithms; a trial within its range counts as 0.
    """
    by_family: dict[str, list[float]] = {}
    for action in actions:
        if action.surprise is not None:
            by_family.setdefault(action.family, []).append(action.surprise)
    return {
        family: math.hypot(*surprises) / math.sqrt(len(surprises))
        for family, surprises in by_family.items()
    }


def record_person_edit(state: GuardJobState, before: Job, after: Job, now_ms: int) -> GuardJobState:
    """Add what a person changed in the specification between two observations."""
    acts = list(state.person_acts)
    if before.workers_asked != after.workers_asked:
        acts.append(
            PersonAct(
                what=What.WORKERS,
                role="worker",
                at_ms=now_ms,
                before=before.workers_asked,
                value=after.workers_asked,
            )
        )
    old = {role.role: role for role in before.roles}
    for role in after.roles:
        earlier = old.get(role.role)
        if earlier is None:
            continue
        for what, was, value in (
            (What.MEMORY, earlier.memory_bytes, role.memory_bytes),
            (What.CPU, earlier.cpu_millis, role.cpu_millis),
        ):
            if was != value:
                acts.append(
                    PersonAct(what=what, role=role.role, at_ms=now_ms, before=was, value=value)
                )
    return msgspec.structs.replace(state, person_acts=tuple(acts))


def _with_failed_rollbacks(
    job: Job, actions: Sequence[GuardAction], plans: Sequence[ScalePlan]
) -> Iterable[GuardAction]:
    """Yield the actions; a rollback whose plan failed did not set its value.

    Other actions have a trial, which finds their failed plans.
    """
    failed = failed_plans(plans)
    for action in actions:
        if action.rollback_of and plan_name(job.name, action.id) in failed:
            yield msgspec.structs.replace(action, verdict=Verdict.OVERTAKEN)
        else:
            yield action


def _bounds(job: Job) -> Iterable[Bound]:
    # Advice on workers names the role or the job as one: both are bound.
    for role in ("", "worker"):
        yield Bound(
            what=What.WORKERS,
            role=role,
            low=job.workers_min,
            high=job.workers_max,
            written=job.workers_asked,
        )
    for size in job.roles:
        for what, written in ((What.MEMORY, size.memory_bytes), (What.CPU, size.cpu_millis)):
            if written is not None:
                # Half of what the user wrote is the least that the first application may set.
                yield Bound(what=what, role=size.role, low=written / 2, written=written)


def _person_acts(before: GuardJobState | None, plans: Sequence[ScalePlan]) -> tuple[PersonAct, ...]:
    """Return the acts so far, with those that manual plans are."""
    acts = list(before.person_acts) if before else []
    seen = {(act.what, act.role, act.at_ms) for act in acts}
    for plan in plans:
        if plan.metadata.labels.get(SCALE_TYPE_LABEL) == AUTO:
            continue
        at_ms = to_ms(plan.metadata.creation_timestamp) or 0
        for role, size in plan.spec.replica_resource_specs.items():
            what = What.PS_COUNT if role == "ps" else What.WORKERS
            if size.replicas is not None and (what, role, at_ms) not in seen:
                acts.append(PersonAct(what=what, role=role, at_ms=at_ms, value=size.replicas))
    return tuple(acts)
