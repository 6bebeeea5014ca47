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
from gangline.brain.advisers.advice import ActionRecord, Advice, Reason, What
from gangline.brain.evaluation.advisers import hold_sentence
from gangline.brain.evaluation.history import History
from gangline.brain.evaluation.job_state import decode_action, encode_action
from gangline.brain.facts.records import Outcome, Run
from gangline.brain.guard.checks import WITHOUT_RESTART
from gangline.brain.guard.decide import (
    Decision,
    begin_action,
    begin_rollback,
    block_direction,
    decide_rollback,
    end_action,
)
from gangline.brain.guard.policy import Permission
from gangline.brain.guard.state import (
    ClusterState,
    GuardAction,
    GuardJobState,
    Verdict,
)
from gangline.brain.guard.trial import TrialEvents, baseline, judge
from gangline.brain.publication.plans import (
    PLANNED,
    Actuator,
    PlannedChange,
    failed_plans,
    plan_name,
)
from gangline.kube.errors import ApiError

log = logging.getLogger(__name__)

RESUME_MS = 3_600_000
"""Older actions are not carried out again: the job has changed since."""


def cost_ms(action: GuardAction, state: GuardJobState) -> int | None:
    """What a change has cost the job: one restart, unless none was needed."""
    if action.what in WITHOUT_RESTART or state.restart_cost_s is None:
        return None
    return round(1000 * state.restart_cost_s)


def planned_change(action_id: int, action: GuardAction, value: float) -> PlannedChange:
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
    run: Run, action: GuardAction, plans: Sequence[ScalePlan], record: ActionRecord
) -> TrialEvents:
    """Return what happened to the job since the action."""
    formed = any(segment.since_ms >= action.at_ms for segment in run.segments) or None
    oom = any(
        (pod.oom or pod.cause == DEVICE_OUT_OF_MEMORY) and (pod.ended_ms or 0) >= action.at_ms
        for pod in run.pods
    ) or any(shortage.at_ms >= action.at_ms for shortage in run.shortages)
    failed = plan_name(run.job.name, record.id) in failed_plans(plans)
    return TrialEvents(formed=formed, oom=oom, overtaken=failed)


class ChangeResult(Enum):
    """What became of a change."""

    DONE = "done"
    LATER = "later"
    """The API server did not take it; it is written again."""
    NEVER = "never"
    """There is nothing that it could be written to."""


class RestoredField(msgspec.Struct, frozen=True, kw_only=True):
    """A field that was set back to its value before a change, or could not be."""

    what: What
    value: float
    done: bool


@dataclass(frozen=True, slots=True)
class EvaluatedJob:
    """A job in one evaluation: what its actions are carried out and judged by."""

    stored: Object
    run: Run
    records: Sequence[ActionRecord]
    """Its actions of the last day."""
    plans: Sequence[ScalePlan]
    permission: Permission
    now_ms: int


class Trials:
    """The actions of all jobs."""

    def __init__(self, history: History, actuator: Actuator, cluster: str) -> None:
        self._history, self._actuator, self._cluster = history, actuator, cluster
        self._carried_out: set[int] = set()
        """Actions that this process has seen in the cluster; a plan that a person deletes later is
        not created again."""
        self._rollbacks_to_write: set[int] = set()
        """Rollbacks that this process began and the API server has not taken yet."""

    async def begin(
        self,
        job: EvaluatedJob,
        advice: Advice,
        decision: Decision,
        state: GuardJobState,
        cluster: ClusterState,
        *,
        advice_id: int | None,
        sentence: str,
    ) -> tuple[GuardJobState, ClusterState, Reason | None]:
        """Carry a decision out. The reason says why the change is not in the cluster, if so."""
        run, now_ms, guard = job.run, job.now_ms, job.permission.guard
        if decision.value is None:
            return state, cluster, Reason(code="NothingToSet")
        unchanged = state, cluster
        action, state, cluster = begin_action(
            "0",
            advice,
            decision,
            state,
            cluster,
            now_ms,
            baseline=baseline(run.segments, now_ms, guard),
        )
        record = ActionRecord(
            cluster=self._cluster,
            uid=run.job.uid,
            advice_id=advice_id,
            what=advice.what,
            at_ms=now_ms,
        )
        begun = await self._history.begin_action(encode_action(record, action))
        if begun is None:
            return *unchanged, Reason(code="NotRecorded")
        change = planned_change(begun.id, action, decision.value)
        change = msgspec.structs.replace(change, sentence=sentence, advice_id=advice_id)
        match await self._carry_out(job.stored, change):
            case ChangeResult.DONE:
                return state, cluster, None
            case ChangeResult.LATER:
                return state, cluster, Reason(code="WrittenLater")
            case ChangeResult.NEVER:
                await self._void(begun, action, now_ms)
                pause = Reason(code="NothingToWrite", arguments={"left": guard.cooldown_s})
                if advice_id is not None:
                    await self._history.hold_advice(advice_id, hold_sentence(pause))
                return *unchanged, pause

    async def resume(
        self, job: EvaluatedJob, state: GuardJobState, cluster: ClusterState
    ) -> list[RestoredField]:
        """Carry out what an earlier process, or an earlier attempt, began and did not write.

        Returns the fields that are set back by it.
        """
        restored: list[RestoredField] = []
        plans = {plan.metadata.name for plan in job.plans}
        actions = [(record, decode_action(record)) for record in job.records]
        taken_back = {action.rollback_of for _, action in actions if action}
        for record, action in actions:
            if action is None or record.id in self._carried_out:
                continue
            if job.now_ms - record.at_ms > RESUME_MS:
                continue
            if action.rolled_back and action.id not in taken_back:
                done = await self._roll_back(job, action, state, cluster)
                if done is not None:
                    self._carried_out.add(record.id)
                    state, cluster, back = done
                    restored += back
            elif record.verdict == Verdict.PENDING or (
                action.rollback_of and action.verdict is not Verdict.VOID
            ):
                restored += await self._write_again(job, record, action, plans)
        return restored

    async def _write_again(
        self, job: EvaluatedJob, record: ActionRecord, action: GuardAction, plans: set[str]
    ) -> list[RestoredField]:
        if action.after is None:
            return []
        if action.what in PLANNED and plan_name(job.run.job.name, record.id) in plans:
            self._carried_out.add(record.id)
            return []
        change = planned_change(record.id, action, action.after)
        change = msgspec.structs.replace(change, advice_id=record.advice_id)
        written = await self._carry_out(job.stored, change)
        if written is ChangeResult.NEVER:
            await self._void(record, action, job.now_ms)
        if record.id not in self._rollbacks_to_write:
            return []
        return self._restored(record.id, action, written)

    async def judge_all(
        self, job: EvaluatedJob, state: GuardJobState, cluster: ClusterState
    ) -> tuple[GuardJobState, ClusterState, list[RestoredField]]:
        """Judge open actions; take back what made the job worse. Returns what is set back by it."""
        run, now_ms, guard = job.run, job.now_ms, job.permission.guard
        restored: list[RestoredField] = []
        for record in job.records:
            action = decode_action(record)
            if action is None or action.rolled_back or action.rollback_of:
                continue
            events = trial_events(run, action, job.plans, record)
            verdict = judge(action, run.segments, now_ms, events, guard)
            if run.job.outcome is not Outcome.RUNNING:
                verdict = msgspec.structs.replace(verdict, verdict=Verdict.OVERTAKEN)
            if verdict.verdict == action.verdict:
                continue
            judged, state = end_action(
                action,
                verdict.verdict,
                state,
                now_ms,
                cost_ms=cost_ms(action, state),
                surprise=verdict.surprise,
            )
            if verdict.verdict is Verdict.ROLLED_BACK:
                judged = msgspec.structs.replace(judged, rolled_back=True)
            if not await self._history.update_action(encode_action(record, judged)):
                continue
            if verdict.verdict is Verdict.ROLLED_BACK:
                cluster = block_direction(cluster, judged, now_ms, guard)
                done = await self._roll_back(job, judged, state, cluster)
                if done is not None:
                    state, cluster, back = done
                    restored += back
        return state, cluster, restored

    async def _roll_back(
        self, job: EvaluatedJob, action: GuardAction, state: GuardJobState, cluster: ClusterState
    ) -> tuple[GuardJobState, ClusterState, list[RestoredField]] | None:
        # The record is marked first, so that a rollback that is not written yet is made once.
        unmarked = msgspec.structs.replace(action, rolled_back=False)
        now_ms, permission = job.now_ms, job.permission
        decision = decide_rollback(unmarked, state, cluster, permission, now_ms, permission.guard)
        if action.before is None or not decision.act:
            return None
        unchanged = state, cluster
        back, state, cluster = begin_rollback("0", action, state, cluster, now_ms)
        record = ActionRecord(
            cluster=self._cluster, uid=job.run.job.uid, what=action.what, at_ms=now_ms
        )
        begun = await self._history.begin_action(encode_action(record, back))
        if begun is None:
            return None
        change = planned_change(begun.id, back, action.before)
        sentence = f"action {action.id} is rolled back"
        written = await self._carry_out(
            job.stored, msgspec.structs.replace(change, sentence=sentence)
        )
        restored = self._restored(begun.id, back, written)
        if written is ChangeResult.NEVER:
            await self._void(begun, back, now_ms)
            return *unchanged, restored
        return state, cluster, restored

    def _restored(
        self, action_id: int, back: GuardAction, written: ChangeResult
    ) -> list[RestoredField]:
        """Return what a rollback has set back; empty while the API server does not take it."""
        if written is ChangeResult.LATER:
            self._rollbacks_to_write.add(action_id)
            return []
        self._rollbacks_to_write.discard(action_id)
        if back.after is None:
            return []
        return [RestoredField(what=back.what, value=back.after, done=written is ChangeResult.DONE)]

    async def _void(self, record: ActionRecord, action: GuardAction, now_ms: int) -> None:
        void = msgspec.structs.replace(
            action, id=str(record.id), verdict=Verdict.VOID, judged_ms=now_ms
        )
        await self._history.update_action(encode_action(record, void))

    async def _carry_out(self, stored: Object, change: PlannedChange) -> ChangeResult:
        try:
            done = await self._actuator.carry_out(stored, change)
        except ApiError as error:
            log.warning(
                "an action is repeated later: %s", error, extra={"action": change.action_id}
            )
            return ChangeResult.LATER
        if not done:
            return ChangeResult.NEVER
        self._carried_out.add(change.action_id)
        return ChangeResult.DONE
