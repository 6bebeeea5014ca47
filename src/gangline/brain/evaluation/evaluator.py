"""The cycle: facts to the history, advice to the users, actions to the operator.

A job is evaluated on its own: what goes wrong with one is logged and does not stop the others.
Nothing here is waited for by a job.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from gangline.api.brain.job_advice import APPLIED, HELD, OPEN, AdviceEvidence, AdviceItem
from gangline.api.meta.objects import Object
from gangline.brain.advisers.advice import Advice, What
from gangline.brain.advisers.decisions import ActionRecord, AdviceRecord, AdviceState
from gangline.brain.advisers.view import ClusterView, SimilarRuns
from gangline.brain.advisers.workers import expected_rest_s
from gangline.brain.collection.collector import Collector, WatchedJob
from gangline.brain.collection.policy_config import PolicyWatch
from gangline.brain.evaluation import metrics
from gangline.brain.evaluation.advisers import advise
from gangline.brain.evaluation.chores import Chores
from gangline.brain.evaluation.cluster_facts import ClusterFacts, devices_in_restart
from gangline.brain.evaluation.cluster_round import (
    ClusterRound,
    RoundMember,
    cluster_round,
    queue_entitlements,
    with_allocation,
)
from gangline.brain.evaluation.history import History
from gangline.brain.evaluation.job_state import decode_action, job_state, record_person_edit
from gangline.brain.evaluation.sentences import hold_sentence, published
from gangline.brain.evaluation.trials import Trials
from gangline.brain.evaluation.views import build_view, with_live_facts
from gangline.brain.facts.records import Job, Mode, Run
from gangline.brain.guard.checks import WITHOUT_RESTART
from gangline.brain.guard.decide import block_direction, decide, observe
from gangline.brain.guard.policy import Permission, PolicySubject, effective_permission
from gangline.brain.guard.state import ClusterState, JobState, Verdict
from gangline.brain.publication.actuator import Actuator
from gangline.brain.publication.estimates import run_time_estimate_s, write_estimate
from gangline.brain.publication.items import ROLLED_BACK_EVENT, advice_item
from gangline.brain.publication.plans import BRAIN_PLAN_LABEL
from gangline.brain.publication.publisher import Publisher
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import ApiError

log = logging.getLogger(__name__)

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
ADVICE_LIFE_MS = HOUR_MS
MAX_NAMED_RUNS = 10
HISTORY_AWAY = "history not available"


class Evaluator:
    """Evaluates all running jobs, again and again."""

    def __init__(  # noqa: PLR0913 - the parts that the cycle joins
        self,
        client: ApiClient,
        collector: Collector,
        history: History,
        policies: PolicyWatch,
        publisher: Publisher,
        events: EventRecorder,
        *,
        cluster: str,
        dry_run: bool = False,
        is_leader: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._collector, self._history = client, collector, history
        self._policies, self._publisher, self._events = policies, publisher, events
        self._cluster, self._dry_run = cluster, dry_run
        self._is_leader, self._clock = is_leader, clock
        self._actuator = Actuator(client)
        self._trials = Trials(history, self._actuator, cluster)
        self._states: dict[str, JobState] = {}
        self._seen_jobs: dict[str, Job] = {}
        self._cluster_state = ClusterState()
        self._cluster_facts = ClusterFacts(collector, history)
        self._round = ClusterRound()
        self._members: list[RoundMember] = []
        self._earlier_loaded: set[str] = set()
        self._chores = Chores(
            collector, history, self._actuator, client.transport.clock_skew_s, clock
        )
        self.cycles = 0

    async def run(self, every_s: float) -> None:
        """Evaluate until cancelled."""
        while True:
            with metrics.CYCLE_SECONDS.time():
                try:
                    await self.cycle()
                except ApiError as error:
                    log.warning("a cycle was not completed: %s", error)
                except Exception:
                    # One bad object must not end the advice on all others.
                    log.exception("a cycle failed")
            await asyncio.sleep(every_s)

    async def cycle(self) -> None:
        """Write changed facts, and evaluate each running job once."""
        await self._store_facts()
        nodes = self._collector.nodes()
        await self._cluster_facts.refresh(nodes, self._now_ms())
        cluster_view = self._cluster_facts.view(nodes, self._round.price.price)
        await self._observe_cluster(cluster_view)
        jobs = self._collector.running()
        self._history.forget_cached(job.meta.uid for job in jobs)
        running = {job.meta.uid for job in jobs}
        await self._publisher.withdraw_ended(self._collector.jobs.keys() - running)
        for uid in self._states.keys() - running:
            del self._states[uid]
            self._seen_jobs.pop(uid, None)
        self._members.clear()
        for watched in jobs:
            try:
                await self._evaluate(watched, cluster_view)
            except ApiError as error:
                log.info("a job is evaluated later: %s", error, extra=_fields(watched))
            except Exception:
                log.exception("the evaluation of a job failed", extra=_fields(watched))
        await self._divide_devices(cluster_view)
        await self._chores.run_due()
        self.cycles += 1
        metrics.record_cycle(
            len(jobs),
            self._collector.dropped_facts,
            self._history.problem,
            self._cluster_state.gpus_in_restart,
        )

    async def _divide_devices(self, view: ClusterView) -> None:
        """Decide the sizes of all elastic jobs together; the next cycle applies them."""
        jobs = [run.job for each in self._collector.running() if (run := each.observations.run())]
        elastic = {member.run.job.uid for member in self._members}
        fixed: dict[str, float] = {}
        for job in jobs:
            if job.uid not in elastic:
                devices = sum(role.replicas * role.gpus for role in job.roles)
                fixed[job.queue] = fixed.get(job.queue, 0.0) + devices
        stored = {
            queue.metadata.name: queue.spec.weight for queue in self._collector.queues.items()
        }
        weights = {job.queue: stored.get(job.queue) or 1 for job in jobs}
        entitled = queue_entitlements(weights, sum(node.gpus for node in view.nodes), fixed)
        self._round = await asyncio.to_thread(
            cluster_round,
            tuple(self._members),
            view.nodes,
            tuple(self._collector.groups.items()),
            entitled,
            self._round.price,
            self._now_ms(),
        )

    async def _store_facts(self) -> None:
        for uid, watched in list(self._collector.jobs.items()):
            # Runs of pods that an earlier process has watched keep their numbers.
            if uid in self._earlier_loaded:
                continue
            self._earlier_loaded.add(uid)
            earlier = await self._history.earlier(uid)
            for pod in earlier.pods if earlier else ():
                watched.observations.earlier[pod.role, pod.rank, pod.started_ms] = pod
        self._earlier_loaded &= self._collector.jobs.keys()
        self._history.add(self._collector.changed_runs())
        await self._history.flush()

    async def _observe_cluster(self, view: ClusterView) -> None:
        now_ms = self._now_ms()
        recent = await self._history.recent_actions(now_ms - DAY_MS)
        open_plans = [
            plan
            for plan in self._collector.plans.items()
            if plan.metadata.labels.get(BRAIN_PLAN_LABEL) == "true"
            and plan.status.phase not in ("Succeeded", "Failed")
        ]
        self._cluster_state = msgspec.structs.replace(
            self._cluster_state,
            leader=self._is_leader() and self._history.may_act,
            lease_age_s=0.0 if self._is_leader() else None,
            clock_skew_s=self._client.transport.clock_skew_s(),
            database_up=recent is not None,
            resizes_under_way=len(open_plans),
            resizes_ms=tuple(
                record.at_ms for record in recent or () if record.what not in WITHOUT_RESTART
            ),
            gpus=sum(node.gpus for node in view.nodes),
            gpus_in_restart=self._gpus_in_restart(),
            blocks=(),
        )
        taken_back = [action for action in map(decode_action, recent or ()) if action is not None]
        for action in sorted(taken_back, key=lambda action: action.judged_ms or 0):
            if action.verdict is Verdict.ROLLED_BACK and action.judged_ms is not None:
                self._cluster_state = block_direction(self._cluster_state, action, action.judged_ms)

    def _gpus_in_restart(self) -> int:
        runs = (
            (run, bool(self._collector.open_plans(run.job.namespace, run.job.name)))
            for watched in self._collector.running()
            if (run := watched.observations.run())
        )
        return devices_in_restart(runs)

    async def _evaluate(self, watched: WatchedJob, cluster: ClusterView) -> None:
        run, stored = watched.observations.run(), watched.stored
        if run is None or stored is None:
            return
        permission = self._permission(watched, run.job)
        if permission.mode is Mode.OFF:
            return await self._publisher.withdraw(_reference(watched, stored))
        now_ms = self._now_ms()
        similar = await self._history.similar(run, now_ms)
        samples = [sample for samples in watched.memory.values() for sample in samples]
        view = build_view(run, similar, cluster, now_ms, samples)
        nodes = self._cluster_facts.by_node
        view = with_live_facts(view, watched.observations, watched.servers, nodes)
        state, records = await self._state_of(watched, run, expected_rest_s(view), now_ms)
        view = msgspec.structs.replace(view, probes=state.probes)
        advised = await asyncio.to_thread(advise, view)
        if run.job.kind == "ElasticJob" and permission.may_change(What.WORKERS):
            member = RoundMember(run=run, choices=advised.choices, state=state)
            self._members.append(member)
        advice = with_allocation(self._round, run.job.uid, advised.advice)
        await self._estimate(run, similar)
        state = observe(state, advice, now_ms)
        target = _reference(watched, stored)
        if permission.mode is Mode.APPLY and records:
            state = await self._judge(target, run, records, state, permission, now_ms)
        items = await self._decide(target, run, similar, advice, state, permission, now_ms)
        away = HISTORY_AWAY if self._history.problem else ""
        await self._publisher.publish(target, permission.mode, items, away)

    def _permission(self, watched: WatchedJob, job: Job) -> Permission:
        subject = PolicySubject(
            namespace=job.namespace,
            kind=job.kind,
            owner=job.owner,
            queue=job.queue,
            labels=watched.meta.labels,
        )
        return effective_permission(
            self._policies.policy, subject, job.wishes, dry_run=self._dry_run
        )

    async def _estimate(self, run: Run, similar: SimilarRuns | None) -> None:
        group = self._collector.pod_group_of(run.job.uid)
        if group is not None:
            await write_estimate(self._client, group, run_time_estimate_s(similar))

    async def _state_of(
        self, watched: WatchedJob, run: Run, remaining_s: float | None, now_ms: int
    ) -> tuple[JobState, list[ActionRecord]]:
        uid = run.job.uid
        records = await self._history.actions(uid, now_ms - DAY_MS) or []
        actions = [action for action in map(decode_action, records) if action is not None]
        key = f"{run.job.namespace}/{run.job.name}"
        plans = self._collector.plans.by_index("job", key)
        state = job_state(run, self._states.get(uid), actions, plans, remaining_s)
        state = msgspec.structs.replace(state, tunable=watched.tunable())
        before = self._seen_jobs.get(uid)
        if before is not None and before != run.job:
            state = record_person_edit(state, before, run.job, now_ms)
        self._seen_jobs[uid] = run.job
        self._states[uid] = state
        return state, records

    async def _judge(
        self,
        target: Object,
        run: Run,
        records: list[ActionRecord],
        state: JobState,
        permission: Permission,
        now_ms: int,
    ) -> JobState:
        plans = self._collector.plans.by_index("job", f"{run.job.namespace}/{run.job.name}")
        await self._trials.resume(
            target, run, records, plans, state, self._cluster_state, permission, now_ms
        )
        state, self._cluster_state, taken_back = await self._trials.judge_all(
            target, run, records, plans, state, self._cluster_state, permission, now_ms
        )
        for action in taken_back:
            metrics.ROLLBACKS.inc()
            message = f"{action.what} is set back to {action.before:g}: the change did not help"
            self._events.event(target, "Warning", ROLLED_BACK_EVENT, message)
        return state

    async def _decide(
        self,
        target: Object,
        run: Run,
        similar: SimilarRuns | None,
        advice: list[Advice],
        state: JobState,
        permission: Permission,
        now_ms: int,
    ) -> list[AdviceItem]:
        decisions = []
        for each in advice:
            decision = decide(
                each, state, self._cluster_state, permission, now_ms, permission.guard
            )
            held = hold_sentence(decision.held_because)
            applies = permission.mode is Mode.APPLY
            kept = AdviceState.HELD if applies and held else AdviceState.OPEN
            decisions.append((each, decision, kept, held if applies else ""))
        given = [(each, kept, held) for each, _, kept, held in decisions]
        ids = await self._store_advice(run, permission, given, now_ms)
        items: list[AdviceItem] = []
        for each, decision, kept, held in decisions:
            shown = published(each)
            word = HELD if kept is AdviceState.HELD else OPEN
            if decision.act and self._cluster_state.leader:
                done = await self._trials.begin(
                    target,
                    run,
                    each,
                    decision,
                    state,
                    self._cluster_state,
                    now_ms,
                    advice_id=ids.get(each.key) or None,
                    sentence=shown.sentence,
                    guard=permission.guard,
                )
                if done is not None:
                    state, self._cluster_state = done
                    word = APPLIED
                    metrics.ACTIONS.labels(each.what).inc()
            proof = evidence(each, run.job, similar)
            items.append(advice_item(shown.advice, shown.sentence, proof, word, held))
        self._states[run.job.uid] = state
        return items

    async def _store_advice(
        self,
        run: Run,
        permission: Permission,
        decisions: list[tuple[Advice, AdviceState, str]],
        now_ms: int,
    ) -> dict[tuple[str, str, int, str], int]:
        records = [
            AdviceRecord(
                cluster=self._cluster,
                uid=run.job.uid,
                advice=each,
                at_ms=now_ms,
                expires_ms=now_ms + ADVICE_LIFE_MS,
                mode=permission.mode,
                state=kept,
                held_because=held,
            )
            for each, kept, held in decisions
        ]
        stored = await self._history.write_advice(run.job.uid, records)
        return {record.advice.key: record.id for record in stored}

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)


def evidence(advice: Advice, job: Job, similar: SimilarRuns | None) -> AdviceEvidence:
    """Return the runs behind advice; those of other namespaces are counted and not named."""
    runs = [*similar.runs, *similar.bounds] if similar else []
    meant = [run for run in runs if run.job.uid in set(advice.evidence)]
    named = [run.job.name for run in meant if run.job.namespace == job.namespace]
    ends = [run.job.finished_ms for run in meant if run.job.finished_ms is not None]
    return AdviceEvidence(
        runs=len(advice.evidence),
        of=named[:MAX_NAMED_RUNS],
        namespaces=len({run.job.namespace for run in meant}),
        since=datetime.fromtimestamp(min(ends) / 1000, UTC).replace(microsecond=0)
        if ends
        else None,
    )


def _reference(watched: WatchedJob, stored: Object) -> Object:
    """Return the job with its kind, which objects of an informer may lack."""
    resource = watched.kind.resource
    return msgspec.structs.replace(stored, api_version=resource.api_version, kind=resource.kind)


def _fields(watched: WatchedJob) -> dict[str, str]:
    return {"job": f"{watched.meta.namespace}/{watched.meta.name}"}
