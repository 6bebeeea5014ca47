"""A Brain that ends before or after any write, and its successor: one plan for each action."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gangline.api.jobs.elastic import ElasticJob, ScalePlan
from gangline.api.resources import ELASTIC_JOBS, SCALE_PLANS
from gangline.brain.advisers.advice import Advice, GuardAction, Reason, Verdict, What
from gangline.brain.advisers.view import AdviserView
from gangline.brain.evaluation.history import JobHistory
from gangline.brain.evaluation.trials import EvaluatedJob, Trials, job_state
from gangline.brain.facts.records import Mode, PodRun, RecordedJob, Run
from gangline.brain.guard.decide import Decision
from gangline.brain.guard.policy import ClusterState, Permission
from gangline.brain.publication import Actuator
from gangline.brain.store.engine import Store, open_store
from gangline.brain.store.reader import Reader
from gangline.kube.client.client import ApiClient
from gangline.local.custom_resources import install_definitions

CLUSTER, NOW_MS = "cluster", 1_795_168_800_000
JOB = RecordedJob(
    cluster=CLUSTER,
    uid="uid",
    namespace="default",
    name="train",
    stem="train",
    kind="ElasticJob",
    submitted_ms=NOW_MS - 3_600_000,
    started_ms=NOW_MS - 3_500_000,
    workers_min=2,
    workers_max=8,
    workers_asked=4,
)
ADVICE = Advice(what=What.WORKERS, role="worker", was=4, value=6, reason=Reason(code="Test"))
LEADER = ClusterState(leader=True, knows_time=True)
ALLOWED = Permission(mode=Mode.APPLY)


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


class FailingActuator(Actuator):
    """Ends before or after the write of a plan."""

    def __init__(self, client: ApiClient, at: str) -> None:
        super().__init__(client)
        self._at = at

    async def carry_out(self, job: Any, action: GuardAction, *others: Any) -> bool:
        if self._at == "before the plan":
            raise Killed
        done = await super().carry_out(job, action, *others)
        if self._at == "after the plan":
            raise Killed
        return done


class Brain:
    """One process: its trials, and what it reads of the cluster."""

    def __init__(self, client: ApiClient, store: Store, job: ElasticJob, at: str = "") -> None:
        self.client, self.job = client, job
        self.history = JobHistory(store, CLUSTER)
        self.trials = Trials(self.history, FailingActuator(client, at), lambda *_: None)
        self.trials.cluster = LEADER

    async def plans(self) -> list[ScalePlan]:
        return (await self.client.list(SCALE_PLANS, "default")).items

    async def begin(self, run: Run) -> None:
        state = job_state(AdviserView(now_ms=NOW_MS, run=run), None, [], [])
        decision = Decision(value=6.0)
        job = EvaluatedJob(self.job, run, [], [], ALLOWED, NOW_MS, state)
        await self.trials.begin(job, ADVICE, decision, "why")

    async def cycle(self, run: Run, now_ms: int) -> None:
        """What an evaluation does with the actions of a job."""
        actions = await self.history.read(partial(Reader.actions, uid=JOB.uid)) or []
        state = job_state(AdviserView(now_ms=now_ms, run=run), None, actions, [])
        job = EvaluatedJob(self.job, run, actions, await self.plans(), ALLOWED, now_ms, state)
        await self.trials.resume(job)
        await self.trials.judge_all(job)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await asyncio.to_thread(open_store, f"sqlite:///{tmp_path}/brain.db") as opened:
        yield opened


@pytest.fixture
async def job(client: ApiClient, store: Store) -> ElasticJob:
    await install_definitions(client)
    containers = [{"name": "main", "image": "train"}]
    worker = {"replicas": 4, "template": {"spec": {"containers": containers}}}
    written = {
        "apiVersion": ELASTIC_JOBS.api_version,
        "kind": "ElasticJob",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"replicaSpecs": {"worker": worker}},
    }
    created = await client.create(ELASTIC_JOBS, written, "default")
    history = JobHistory(store, CLUSTER)
    history.add([Run(job=JOB)])
    assert await history.flush()
    return created


async def lead(brain: Brain, name: str) -> None:
    assert await brain.history.lead(name)


@pytest.mark.parametrize("at", ["before the plan", "after the plan", ""])
async def test_successor_leaves_one_plan(
    client: ApiClient, store: Store, job: ElasticJob, at: str
) -> None:
    first = Brain(client, store, job, at)
    await lead(first, "first")
    if at:
        with pytest.raises(Killed):
            await first.begin(Run(job=JOB))
    else:
        await first.begin(Run(job=JOB))
    second = Brain(client, store, job)
    await lead(second, "second")
    for cycle in range(3):
        await second.cycle(Run(job=JOB), NOW_MS + 1000 * cycle)
    plans = await second.plans()
    assert [plan.metadata.name for plan in plans] == ["train-brain-1"]
    assert plans[0].metadata.labels["scale-type"] == "auto"
    assert plans[0].spec.replica_resource_specs["worker"].replicas == 6
    assert plans[0].metadata.owner_references[0].uid == job.metadata.uid


@pytest.mark.parametrize("at", ["before the plan", "after the plan", ""])
async def test_rollback_is_made_once(
    client: ApiClient, store: Store, job: ElasticJob, at: str
) -> None:
    first = Brain(client, store, job)
    await lead(first, "first")
    await first.begin(Run(job=JOB))
    (plan,) = await first.plans()
    finished = {"status": {"phase": "Succeeded"}}
    await client.patch(SCALE_PLANS, plan.metadata.name, finished, "default", subresource="status")
    killed = PodRun(
        role="worker", rank=5, number=0, started_ms=NOW_MS, ended_ms=NOW_MS + 60_000, oom=True
    )
    worse = Run(job=JOB, pods=(killed,))
    dying = Brain(client, store, job, at)
    await lead(dying, "dying")
    dying.trials._carried_out.add(1)
    if at:
        with pytest.raises(Killed):
            await dying.cycle(worse, NOW_MS + 120_000)
    else:
        await dying.cycle(worse, NOW_MS + 120_000)
    last = Brain(client, store, job)
    await lead(last, "last")
    for cycle in range(3):
        await last.cycle(worse, NOW_MS + 121_000 + 1000 * cycle)
    plans = {each.metadata.name: each for each in await last.plans()}
    assert sorted(plans) == ["train-brain-1", "train-brain-2"]
    assert plans["train-brain-2"].spec.replica_resource_specs["worker"].replicas == 4
    records = await last.history.read(partial(Reader.actions, uid=JOB.uid)) or []
    assert records[0].verdict == Verdict.ROLLED_BACK
    assert records[1].rollback_of == 1
