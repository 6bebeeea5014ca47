"""Of an action: what its trial is judged by, what it cost, the change that carries it out. Pure."""

from collections.abc import Sequence

from gangline.api.failure import DEVICE_OUT_OF_MEMORY
from gangline.api.jobs.elastic import ScalePlan
from gangline.brain.advisers.decisions import ActionRecord
from gangline.brain.facts.records import Run
from gangline.brain.guard.checks import WITHOUT_RESTART
from gangline.brain.guard.state import Action, JobState
from gangline.brain.guard.trial import TrialEvents
from gangline.brain.publication.plans import PlannedChange, failed_plans, plan_name


def cost_ms(action: Action, state: JobState) -> int | None:
    """What a change has cost the job: one restart, unless none was needed."""
    if action.what in WITHOUT_RESTART or state.restart_cost_s is None:
        return None
    return round(1000 * state.restart_cost_s)


def planned_change(action_id: int, action: Action, value: float) -> PlannedChange:
    """Return the change of a field that an action, or its rollback, makes."""
    return PlannedChange(
        action_id=action_id,
        what=action.what,
        role=action.role,
        rank=action.rank,
        device=action.target,
        value=value,
        between_failures_s=action.between_failures_s,
    )


def trial_events(
    run: Run, action: Action, plans: Sequence[ScalePlan], record: ActionRecord
) -> TrialEvents:
    """Return what happened to the job since the action."""
    formed = any(segment.since_ms >= action.at_ms for segment in run.segments) or None
    oom = any(
        (pod.oom or pod.cause == DEVICE_OUT_OF_MEMORY) and (pod.ended_ms or 0) >= action.at_ms
        for pod in run.pods
    ) or any(shortage.at_ms >= action.at_ms for shortage in run.shortages)
    failed = plan_name(run.job.name, record.id) in failed_plans(plans)
    return TrialEvents(formed=formed, oom=oom, overtaken=failed)
