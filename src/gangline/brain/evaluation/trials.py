"""Begins actions and judges them. What happened is in the store before it is in the cluster.

Order of an action: its record with a number, then the plan that is named by the number. Order of a
rollback: the verdict, the record of the rollback, its plan. A process that ends in between leaves
what ``resume`` carries out again: a plan that exists already collides with it.
"""

import logging
from collections.abc import Sequence

import msgspec

from gangline.api.failure import DEVICE_OUT_OF_MEMORY
from gangline.api.jobs.elastic import ScalePlan
from gangline.api.meta.objects import Object
from gangline.brain.advisers.advice import Advice
from gangline.brain.advisers.decisions import ActionRecord
from gangline.brain.evaluation.history import History
from gangline.brain.evaluation.job_state import decode_action, encode_action
from gangline.brain.facts.records import Outcome, Run
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
    DEFAULTS,
    Action,
    ClusterState,
    GuardSettings,
    JobState,
    Verdict,
)
from gangline.brain.guard.trial import TrialEvents, baseline, judge
from gangline.brain.publication.actuator import Actuator
from gangline.brain.publication.plans import PLANNED, PlannedChange, plan_name
from gangline.kube.errors import ApiError

log = logging.getLogger(__name__)

RESUME_MS = 3_600_000
"""Older actions are not carried out again: the job has changed since."""


class Trials:
    """The actions of all jobs."""

    def __init__(self, history: History, actuator: Actuator, cluster: str) -> None:
        self._history, self._actuator, self._cluster = history, actuator, cluster
        self._carried_out: set[int] = set()
        """Actions that this process has seen in the cluster; a plan that a person deletes later is
        not created again."""

    async def begin(  # noqa: PLR0913 - what a decision is made of
        self,
        stored: Object,
        run: Run,
        advice: Advice,
        decision: Decision,
        state: JobState,
        cluster: ClusterState,
        now_ms: int,
        *,
        advice_id: int | None,
        sentence: str,
        guard: GuardSettings = DEFAULTS,
    ) -> tuple[JobState, ClusterState] | None:
        """Carry a decision out; None if it did not happen."""
        if decision.value is None:
            return None
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
            return None
        change = _change(begun.id, action, decision.value)
        change = msgspec.structs.replace(change, sentence=sentence, advice_id=advice_id)
        await self._carry_out(stored, change)
        return state, cluster

    async def resume(  # noqa: PLR0913, PLR0917 - what a decision is made of
        self,
        stored: Object,
        run: Run,
        records: Sequence[ActionRecord],
        plans: Sequence[ScalePlan],
        state: JobState,
        cluster: ClusterState,
        permission: Permission,
        now_ms: int,
    ) -> None:
        """Carry out what an earlier process, or an earlier attempt, began and did not write."""
        known = {plan.metadata.name for plan in plans}
        actions = {record.id: (record, decode_action(record)) for record in records}
        taken_back = {action.rollback_of for _, action in actions.values() if action}
        for record, action in actions.values():
            if action is None or record.id in self._carried_out:
                continue
            if now_ms - record.at_ms > RESUME_MS:
                continue
            if action.rolled_back and action.id not in taken_back:
                if await self._roll_back(stored, run, action, state, cluster, permission, now_ms):
                    self._carried_out.add(record.id)
            elif record.verdict == Verdict.PENDING or action.rollback_of:
                await self._write_again(stored, run, record, action, known)

    async def _write_again(
        self, stored: Object, run: Run, record: ActionRecord, action: Action, plans: set[str]
    ) -> None:
        if action.after is None:
            return
        if action.what in PLANNED and plan_name(run.job.name, record.id) in plans:
            self._carried_out.add(record.id)
            return
        change = _change(record.id, action, action.after)
        change = msgspec.structs.replace(change, advice_id=record.advice_id)
        await self._carry_out(stored, change)

    async def judge_all(  # noqa: PLR0913, PLR0917 - what a decision is made of
        self,
        stored: Object,
        run: Run,
        records: Sequence[ActionRecord],
        plans: Sequence[ScalePlan],
        state: JobState,
        cluster: ClusterState,
        permission: Permission,
        now_ms: int,
    ) -> tuple[JobState, ClusterState, list[Action]]:
        """Judge open actions; take back what made the job worse. Returns what was taken back."""
        rolled_back: list[Action] = []
        for record in records:
            action = decode_action(record)
            if action is None or action.rolled_back or action.rollback_of:
                continue
            events = trial_events(run, action, plans, record)
            verdict = judge(action, run.segments, now_ms, events, permission.guard)
            if run.job.outcome is not Outcome.RUNNING:
                verdict = msgspec.structs.replace(verdict, verdict=Verdict.OVERTAKEN)
            if verdict.verdict == action.verdict:
                continue
            judged, state = end_action(action, verdict.verdict, state, now_ms)
            if verdict.verdict is Verdict.ROLLED_BACK:
                judged = msgspec.structs.replace(judged, rolled_back=True)
            if not await self._history.update_action(encode_action(record, judged)):
                continue
            if verdict.verdict is Verdict.ROLLED_BACK:
                cluster = block_direction(cluster, judged, now_ms, permission.guard)
                done = await self._roll_back(
                    stored, run, judged, state, cluster, permission, now_ms
                )
                if done is not None:
                    state, cluster = done
                    rolled_back.append(judged)
        return state, cluster, rolled_back

    async def _roll_back(
        self,
        stored: Object,
        run: Run,
        action: Action,
        state: JobState,
        cluster: ClusterState,
        permission: Permission,
        now_ms: int,
    ) -> tuple[JobState, ClusterState] | None:
        # The record is marked first, so that a rollback that is not written yet is made once.
        unmarked = msgspec.structs.replace(action, rolled_back=False)
        guard = permission.guard
        decision = decide_rollback(unmarked, state, cluster, permission, now_ms, guard)
        if action.before is None or not decision.act:
            return None
        back, state, cluster = begin_rollback("0", action, state, cluster, now_ms)
        record = ActionRecord(
            cluster=self._cluster, uid=run.job.uid, what=action.what, at_ms=now_ms
        )
        begun = await self._history.begin_action(encode_action(record, back))
        if begun is None:
            return None
        change = _change(begun.id, back, action.before)
        sentence = f"action {action.id} is rolled back"
        await self._carry_out(stored, msgspec.structs.replace(change, sentence=sentence))
        return state, cluster

    async def _carry_out(self, stored: Object, change: PlannedChange) -> None:
        try:
            if await self._actuator.carry_out(stored, change):
                self._carried_out.add(change.action_id)
        except ApiError as error:
            log.warning(
                "an action is repeated later: %s", error, extra={"action": change.action_id}
            )


def _change(action_id: int, action: Action, value: float) -> PlannedChange:
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
    failed = any(
        plan.metadata.name == plan_name(run.job.name, record.id) and plan.status.phase == "Failed"
        for plan in plans
    )
    return TrialEvents(formed=formed, oom=oom, overtaken=failed)
