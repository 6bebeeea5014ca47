"""A cycle over many jobs says of each of them what it would say of it alone."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from benchmarks.brain.load import AGE_MS, MINUTE_MS, Writes, ended_run, facts, watched_job

from gangline.brain.evaluation import evaluator
from gangline.brain.facts.records import Outcome
from gangline.brain.store.engine import Store, open_store
from unit.brain.evaluation.scaled_job import NOW_MS, EvaluatedCluster

JOBS, PODS = 7, 3


class Published(Writes):
    """What would be published, by uid of the job."""

    def __init__(self) -> None:
        super().__init__()
        self.items: dict[str, Any] = {}

    async def publish(self, target: Any, mode: str, items: Any, away: str) -> None:
        self.items[target.metadata.uid] = (mode, msgspec.to_builtins(items), away)


class Brain(EvaluatedCluster):
    """An evaluator of jobs whose watches are replaced by a clock and documents of facts."""

    def __init__(self, store: Store, numbers: list[int]) -> None:
        client = SimpleNamespace(transport=SimpleNamespace(clock_skew_s=lambda: 0.0))
        self.published, self.numbers = Published(), numbers
        super().__init__(store, client, self.published)
        for number in numbers:
            watched = watched_job(number, PODS, NOW_MS)
            self.collector.jobs[watched.meta.uid] = watched
            text = facts(number, PODS, NOW_MS, 6, NOW_MS - AGE_MS)
            self.collector.receive_facts(watched.meta.uid, text)

    async def cycle(self) -> None:
        self.now_ms += 5 * MINUTE_MS
        for number, uid in zip(self.numbers, self.collector.jobs, strict=True):
            text = facts(number, PODS, self.now_ms, 1, NOW_MS - AGE_MS)
            self.collector.receive_facts(uid, text)
        await self.evaluate()

    def end(self, uid: str) -> None:
        observed = self.collector.jobs[uid].observations
        assert observed.job is not None
        observed.watched_from_start = True
        ended = {"outcome": Outcome.SUCCEEDED, "finished_ms": self.now_ms}
        observed.add_job(msgspec.structs.replace(observed.job, **ended, observed_ms=self.now_ms))
        self.collector._changed.add(uid)


@contextlib.asynccontextmanager
async def a_brain(path: Path, numbers: list[int]) -> AsyncIterator[Brain]:
    store = open_store(f"sqlite:///{path}", secret=b"a secret", clock_ms=lambda: NOW_MS)
    async with store:
        brain = Brain(store, numbers)
        store.write.runs(ended_run(number, n, PODS, NOW_MS) for number in (0, 1) for n in range(3))
        yield brain


async def test_jobs_together_have_the_advice_of_each_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = list(range(JOBS))
    published = []
    for together in (1, 3, 32):
        monkeypatch.setattr(evaluator, "TOGETHER", together)
        async with a_brain(tmp_path / f"{together}.db", numbers) as brain:
            for _ in range(3):
                await brain.cycle()
            published.append(brain.published.items)
    assert len(published[0]) == JOBS
    assert published[0] == published[1] == published[2]


async def test_mistake_with_one_job_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = evaluator.advise

    def failing(view: Any, earlier: Any) -> Any:
        if view.run.job.uid == "uid-1":
            raise RuntimeError("a mistake")
        return real(view, earlier)

    monkeypatch.setattr(evaluator, "advise", failing)
    async with a_brain(tmp_path / "brain.db", list(range(JOBS))) as brain:
        await brain.cycle()
        assert set(brain.published.items) == {f"uid-{n}" for n in range(JOBS)} - {"uid-1"}


async def test_running_job_is_written_by_what_is_new(tmp_path: Path) -> None:
    """A cycle with one new segment of each job writes that, and not the job's past again."""
    async with a_brain(tmp_path / "brain.db", list(range(JOBS))) as brain:
        await brain.cycle()
        taken: list[Any] = []
        put = brain.history._store.buffer.put
        brain.history._store.buffer.put = lambda given: put(  # type: ignore[method-assign]
            [taken.append(fact) or fact for fact in given]
        )
        await brain.cycle()
        kinds = [type(fact.record).__name__ for fact in taken]
        assert kinds == ["SegmentFacts"] * JOBS
        # The record of a job that has ended is complete.
        taken.clear()
        brain.end("uid-3")
        await brain.evaluator.cycle()
        kinds = [type(fact.record).__name__ for fact in taken]
        assert kinds.count("SegmentFacts") == 8
        assert kinds.count("PodRun") == PODS


async def test_more_facts_than_memory_holds_are_written_in_parts(tmp_path: Path) -> None:
    async with a_brain(tmp_path / "brain.db", list(range(JOBS))) as brain:
        store = brain.history._store
        store.buffer.capacity = 30  # a job has 11 facts
        await brain.cycle()
        assert store.buffer.dropped == 0
        for number in range(JOBS):
            run = store.read.run("c", f"uid-{number}")
            assert run is not None
            assert (len(run.segments), len(run.pods)) == (7, PODS)
