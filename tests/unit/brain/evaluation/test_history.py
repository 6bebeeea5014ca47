"""What the evaluation gives to the history, and when it reads similar runs again."""

import random
from typing import Any

import pytest

from brain_records import NOW_MS, a_job, a_pod, a_run, a_running_job, a_segment
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.evaluation.history import JobHistory
from gangline.brain.facts.records import Run
from gangline.brain.store.context import FactBuffer, facts_of
from gangline.brain.store.engine import Store
from gangline.brain.store.errors import StoreUnavailable
from gangline.brain.store.reader import Reader
from gangline.brain.store.writer import Written

CLUSTER = "cluster"


def a_state(choose: random.Random, segments: int) -> Run:
    """A running job after some segments; pods change at random."""
    pods = [
        a_pod(rank, ended_ms=None, peak_memory_bytes=choose.choice([1 << 30, 2 << 30]))
        for rank in range(choose.randrange(4))
    ]
    return Run(
        job=a_running_job(observed_ms=choose.randrange(2)),
        segments=tuple(
            a_segment(n, steps=choose.choice([300, 301])) for n in range(segments, 0, -1)
        ),
        pods=tuple(pods),
    )


@pytest.mark.parametrize("seed", range(30))
def test_what_changed_is_as_good_as_everything_again(seed: int) -> None:
    choose = random.Random(seed)
    before, after = a_state(choose, choose.randrange(5)), a_state(choose, choose.randrange(9))
    whole, changed = FactBuffer(), FactBuffer()
    for buffer in (whole, changed):
        buffer.put(facts_of(before))
    whole.put(facts_of(after))
    new = list(facts_of(after, before))
    changed.put(new)
    assert sorted(map(repr, changed.take(99))) == sorted(map(repr, whole.take(99)))
    known = [*facts_of(before)]
    assert new == [fact for fact in facts_of(after) if fact not in known]


async def test_everything_is_given_again_after_a_loss(store: Store) -> None:
    history = JobHistory(store, CLUSTER)
    run = Run(job=a_running_job(), segments=(a_segment(2), a_segment(1)), pods=(a_pod(),))
    history.add([run])
    assert await history.flush()
    history.add([run])
    assert store.buffer.take(99) == []
    store.buffer.dropped += 1
    history.add([run])
    assert store.buffer.take(99) == list(facts_of(run))


async def test_everything_is_given_again_after_an_outage(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = JobHistory(store, CLUSTER)
    run = Run(job=a_running_job(), segments=(a_segment(1),))
    history.add([run])
    assert await history.flush()

    async def unavailable() -> Written:
        raise StoreUnavailable("away")

    with monkeypatch.context() as away:
        away.setattr(store, "flush", unavailable)
        assert not await history.flush()
    history.add([run])
    assert len(store.buffer) == 2


async def test_similar_runs_are_read_again_when_a_similar_job_has_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = JobHistory(store, CLUSTER)
    reads: list[str] = []
    real = Reader.similar_runs

    def counted(self: Reader, asked: Any, **how: Any) -> Any:
        reads.append(asked.uid)
        return real(self, asked, **how)

    monkeypatch.setattr(Reader, "similar_runs", counted)
    history.add(a_run(n, spec_digest="spec") for n in (3, 4, 5))
    await history.flush()
    asked = Run(job=a_running_job(1, spec_digest="spec"))

    async def found() -> set[str]:
        similar = await history.similar(asked, NOW_MS)
        return {run.job.uid for run in similar.runs}

    assert await found() == {"uid-3", "uid-4", "uid-5"}
    # One of another family, and one that the level of the look-up does not reach.
    strange = a_run(6, stem="other", namespace="speech", model=None)
    history.add([strange, a_run(7, spec_digest="another", command_digest="another")])
    await history.flush()
    assert await found() == {"uid-3", "uid-4", "uid-5"}
    assert len(reads) == 1
    history.add([a_run(8, spec_digest="spec")])
    await history.flush()
    assert await found() == {"uid-3", "uid-4", "uid-5", "uid-8"}
    assert len(reads) == 2
    assert await found() == {"uid-3", "uid-4", "uid-5", "uid-8"}
    assert len(reads) == 2


async def test_any_level_counts_for_a_job_with_too_few_runs(store: Store) -> None:
    history = JobHistory(store, CLUSTER)
    asked = Run(job=a_running_job(1, stem="new", image=a_job().image))
    assert await history.similar(asked, NOW_MS) == SimilarRuns()
    history.add(a_run(n, stem=f"other-{n}") for n in (3, 4, 5))
    await history.flush()
    similar = await history.similar(asked, NOW_MS)
    assert (similar.level, len(similar.runs)) == (3, 3)
