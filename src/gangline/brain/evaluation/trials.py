"""Begins actions and judges them. What happened is in the store before it is in the cluster.

Order of an action: its record with a number, then the plan that is named by the number. Order of a
rollback: the verdict, the record of the rollback, its plan. A process that ends in between leaves
what ``resume`` carries out again: a plan that exists already collides with it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from gangline.api.failure import DEVICE_OUT_OF_MEMORY
from gangline.api.jobs.elastic import ScalePlan
from gangline.api.meta.objects import Object
from gangline.brain.advisers.advice import Advice, GuardAction, Reason, Verdict, What
from gangline.brain.evaluation.history import History
from gangline.brain.facts.records import Outcome, Run
from gangline.brain.guard.checks import WITHOUT_RESTART
from gangline.brain.guard.decide import (
    Decision,
    begin_action,
    begin_rollback,
    block_direction,
    decide_rollback,
    started,
    with_action,
)
from gangline.brain.guard.policy import Permission
from gangline.brain.guard.state import ClusterState, GuardJobState
from gangline.brain.guard.trial import TrialEvents, baseline, judge
from gangline.brain.publication.plans import PLANNED, Actuator, failed_plans, plan_name
from gangline.kube.errors import ApiError

log = logging.getLogger(__name__)

RESUME_MS = 3_600_000
"""Older actions are not carried out again: the job has changed since."""


def trial_events(run: Run, action: GuardAction, plans: Sequence[ScalePlan]) -> TrialEvents:
    """Return what happened to the job since the action."""
    formed = _has_formed(run, action) if action.what is What.WORKERS else None
    oom = any(
        (pod.oom or pod.cause == DEVICE_OUT_OF_MEMORY) and (pod.ended_ms or 0) >= action.at_ms
        for pod in run.pods
    ) or any(shortage.at >= action.at_ms for shortage in run.shortages)
    failed = plan_name(run.job.name, action.id) in failed_plans(plans)
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
    """What became of a change."""

    DONE = "done"
    LATER = "later"
    """The API server did not take it; it is written again."""
    NEVER = "never"
    """There is nothing that it could be written to."""


@dataclass(frozen=True, slots=True)
class RestoredField:
    """The rollback of a change that was carried out, or could not be."""

    rollback: GuardAction
    done: bool
    why: Reason | None
    """Why the change is taken back."""


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


class Trials:
    """The actions of all jobs. They change ``cluster``, and the states of the jobs."""

    def __init__(self, history: History, actuator: Actuator) -> None:
        self._history, self._actuator = history, actuator
        self.cluster = ClusterState()
        self._carried_out: set[int] = set()
        """Actions that this process has seen in the cluster; a plan that a person deletes later is
        not created again."""
        self._rollbacks_to_write: set[int] = set()
        """Rollbacks that this process began and the API server has not taken yet."""

    async def begin(
        self, job: EvaluatedJob, advice: Advice, decision: Decision, sentence: str
    ) -> Reason | None:
        """Carry a decision out. The reason says why the change is not in the cluster, if so."""
        if decision.value is None:
            return Reason(code="NothingToSet")
        guard = job.permission.guard
        before = baseline(job.run.segments, job.now_ms, guard)
        action = begin_action(advice, decision, job.state, job.now_ms, before)
        match await self._start(job, action, sentence):
            case None:
                return Reason(code="NotRecorded")
            case _, ChangeResult.LATER:
                return Reason(code="WrittenLater")
            case _, ChangeResult.NEVER:
                return Reason(code="NothingToWrite", arguments={"left": guard.cooldown_s})
        return None

    async def resume(self, job: EvaluatedJob) -> list[RestoredField]:
        """Carry out what an earlier process, or an earlier attempt, began and did not write.

        Returns the fields that are set back by it.
        """
        restored: list[RestoredField] = []
        plans = {plan.metadata.name for plan in job.plans}
        taken_back = {action.rollback_of for action in job.actions}
        by_id = {action.id: action for action in job.actions}
        for action in job.actions:
            if job.now_ms - (action.judged_ms or action.at_ms) > RESUME_MS:
                continue
            if action.rolled_back:
                if action.id not in taken_back:
                    restored += await self._roll_back(job, action)
            elif action.id in self._carried_out:
                continue
            elif action.verdict is Verdict.PENDING or (
                action.rollback_of and action.verdict is not Verdict.VOID
            ):
                if action.what in PLANNED and plan_name(job.run.job.name, action.id) in plans:
                    self._carried_out.add(action.id)
                    continue
                written = await self._carry_out(job, action)
                if action.id in self._rollbacks_to_write:
                    restored += self._restored(by_id.get(action.rollback_of), action, written)
        return restored

    async def judge_all(self, job: EvaluatedJob) -> list[RestoredField]:
        """Judge open actions; take back what made the job worse. Returns what is set back by it."""
        run, now_ms, guard = job.run, job.now_ms, job.permission.guard
        restored: list[RestoredField] = []
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
            after = msgspec.structs.replace(
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
                self.cluster = block_direction(self.cluster, after, now_ms, guard)
                restored += await self._roll_back(job, after)
        return restored

    def _is_written(self, job: EvaluatedJob, action: GuardAction) -> bool:
        """Whether the API server has taken the plan of an action."""
        if action.what not in PLANNED or action.verdict is not Verdict.PENDING:
            return True
        name = plan_name(job.run.job.name, action.id)
        return action.id in self._carried_out or any(p.metadata.name == name for p in job.plans)

    async def _roll_back(self, job: EvaluatedJob, action: GuardAction) -> list[RestoredField]:
        # The record is marked first, so that a rollback that is not written yet is made once.
        unmarked = msgspec.structs.replace(action, rolled_back=False)
        decision = decide_rollback(unmarked, job.state, self.cluster, job.permission, job.now_ms)
        if action.before is None or not decision.act:
            return []
        back = begin_rollback(action, job.now_ms)
        begun = await self._start(job, back, f"action {action.id} is rolled back")
        if begun is None:
            return []
        return self._restored(action, *begun)

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
        self, action: GuardAction | None, back: GuardAction, written: ChangeResult
    ) -> list[RestoredField]:
        """Return what a rollback has set back; empty while the API server does not take it."""
        if written is ChangeResult.LATER:
            self._rollbacks_to_write.add(back.id)
            return []
        self._rollbacks_to_write.discard(back.id)
        return [RestoredField(back, written is ChangeResult.DONE, action.why if action else None)]

    async def _carry_out(
        self, job: EvaluatedJob, action: GuardAction, sentence: str = ""
    ) -> ChangeResult:
        try:
            done = await self._actuator.carry_out(job.stored, action, sentence)
        except ApiError as error:
            log.warning("an action is repeated later: %s", error, extra={"action": action.id})
            return ChangeResult.LATER
        if not done:
            void = msgspec.structs.replace(action, verdict=Verdict.VOID, judged_ms=job.now_ms)
            await self._history.update_action(void)
            return ChangeResult.NEVER
        self._carried_out.add(action.id)
        return ChangeResult.DONE


def _cost_ms(action: GuardAction, state: GuardJobState) -> int | None:
    """What a change has cost the job: one restart, unless none was needed."""
    if action.what in WITHOUT_RESTART or state.restart_cost_s is None:
        return None
    return round(1000 * state.restart_cost_s)
