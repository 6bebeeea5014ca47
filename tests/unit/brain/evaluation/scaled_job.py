"""An elastic job that a Brain may change, evaluated by the real evaluator with a real history.

The API server and the publisher are replaced: they record what is written to them.
"""

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
from benchmarks.brain.load import AGE_MS, MINUTE_MS, Writes, facts, watched_job

from gangline.api.brain.job_advice import AdviceItem
from gangline.api.meta.objects import Status
from gangline.brain.advisers.advice import GuardAction
from gangline.brain.collection.collector import Collector
from gangline.brain.collection.job_digest import ContainerRun, DigestSettings
from gangline.brain.evaluation.evaluator import Evaluator
from gangline.brain.evaluation.history import JobHistory
from gangline.brain.facts.records import Mode, Wishes
from gangline.brain.guard.policy import DEFAULTS, BrainPolicyRule, Policy
from gangline.brain.store.reader import Reader
from gangline.kube.errors import Unreachable

NOW_MS = 1_790_000_000_000
FEW, MANY = 3, 6
GUARD = msgspec.structs.replace(
    DEFAULTS,
    stable_evaluations=1,
    stable_s=0,
    worth=0,
    cooldown_s=2,
    cooldown_restarts=0,
    block_s=7200,
)
"""The cool-down is much shorter than a segment."""


class Plans:
    """Stands for the API server: the sizes that were planned."""

    def __init__(self) -> None:
        self.transport = SimpleNamespace(clock_skew_s=lambda: 0.0)
        self.sizes: list[int] = []
        self.is_away = False

    async def create(self, _resource: Any, plan: Any, _namespace: str) -> None:
        if self.is_away:
            raise Unreachable(Status(message="no response"))
        self.sizes.append(plan.spec.replica_resource_specs["worker"].replicas)


class Published(Writes):
    """Keeps the advice of the last evaluation, and all events."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[AdviceItem] = []
        self.events: list[str] = []

    async def publish(self, target: object, mode: str, items: list[AdviceItem], away: str) -> None:
        self.items = items
        await super().publish(target, mode, items, away)

    def event(self, _target: object, _type: str, _reason: str, message: str) -> None:
        self.events.append(message)


class EvaluatedCluster:
    """An evaluator with its history, and the clock of all of them."""

    def __init__(self, store: Any, client: Any, writes: Any, *rules: BrainPolicyRule) -> None:
        self.now_ms, self.writes = NOW_MS, writes
        self.collector: Any = Collector(client, DigestSettings("c", store.digest), clock=self.clock)
        self.history = JobHistory(store, "c")
        policies: Any = SimpleNamespace(policy=Policy(rules))
        self.evaluator = Evaluator(
            client, self.collector, self.history, policies, writes, writes, clock=self.clock
        )

    def clock(self) -> float:
        return self.now_ms / 1000

    async def evaluate(self) -> None:
        if not self.history.may_act:
            await self.history.lead("test")
        await self.evaluator.cycle()


class ScaledJob(EvaluatedCluster):
    """An elastic job of 3 to 6 workers that a Brain may change, and its clock."""

    def __init__(self, store: Any, **guard: Any) -> None:
        self.plans = Plans()
        settings = msgspec.structs.replace(GUARD, **guard)
        rule = BrainPolicyRule(mode=Mode.APPLY, guard=settings)
        super().__init__(store, self.plans, Published(), rule)
        watched = watched_job(0, FEW, NOW_MS)
        self.uid = watched.meta.uid
        job = watched.observations.job
        assert job is not None
        wishes = Wishes(mode=Mode.APPLY, may=frozenset({"workers"}), named=frozenset({"workers"}))
        watched.observations.job = msgspec.structs.replace(job, workers_min=FEW, wishes=wishes)
        self.collector.jobs[self.uid] = watched
        self.report(FEW, step_s=1.0, count=4)

    def report(self, nodes: int, step_s: float, count: int = 1, **seen: Any) -> None:
        """Let segments of five minutes pass; ``seen`` are further fields of theirs."""
        if count == 1:
            self.now_ms += 5 * MINUTE_MS
        document = json.loads(facts(0, nodes, self.now_ms, count, NOW_MS - AGE_MS))
        for segment in document["segments"]:
            segment["stepSeconds"]["mean"] = step_s
            segment["globalBatch"] = 8 * FEW
            segment["microBatch"] = 8 * FEW // nodes
            segment.update(computeSeconds=0.9 * step_s, syncSeconds=0.05 * step_s, **seen)
        self.collector.receive_facts(self.uid, json.dumps(document))

    def start_worker(self, rank: int) -> None:
        run = ContainerRun(
            pod=f"worker-{rank}", role="worker", rank=rank, node="n", started_ms=self.now_ms
        )
        self.collector.jobs[self.uid].observations.add_run(run)

    async def cycles(self, count: int = 3) -> list[int]:
        """Evaluate ``count`` times, ten seconds apart; returns the sizes planned so far."""
        for _ in range(count):
            self.now_ms += 10_000
            await self.evaluate()
        return self.plans.sizes

    def workers_item(self) -> AdviceItem:
        """The published advice on the number of workers."""
        (item,) = [item for item in self.writes.items if item.what == "workers"]
        return item

    async def actions(self) -> list[GuardAction]:
        """The actions of the job, as the history has them."""
        return await self.history.read(partial(Reader.actions, uid=self.uid)) or []
