"""Begins actions and judges them. What happened is in the store before it is in the cluster.

Order of an action: its record with a number, then the plan that is named by the number. Order of a
rollback: the verdict, the record of the rollback, its plan. A process that ends in between leaves
what ``resume`` carries out again: a plan that exists already collides with it.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TypeAlias

from msgspec.structs import replace

from gangline.api.failure import DEVICE_OUT_OF_MEMORY
from gangline.api.jobs.elastic import AUTO, PS, SCALE_TYPE_LABEL, ScalePlan
from gangline.api.jobs.training_facts import SegmentFacts
from gangline.api.meta.objects import Object
from gangline.brain.advisers.advice import Advice, GuardAction, Reason, Verdict, What, because
from gangline.brain.advisers.view import AdviserView, expected_rest_s
from gangline.brain.collection.job_digest import to_ms
from gangline.brain.collection.live_facts import restart_seconds
from gangline.brain.evaluation.history import JobHistory
from gangline.brain.facts.belief import FUTURE_MS
from gangline.brain.facts.records import Outcome, RecordedJob, Run
from gangline.brain.guard.decide import (
    WITHOUT_RESTART,
    Decision,
    begin_action,
    begin_rollback,
    decide_rollback,
    started,
    with_action,
)
from gangline.brain.guard.policy import (
    UNOBSERVED_RESTART_S,
    Bound,
    ClusterState,
    GuardJobState,
    Permission,
    PersonAct,
)
from gangline.brain.guard.trial import TrialEvents, baseline, judge, present_segments
from gangline.brain.publication import (
    PLANNED,
    Actuator,
    failed_plans,
    is_under_way,
    plan_name,
)
from gangline.kube.errors import ApiError


def job_state(
    view: AdviserView,
    before: GuardJobState | None,
    actions: Sequence[GuardAction],
    plans: Sequence[ScalePlan],
) -> GuardJobState:
    """Return the state of a job; ``before``, its last state, has what only repetition shows."""
    run, job = view.run, view.run.job
    now = datetime.fromtimestamp(view.now_ms / 1000, UTC)
    closed = [s.until for s in run.segments if s.until <= view.now_ms + FUTURE_MS]
    failed = failed_plans(plans)
    void = tuple(action for action in actions if action.verdict is Verdict.VOID)
    actions = [action for action in actions if action.verdict is not Verdict.VOID]
    return GuardJobState(
        uid=job.uid,
        family=f"{job.namespace}/{job.kind}/{job.stem}/{job.owner}",
        kind=job.kind,
        started_ms=job.started_ms or job.submitted_ms,
        last_segment_ms=max(closed, default=None),
        good_segments=len(present_segments(run.segments, max(closed, default=0))),
        bounds=tuple(_bounds(job)),
        streaks=before.streaks if before else (),
        # A rollback whose plan failed did not set its value. Other actions have a trial, which
        # finds their failed plans.
        actions=tuple(
            replace(action, verdict=Verdict.OVERTAKEN)
            if action.rollback_of and plan_name(job.name, action.id) in failed
            else action
            for action in actions
        ),
        void=void,
        person_acts=_person_acts(before, plans),
        plan_open=any(is_under_way(plan, now) for plan in plans),
        failing=any(pod.ended_ms is None and pod.oom for pod in run.pods),
        restart_cost_s=_restart_cost_s(actions, run.segments),
        remaining_s=expected_rest_s(view),
        gpus=sum(role.replicas * role.gpus for role in job.roles),
        probes=sum(action.probe for action in actions),
    )


def _restart_cost_s(
    actions: Sequence[GuardAction], segments: Sequence[SegmentFacts]
) -> float | None:
    observed_s = restart_seconds(segments)
    costs = [action.cost_ms / 1000 for action in actions if action.cost_ms is not None]
    if observed_s is not None or costs:
        return max(costs, default=0.0) if observed_s is None else observed_s
    # Half of the steps since a checkpoint are lost on average.
    interval_s = segments[-1].save_interval_seconds if segments else None
    return interval_s and UNOBSERVED_RESTART_S + interval_s / 2


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


def record_person_edit(
    state: GuardJobState, before: RecordedJob, after: RecordedJob, now_ms: int
) -> GuardJobState:
    """Add what a person changed in the specification between two observations."""
    edits = [(What.WORKERS, "worker", before.workers_asked, after.workers_asked)]
    old = {role.role: role for role in before.roles}
    for role in after.roles:
        earlier = old.get(role.role, role)
        edits.append((What.MEMORY, role.role, earlier.memory_bytes, role.memory_bytes))
        edits.append((What.CPU, role.role, earlier.cpu_millis, role.cpu_millis))
    acts = (
        PersonAct(what=what, role=role, at_ms=now_ms, before=was, value=value)
        for what, role, was, value in edits
        if was != value
    )
    return replace(state, person_acts=(*state.person_acts, *acts))


def _bounds(job: RecordedJob) -> Iterable[Bound]:
    yield Bound(
        what=What.WORKERS,
        role="worker",
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


log = logging.getLogger(__name__)

RESUME_MS = 3_600_000
"""Older actions are not carried out again: the job has changed since."""


def trial_events(run: Run, action: GuardAction, plans: Sequence[ScalePlan]) -> TrialEvents:
    formed = _has_formed(run, action) if action.what is What.WORKERS else None
    short = [pod for pod in run.pods if pod.oom or pod.cause == DEVICE_OUT_OF_MEMORY]
    times = [pod.ended_ms or 0 for pod in short] + [shortage.at for shortage in run.shortages]
    failed = plan_name(run.job.name, action.id) in failed_plans(plans)
    oom = max(times, default=-1) >= action.at_ms
    return TrialEvents(formed=formed, oom=oom, overtaken=failed)


def _has_formed(run: Run, action: GuardAction) -> bool | None:
    """Whether a world of the new size trains; the former world goes on until that one forms.

    With fewer running pods than it needs, it cannot form. Else only segments can show it.
    """
    if any(s.since >= action.at_ms and s.nodes == action.after for s in run.segments):
        return True
    running = {pod.rank for pod in run.pods if pod.role == "worker" and pod.ended_ms is None}
    return False if len(running) < (action.after or 0) else None


class ChangeResult(Enum):
    DONE = "done"
    LATER = "later"
    """The API server did not take it; it is written again."""
    NEVER = "never"
    """There is nothing that it could be written to."""


@dataclass(slots=True)
class EvaluatedJob:
    """A job in one evaluation: what its actions are carried out and judged by."""

    stored: Object
    run: Run
    actions: Sequence[GuardAction]
    """Those of the last day."""
    plans: Sequence[ScalePlan]
    permission: Permission
    now_ms: int
    state: GuardJobState


RollbackReport: TypeAlias = Callable[[EvaluatedJob, GuardAction, bool, Reason | None], None]
"""Receives each rollback: whether it was carried out, and why the change is taken back."""


class Trials:
    """The actions of all jobs. They change ``cluster``, and the states of the jobs."""

    def __init__(self, history: JobHistory, actuator: Actuator, report: RollbackReport) -> None:
        self._history, self._actuator, self._report = history, actuator, report
        self.cluster = ClusterState()
        self._carried_out: set[int] = set()
        """Actions that this process has seen in the cluster; a plan that a person deletes later is
        not created again."""
        self._rollbacks_to_write: set[int] = set()
        """Rollbacks that this process began and the API server has not taken yet."""

    async def begin(
        self, job: EvaluatedJob, advice: Advice, decision: Decision, sentence: str
    ) -> Reason | None:
        guard = job.permission.guard
        before = baseline(job.run.segments, job.now_ms, guard)
        action = begin_action(advice, decision, job.state, job.now_ms, before)
        match await self._start(job, action, sentence):
            case None:
                return because("NotRecorded")
            case _, ChangeResult.LATER:
                return because("WrittenLater")
            case _, ChangeResult.NEVER:
                return because("NothingToWrite", left=guard.cooldown_s)
        return None

    async def resume(self, job: EvaluatedJob) -> None:
        """Carry out what an earlier process, or an earlier attempt, began and did not write."""
        taken_back = {action.rollback_of for action in job.actions}
        by_id = {action.id: action for action in job.actions}
        for action in job.actions:
            if job.now_ms - (action.judged_ms or action.at_ms) > RESUME_MS:
                continue
            if action.rolled_back:
                if action.id not in taken_back:
                    await self._roll_back(job, action)
            elif action.id not in self._carried_out and (
                action.verdict is Verdict.PENDING
                or (action.rollback_of and action.verdict is not Verdict.VOID)
            ):
                if _has_plan(job, action):
                    self._carried_out.add(action.id)
                    continue
                written = await self._carry_out(job, action)
                if action.id in self._rollbacks_to_write:
                    self._restored(job, by_id.get(action.rollback_of), action, written)

    async def judge_all(self, job: EvaluatedJob) -> None:
        """Judge open actions; take back what made the job worse."""
        run, now_ms, guard = job.run, job.now_ms, job.permission.guard
        for action in job.actions:
            if action.rolled_back or action.rollback_of or not self._is_written(job, action):
                continue
            judged = judge(
                action, run.segments, now_ms, trial_events(run, action, job.plans), guard
            )
            ended = run.job.outcome is not Outcome.RUNNING
            verdict = Verdict.OVERTAKEN if ended else judged.verdict
            if verdict == action.verdict:
                continue
            after = replace(
                action,
                verdict=verdict,
                why=judged.why,
                judged_ms=now_ms,
                cost_ms=_cost_ms(action, job.state) or action.cost_ms,
                surprise=action.surprise if judged.surprise is None else judged.surprise,
                rolled_back=verdict is Verdict.ROLLED_BACK,
            )
            job.state = with_action(job.state, after)
            if await self._history.update_action(after) and after.rolled_back:
                rolled_back = (*self.cluster.rolled_back, after)
                self.cluster = replace(self.cluster, rolled_back=rolled_back)
                await self._roll_back(job, after)

    def _is_written(self, job: EvaluatedJob, action: GuardAction) -> bool:
        """Whether the API server has taken the plan of an action."""
        if action.what not in PLANNED or action.verdict is not Verdict.PENDING:
            return True
        return action.id in self._carried_out or _has_plan(job, action)

    async def _roll_back(self, job: EvaluatedJob, action: GuardAction) -> None:
        # The record is marked first, so that a rollback that is not written yet is made once.
        decision = decide_rollback(action, job.state, self.cluster, job.permission, job.now_ms)
        if action.before is not None and decision.act:
            back = begin_rollback(action, job.now_ms)
            begun = await self._start(job, back, f"action {action.id} is rolled back")
            if begun is not None:
                self._restored(job, action, *begun)

    async def _start(
        self, job: EvaluatedJob, action: GuardAction, sentence: str
    ) -> tuple[GuardAction, ChangeResult] | None:
        """Record an action and carry it out; None if the history does not take it."""
        begun = await self._history.begin_action(action)
        if begun is None:
            return None
        result = await self._carry_out(job, begun, sentence)
        if result is not ChangeResult.NEVER:
            job.state, self.cluster = started(begun, job.state, self.cluster)
        return begun, result

    def _restored(
        self, job: EvaluatedJob, action: GuardAction | None, back: GuardAction, done: ChangeResult
    ) -> None:
        """Report a rollback, once the API server takes it or there is nothing to write it to."""
        if done is ChangeResult.LATER:
            self._rollbacks_to_write.add(back.id)
            return
        self._rollbacks_to_write.discard(back.id)
        self._report(job, back, done is ChangeResult.DONE, action.why if action else None)

    async def _carry_out(
        self, job: EvaluatedJob, action: GuardAction, sentence: str = ""
    ) -> ChangeResult:
        try:
            pods = job.run.pods
            servers = {pod.rank for pod in pods if pod.role == PS and pod.ended_ms is None}
            done = await self._actuator.carry_out(job.stored, action, sentence, servers)
        except ApiError as error:
            log.warning("an action is repeated later: %s", error, extra={"action": action.id})
            return ChangeResult.LATER
        if not done:
            void = replace(action, verdict=Verdict.VOID, judged_ms=job.now_ms)
            await self._history.update_action(void)
            return ChangeResult.NEVER
        self._carried_out.add(action.id)
        return ChangeResult.DONE


def _has_plan(job: EvaluatedJob, action: GuardAction) -> bool:
    name = plan_name(job.run.job.name, action.id)
    return action.what in PLANNED and any(plan.metadata.name == name for plan in job.plans)


def _cost_ms(action: GuardAction, state: GuardJobState) -> int | None:
    """What a change has cost the job: one restart, unless none was needed."""
    if action.what in WITHOUT_RESTART or state.restart_cost_s is None:
        return None
    return round(1000 * state.restart_cost_s)
