"""The cycle: facts to the history, advice to the users, actions to the operator.

A job is evaluated on its own: what goes wrong with one is logged and does not stop the others. No
process of a job waits for the Brain. Rare work (outdated plans, retention, trials of ended jobs) is
done at the end of a cycle.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from msgspec.structs import replace
from prometheus_client import Counter, Gauge, Histogram

from gangline.api.brain.job_advice import APPLIED, HELD, OPEN, AdviceItem
from gangline.api.figures import plain_number
from gangline.api.jobs.elastic import ScalePlan
from gangline.brain.advisers.advice import Advice, GuardAction, Reason, Verdict, What
from gangline.brain.advisers.explain import PublishedAdvice, published, published_reason
from gangline.brain.advisers.view import AdviserView, ClusterView
from gangline.brain.allocation import (
    AllocationJob,
    ClusterRound,
    allocation_job,
    cluster_round,
    queue_entitlements,
    with_allocation,
)
from gangline.brain.collection.collector import Collector, WatchedJob
from gangline.brain.collection.policy_config import PolicyWatch
from gangline.brain.evaluation.advisers import (
    Advised,
    Fitted,
    advise,
    build_view,
    evidence,
    with_live_facts,
)
from gangline.brain.evaluation.cluster_facts import (
    ClusterHealth,
    FreeCapacity,
    GrowthCheck,
    NodeRequests,
)
from gangline.brain.evaluation.history import FactFlow, JobHistory
from gangline.brain.evaluation.trials import (
    EvaluatedJob,
    Trials,
    job_state,
    prediction_errors,
    record_person_edit,
)
from gangline.brain.facts.records import Mode, RecordedJob
from gangline.brain.guard.decide import WITHOUT_RESTART, decide, observe
from gangline.brain.guard.policy import GuardJobState, effective_permission
from gangline.brain.publication import (
    BRAIN_PLAN_LABEL,
    ROLLED_BACK_EVENT,
    Actuator,
    Publisher,
    advice_item,
    is_under_way,
    run_time_estimate_s,
    write_estimate,
)
from gangline.brain.store.reader import MAX_RECENT_ACTIONS, Reader
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import ApiError

log = logging.getLogger(__name__)

CLEAN_UP_S = 600.0


CYCLE_SECONDS = Histogram(
    "gangline_brain_cycle_seconds",
    "Time of one evaluation of all running jobs.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30),
)
ACTIONS = Counter("gangline_brain_actions_total", "Actions begun, by field.", ["what"])
ROLLBACKS = Counter("gangline_brain_rollbacks_total", "Actions that were rolled back.")
_JOBS = Gauge("gangline_brain_running_jobs", "Jobs that are evaluated.")
_DROPPED = Gauge("gangline_brain_dropped_facts", "Facts that were not believed, since the start.")
_AVAILABLE = Gauge("gangline_brain_history_available", "1 while the database answers, else 0.")
_RESTARTING = Gauge(
    "gangline_brain_devices_in_restart", "Devices of jobs whose size is being changed."
)


DAY_MS = 86_400_000
TOGETHER = 32
"""Jobs whose advice is computed in one call of a thread."""
HISTORY_AWAY = "history not available"


class Evaluator:
    def __init__(  # noqa: PLR0913 - the parts that the cycle joins
        self,
        client: ApiClient,
        collector: Collector,
        history: JobHistory,
        policies: PolicyWatch,
        publisher: Publisher,
        events: EventRecorder,
        *,
        dry_run: bool = False,
        growth_check: GrowthCheck | None = None,
        is_leader: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._collector, self._history = client, collector, history
        self._policies, self._publisher, self._events = policies, publisher, events
        self._dry_run = dry_run
        self._is_leader, self._clock = is_leader, clock
        self._actuator = Actuator(client)
        self._trials = Trials(history, self._actuator, self._report_rollback)
        self._capacity = FreeCapacity(growth_check)
        self._requests = NodeRequests(client)
        self._memories: dict[str, _JobMemory] = {}
        """By uid of the job."""
        self._cluster_facts = ClusterHealth(collector, history)
        self._round = ClusterRound()
        self._members: list[AllocationJob] = []
        self._prediction_errors: dict[str, float] = {}
        self._actions: dict[str, list[GuardAction]] | None = {}
        """Those of the last day, by uid of the job; None: they are read for each job."""
        self._facts = FactFlow(collector, history, client.transport.clock_skew_s, clock)
        self._cleaned_at: float | None = None
        self.cycles = 0

    async def run(self, every_s: float) -> None:
        while True:
            with CYCLE_SECONDS.time():
                try:
                    await self.cycle()
                except ApiError as error:
                    log.warning("a cycle was not completed: %s", error)
                except Exception:
                    # One bad object must not end the advice on all others.
                    log.exception("a cycle failed")
            await asyncio.sleep(every_s)

    async def cycle(self) -> None:
        """Write changed facts, and evaluate each running job once.

        1. Facts first: advice and actions refer to jobs that the history must have.
        2. The cluster: failures, speeds of nodes, open plans and blocks that all jobs share.
        3. Advice of jobs that have ended is withdrawn, and what is remembered of them dropped.
        4. Each job, in groups: prepare, advise in a thread, judge earlier actions, decide, publish.
        5. The sizes of all elastic jobs together; step 4 of the next cycle applies them.
        """
        await self._facts.store()
        nodes = self._collector.nodes()
        await self._cluster_facts.refresh(nodes, self._now_ms())
        cluster_view = self._cluster_facts.view(nodes, self._round.price.price)
        await self._observe_cluster(cluster_view)
        jobs = self._collector.running()
        self._history.forget_cached(job.meta.uid for job in jobs)
        running = {job.meta.uid for job in jobs}
        await self._publisher.withdraw_ended(self._collector.jobs.keys() - running)
        for uid in self._memories.keys() - running:
            del self._memories[uid]
        self._members.clear()
        for first in range(0, len(jobs), TOGETHER):
            await self._evaluate(jobs[first : first + TOGETHER], cluster_view)
        await self._divide_devices(cluster_view)
        await self._clean_up()
        await self._facts.prune()
        self.cycles += 1
        _JOBS.set(len(jobs))
        _DROPPED.set(self._collector.dropped_facts)
        _RESTARTING.set(self._trials.cluster.gpus_in_restart)
        _AVAILABLE.set(0 if self._history.problem else 1)

    async def _clean_up(self) -> None:
        """Delete outdated plans, and end trials of ended jobs, every ten minutes."""
        now, now_ms = time.monotonic(), self._now_ms()
        is_due = self._cleaned_at is None or now - self._cleaned_at >= CLEAN_UP_S
        if not (is_due and self._facts.knows_time):
            return
        self._cleaned_at = now
        date = datetime.fromtimestamp(now_ms / 1000, UTC)
        deleted = await self._actuator.delete_outdated(self._collector.plans.items(), date)
        if deleted:
            log.info("finished plans were deleted", extra={"plans": deleted})
        running = {job.meta.uid for job in self._collector.running()}
        for action in await self._history.read(Reader.open_actions) or ():
            if action.job not in running:
                # The job ended first: nothing can be concluded from it.
                ended = replace(action, verdict=Verdict.OVERTAKEN, judged_ms=now_ms)
                await self._history.update_action(ended)

    async def _divide_devices(self, view: ClusterView) -> None:
        jobs = [job for watched in self._collector.running() if (job := watched.observations.job)]
        elastic = {member.key for member in self._members}
        fixed: dict[str, float] = {}
        for job in jobs:
            if job.uid not in elastic:
                fixed[job.queue] = fixed.get(job.queue, 0.0) + _devices(job)
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

    async def _observe_cluster(self, view: ClusterView) -> None:
        now_ms = self._now_ms()
        read = partial(Reader.recent_actions, since_ms=now_ms - DAY_MS)
        stored = await self._history.read(read)
        recent = stored or []
        self._actions = _by_job(recent)
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        under_way = [plan for plan in self._collector.plans.items() if is_under_way(plan, now)]
        changing = {(plan.metadata.namespace, plan.job_name) for plan in under_way}
        jobs = [job for watched in self._collector.running() if (job := watched.observations.job)]
        rolled_back = [action for action in recent if action.verdict is Verdict.ROLLED_BACK]
        self._trials.cluster = replace(
            self._trials.cluster,
            leader=self._is_leader() and self._history.may_act,
            knows_time=self._facts.knows_time,
            database_up=stored is not None,
            resizes_under_way=sum(
                plan.metadata.labels.get(BRAIN_PLAN_LABEL) == "true" for plan in under_way
            ),
            resizes_ms=tuple(
                action.at_ms
                for action in recent
                if action.what not in WITHOUT_RESTART and action.verdict is not Verdict.VOID
            ),
            gpus=sum(node.gpus for node in view.nodes),
            gpus_in_restart=sum(_devices(j) for j in jobs if (j.namespace, j.name) in changing),
            rolled_back=tuple(sorted(rolled_back, key=lambda action: action.judged_ms or 0)),
        )
        self._prediction_errors = prediction_errors(recent)

    async def _evaluate(self, jobs: Sequence[WatchedJob], cluster: ClusterView) -> None:
        """Evaluate some jobs, whose advice is computed in one call of a thread."""
        prepared: list[_PreparedJob] = []
        for watched in jobs:
            with _isolated(watched):
                job = await self._prepare(watched, cluster)
                if job is not None:
                    prepared.append(job)
        advised = await asyncio.to_thread(_advise_all, prepared)
        for job, advice in zip(prepared, advised, strict=True):
            if advice is None:
                continue
            with _isolated(job.watched):
                items = await self._conclude(job, advice)
                away = HISTORY_AWAY if self._history.problem else ""
                await self._publisher.publish(job.stored, job.permission.mode, items, away)

    async def _prepare(self, watched: WatchedJob, cluster: ClusterView) -> "_PreparedJob | None":
        """Collect what advice on a job rests on; None if there is to be none."""
        run, stored = watched.observations.run(), watched.stored
        if run is None or stored is None:
            return None
        policy, labels = self._policies.policy, watched.meta.labels
        permission = effective_permission(policy, run.job, labels, dry_run=self._dry_run)
        # Objects of an informer may lack their kind.
        resource = watched.kind.resource
        target = replace(stored, api_version=resource.api_version, kind=resource.kind)
        if permission.mode is Mode.OFF:
            await self._publisher.withdraw(target)
            return None
        uid, now_ms = run.job.uid, self._now_ms()
        similar = await self._history.similar(run, now_ms)
        if run.job.strategy == "ps":
            cluster = await self._requests.applied(cluster, now_ms)
        samples = [sample for samples in watched.memory.values() for sample in samples]
        view = build_view(run, similar, cluster, now_ms, memory_samples=tuple(samples))
        nodes = self._cluster_facts.by_node
        view = with_live_facts(view, watched.observations, watched.servers, nodes)
        if self._actions is not None:
            actions = self._actions.get(uid, [])
        else:
            read = partial(Reader.actions, uid=uid, since_ms=now_ms - DAY_MS)
            actions = await self._history.read(read) or []
        plans = self._collector.plans.by_index("job", f"{run.job.namespace}/{run.job.name}")
        state = self._state_of(watched, view, actions, plans)
        missed = self._prediction_errors.get(state.family, 0.0)
        view = replace(view, probes=state.probes, prediction_error=missed)
        memory = self._memories[uid]
        if watched.problems and watched.problems != memory.problems:
            mistakes = "; ".join(watched.problems)
            self._events.event(target, "Warning", "InvalidAnnotation", mistakes)
        memory.problems = watched.problems
        return _PreparedJob(
            target, run, actions, plans, permission, now_ms, state,
            watched=watched, view=view, memory=memory,
        )  # fmt: skip

    async def _conclude(self, job: "_PreparedJob", advised: Advised) -> list[AdviceItem]:
        """Judge what was done, decide what to do, and return what is published."""
        run, permission = job.run, job.permission
        job.memory.fitted = advised.fitted
        if run.job.kind == "ElasticJob" and permission.may_change(What.WORKERS):
            sized = allocation_job(run, advised.fitted.choices, job.state)
            self._members += [sized] if sized is not None else []
        advice = with_allocation(self._round, run.job.uid, advised.advice)
        group = self._collector.pod_group_of(run.job.uid)
        if group is not None:
            await write_estimate(self._client, group, run_time_estimate_s(job.view.similar))
        job.state = observe(job.state, advice, job.now_ms)
        if permission.mode is Mode.APPLY and job.actions:
            await self._trials.resume(job)
            await self._trials.judge_all(job)
        items = await self._decide(job, advice)
        job.memory.state = job.state
        return items

    def _state_of(
        self,
        watched: WatchedJob,
        view: AdviserView,
        actions: Sequence[GuardAction],
        plans: Sequence[ScalePlan],
    ) -> GuardJobState:
        job, uid = view.run.job, view.run.job.uid
        memory = self._memories.get(uid)
        state = job_state(view, memory.state if memory else None, actions, plans)
        bounds = (*state.bounds, *self._capacity.bounds(uid, view.now_ms))
        state = replace(state, tunable=watched.tunable(), bounds=bounds)
        if memory is None:
            memory = self._memories[uid] = _JobMemory(job, state)
        elif memory.job != job:
            state = record_person_edit(state, memory.job, job, view.now_ms)
        memory.job, memory.state = job, state
        return state

    def _report_rollback(
        self, job: EvaluatedJob, back: GuardAction, done: bool, reason: Reason | None
    ) -> None:
        why = _sentence(reason) or "The change did not help."
        former = plain_number(back.after or 0.0)
        how, obstacle = "is", "."
        if done:
            ROLLBACKS.inc()
        else:
            how, obstacle = "cannot be", ": the job has nothing that it could be written to."
        message = f"{back.what} {how} set back to {former}{obstacle} {why}"
        self._events.event(job.stored, "Warning", ROLLED_BACK_EVENT, message)

    async def _decide(self, job: "_PreparedJob", advice: list[Advice]) -> list[AdviceItem]:
        run, permission, memory = job.run, job.permission, job.memory
        applies = permission.mode is Mode.APPLY
        items: list[AdviceItem] = []
        former, memory.shown = memory.shown, {}
        # All are decided by the state before the first is carried out: one may not hold another.
        decisions = [
            decide(item, job.state, self._trials.cluster, permission, job.now_ms) for item in advice
        ]
        for item, decision in zip(advice, decisions, strict=True):
            # Most of it stays, and to write a sentence takes long.
            source, shown = former.get(item.key, (None, None))
            if shown is None or source != item:
                shown = published(item)
            memory.shown[item.key] = item, shown
            held = self._capacity.reason(run.job.uid, decision.held_because)
            why = held if applies else None
            word = HELD if why is not None else OPEN
            if decision.act and self._trials.cluster.leader:
                group = self._collector.pod_group_of(run.job.uid)
                name = group.metadata.name if group else run.job.name
                gang = f"{run.job.namespace}/{name}"
                why = await self._capacity.lacks(
                    run.job.uid, gang, item, decision.value or 0.0, job.now_ms
                ) or await self._trials.begin(job, item, decision, shown.sentence)
                word = HELD if why is not None else APPLIED
                if why is None:
                    ACTIONS.labels(item.what).inc()
            proof = evidence(item, run.job, job.view.similar)
            items.append(advice_item(shown.advice, shown.sentence, proof, word, _sentence(why)))
        return items

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)


@dataclass(slots=True, kw_only=True)
class _PreparedJob(EvaluatedJob):
    """A job with what advice on it rests on."""

    watched: WatchedJob
    view: AdviserView
    memory: "_JobMemory"


@dataclass(slots=True)
class _JobMemory:
    """What is remembered of a running job from one cycle to the next."""

    job: RecordedJob
    state: GuardJobState
    fitted: Fitted | None = None
    problems: tuple[str, ...] = ()
    """Mistakes in its annotations, which an event has shown."""
    shown: dict[tuple[str, str, int, str], tuple[Advice, PublishedAdvice]] = field(
        default_factory=dict
    )
    """Its advice, and how it was published, by subject."""


def _advise_all(asked: Sequence[_PreparedJob]) -> list[Advised | None]:
    advised: list[Advised | None] = []
    for job in asked:
        advised.append(None)
        with _isolated(job.watched):
            advised[-1] = advise(job.view, job.memory.fitted)
    return advised


@contextlib.contextmanager
def _isolated(watched: WatchedJob) -> Iterator[None]:
    """Log what goes wrong with one job, so that the others are evaluated."""
    fields = {"job": f"{watched.meta.namespace}/{watched.meta.name}"}
    try:
        yield
    except ApiError as error:
        log.info("a job is evaluated later: %s", error, extra=fields)
    except Exception:
        log.exception("the evaluation of a job failed", extra=fields)


def _devices(job: RecordedJob) -> int:
    return sum(role.replicas * role.gpus for role in job.roles)


def _sentence(reason: Reason | None) -> str:
    return "" if reason is None else published_reason(reason)[1]


def _by_job(actions: Sequence[GuardAction]) -> dict[str, list[GuardAction]] | None:
    """Return the actions of each job; None if these are so many that some are missing."""
    by_job: dict[str, list[GuardAction]] = {}
    for action in actions:
        by_job.setdefault(action.job, []).append(action)
    return by_job if len(actions) < MAX_RECENT_ACTIONS else None
