"""What is written comes back on each database, the same in any order, with names by bytes.

Takes 35 s: servers of three databases start.
"""

import random
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
from sqlalchemy import select

from brain_records import (
    DAY_MS,
    HOUR_MS,
    NOW_MS,
    a_job,
    a_node_speed,
    a_pod,
    a_run,
    a_running_job,
    a_segment,
    job_fact,
    not_none,
)
from gangline.api.jobs.training_facts import StepSeconds
from gangline.brain.facts.records import Image, Outcome, RecordedJob, Run, Wishes
from gangline.brain.store.context import Fact, facts_of
from gangline.brain.store.engine import Store, open_store
from gangline.brain.store.reader import HistoryFilter
from gangline.brain.store.sql import tables

TABLES = [table for table in tables.metadata.sorted_tables if table.name != "leader"]


def dump(store: Store) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables."""
    with store.engine.connect() as connection:
        return {
            table.name: sorted(
                (dict(row) for row in connection.execute(select(table)).mappings()), key=repr
            )
            for table in TABLES
        }


def test_run_comes_back_with_every_character(store: Store) -> None:
    run = a_run(
        wishes=Wishes(may=frozenset({"memory"}), max_global_batch=4096),
        image=Image(repository="registry/ä🛷", tag="1'; DROP TABLE job; --", digest="%s ? :x \\"),
        queue="q\\'\"`;%_",
        cause="Ursache: ✓",
        workers_min=2,
    )
    written = store.write.runs([run])
    assert (written.refused, written.orphans) == ([], [])
    assert store.read.run("cluster", "uid-1") == run
    assert store.read.run("cluster", namespace="vision", name="train-resnet-1") == run
    assert store.read.run("another", "uid-1") is None


def test_g6_relisting_in_any_order_gives_the_same_rows(store: Store) -> None:
    runs = [a_run(number) for number in range(1, 30)]
    early = [job_fact(a_running_job(number, restarts=number)) for number in range(1, 30)]
    speeds = [Fact("cluster", "", a_node_speed(day)) for day in range(20_000, 20_010)]
    facts: list[Fact] = [fact for run in runs for fact in facts_of(run)]
    store.write.facts([*facts, *early, *speeds])
    first = dump(store)
    for seed in (1, 2, 3):
        again = [*facts, *early, *speeds]
        random.Random(seed).shuffle(again)
        assert store.write.facts(again).rows == 0
        assert dump(store) == first


def test_g6_first_listing_in_any_order_gives_the_same_runs(store: Store) -> None:
    run = a_run(1, segments=4, pods=3)
    late = [Fact("cluster", "uid-1", a_pod(0, peak_memory_bytes=1 << 40, ended_ms=None))]
    facts = [*facts_of(run), job_fact(a_running_job(1, restarts=7)), *late]
    random.Random(4).shuffle(facts)
    for fact in facts:  # each by itself; those before their job are written again
        store.add([fact])
        store.flush_now()
    stored = not_none(store.read.run("cluster", "uid-1"))
    assert (stored.job.restarts, stored.job.outcome) == (7, Outcome.SUCCEEDED)
    assert stored.pods[0].peak_memory_bytes == 1 << 40
    assert stored.segments == run.segments
    assert len(store.buffer) == 0


NAMES = ["train", "Train", "träin", "x" * 253, "🛷" * 253, "🛷" * 252 + "🐕"]


def test_g7_names_are_distinct_by_their_bytes(store: Store) -> None:
    jobs = [
        a_job(number, uid=f"uid-{name}"[:40] + str(number), name=name, stem=name, owner=name)
        for number, name in enumerate(NAMES, 1)
    ]
    pods = [a_pod(0, role=role, node=node) for role, node in (("a", "n"), ("A", "N"))]
    store.write.facts(map(job_fact, jobs))
    store.write.facts(Fact("cluster", jobs[0].uid, pod) for pod in pods)
    for job in jobs:
        stored = not_none(store.read.run("cluster", namespace="vision", name=job.name))
        assert stored.job == job
        page = store.read.history(HistoryFilter(cluster="cluster", owner=job.owner))
        assert page.jobs == (job,)
    first = not_none(store.read.run("cluster", jobs[0].uid))
    assert {(pod.role, pod.node) for pod in first.pods} == {("a", "n"), ("A", "N")}


def test_impossible_facts_are_dropped_and_named(store: Store) -> None:
    written = store.write.facts(
        [
            job_fact(a_job(1)),
            job_fact(a_job(2, name="x" * 1_000_000)),
            Fact("cluster", "uid-1", a_segment(1, step_seconds=StepSeconds(1, float("nan")))),
            Fact("cluster", "uid-1", a_segment(2, compute_seconds=1e294)),
            Fact("cluster", "uid-1", a_pod(-1)),
        ]
    )
    names = "RecordedJob.name StepSeconds.mean SegmentFacts.step_seconds "
    names += "SegmentFacts.compute_seconds PodRun.rank"
    assert written.refused == [f"{name} is impossible" for name in names.split()]
    stored = not_none(store.read.run("cluster", "uid-1"))
    assert [segment.compute_seconds for segment in stored.segments] == [None]


def test_numbers_keep_every_bit(store: Store) -> None:
    segment = a_segment(
        1, step_seconds=StepSeconds(1, (0.1 + 0.2 + 1e5) / 1e6), grad_sqr=5e-324, grad_var=1 / 3e59
    )
    store.write.runs([Run(job=a_job(1, restarts=10**6), segments=(segment,))])
    stored = not_none(store.read.run("cluster", "uid-1"))
    assert stored.job.restarts == 10**6
    assert stored.segments == (segment,)


def test_large_batch_is_written_in_transactions_of_five_hundred_rows(store: Store) -> None:
    sizes: list[int] = []
    run = a_run(1, segments=1800, pods=700)
    store.write.facts(facts_of(run), on_batch=lambda batch: sizes.append(len(batch)))
    assert max(sizes) <= 500
    stored = not_none(store.read.run("cluster", "uid-1"))
    assert len(stored.pods) == 700
    assert stored.segments == run.segments[-200:]  # the last ones, at most 200 of a run


def test_history_is_read_in_pages(store: Store) -> None:
    jobs = [a_job(number, finished_ms=NOW_MS - number // 3) for number in range(25)]
    store.write.facts(
        map(job_fact, [*jobs, a_running_job(99), a_running_job(98, cluster="another")])
    )
    assert [job.uid for job in store.read.running_jobs("cluster")] == ["uid-99"]
    page = store.read.history(HistoryFilter(cluster="cluster", limit=7))
    found = list(page.jobs)
    while page.next is not None:
        page = store.read.history(page.next)
        found += page.jobs
    assert [job.uid for job in found] != [job.uid for job in jobs]  # latest id first at one time
    assert {job.uid for job in found} == {job.uid for job in jobs}
    assert len(found) == len(jobs)
    assert [job.finished_ms for job in found] == sorted(
        (job.finished_ms or 0 for job in jobs), reverse=True
    )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({"namespace": "speech"}, {"uid-2"}, id="namespace"),
        pytest.param({"owner": "bob"}, {"uid-3"}, id="owner"),
        pytest.param({"name": "train-resnet-4"}, {"uid-4"}, id="name"),
        pytest.param({"outcome": Outcome.FAILED}, {"uid-5"}, id="outcome"),
        pytest.param({"since_ms": NOW_MS - HOUR_MS}, {"uid-1"}, id="since"),
        pytest.param({"until_ms": NOW_MS - 4 * HOUR_MS}, {"uid-5"}, id="until"),
        pytest.param({"kind": "PyTorchJob"}, {"uid-1"}, id="kind"),
        pytest.param({"queue": "night"}, {"uid-2"}, id="queue"),
        pytest.param({"stem": "other"}, {"uid-3"}, id="stem"),
    ],
)
def test_history_is_filtered(store: Store, asked: dict[str, Any], expected: set[str]) -> None:
    store.write.facts(
        map(
            job_fact,
            [
                a_job(1, kind="PyTorchJob"),
                a_job(2, namespace="speech", queue="night"),
                a_job(3, owner="bob", stem="other"),
                a_job(4),
                a_job(5, outcome=Outcome.FAILED),
            ],
        )
    )
    page = store.read.history(HistoryFilter(cluster="cluster", **asked))
    assert {job.uid for job in page.jobs} == expected


ASKED = a_running_job(100, spec_digest="mine", submitted_ms=NOW_MS)


@pytest.mark.parametrize(
    ("level", "change"),
    [
        pytest.param(0, lambda n: {"spec_digest": "mine"}, id="same specification"),
        pytest.param(1, lambda n: {}, id="same family"),
        pytest.param(2, lambda n: {"command_digest": "other"}, id="another command"),
        pytest.param(2, lambda n: {"owner": f"user-{n}", "spec_digest": "mine"}, id="owner (A7)"),
        pytest.param(3, lambda n: {"stem": f"stem-{n}"}, id="same image"),
        pytest.param(4, lambda n: {"namespace": f"n-{n}"}, id="nearest model"),
    ],
)
def test_similar_runs_are_found_at_their_level(
    store: Store, level: int, change: Callable[[int], dict[str, Any]]
) -> None:
    runs = [a_run(number, **change(number)) for number in range(1, 6)]
    other = a_run(50, namespace="far", image=Image(repository="x"), stem="y", model=None)
    old: dict[str, Any] = {"submitted_ms": NOW_MS - 32 * DAY_MS, **change(60)}
    too_old = a_job(60, finished_ms=NOW_MS - 31 * DAY_MS, **old)
    failed = a_job(6, outcome=Outcome.FAILED, **change(6))
    store.write.runs([*runs, other, Run(job=too_old), Run(job=failed), Run(job=ASKED)])
    similar = store.read.similar_runs(ASKED, now_ms=NOW_MS)
    assert similar.level == level
    by_uid = attrgetter("job.uid")
    # With their segments and pods.
    assert sorted(similar.runs, key=by_uid) == sorted(runs, key=by_uid)
    assert [run.job.uid for run in similar.bounds] == ["uid-6"]


def test_similar_runs_are_bounded_and_others_are_lower_bounds(store: Store) -> None:
    store.write.runs([a_run(number) for number in (1, 2, 3, *range(6, 50))])
    store.write.facts(map(job_fact, [a_running_job(4), a_job(5, complete=False)]))
    similar = store.read.similar_runs(ASKED, now_ms=NOW_MS, limit=4)
    assert [run.job.uid for run in similar.runs] == ["uid-1", "uid-2", "uid-3", "uid-6"]
    assert {run.job.uid for run in similar.bounds} == {"uid-4", "uid-5"}


def test_job_that_gets_an_owner_later_is_of_its_family(store: Store) -> None:
    store.write.facts([job_fact(a_running_job(1, owner="", observed_ms=1))])
    store.write.facts(map(job_fact, [a_job(1), a_job(2), a_job(3)]))
    similar = store.read.similar_runs(ASKED, now_ms=NOW_MS)
    assert (similar.level, len(similar.runs)) == (1, 3)


def test_days_of_nodes(store: Store) -> None:
    old, day, new = (a_node_speed(20_000 + n) for n in range(3))
    store.write.facts(Fact("cluster", "", speed) for speed in (new, old, day))
    assert store.read.node_speeds("cluster", 20_001) == [day, new]


def test_names_are_stored_as_digests_on_demand(address: str) -> None:
    store = open_store(address, secret=b"secret", digest_names=True)
    job: RecordedJob = a_job(1, name="train-of-ada", stem="train-of", owner="ada")
    store.write.facts(map(job_fact, [job, a_job(2), a_job(3), a_job(4)]))
    rows = repr(dump(store))
    assert "ada" not in rows
    assert "train-" not in rows
    assert len(store.read.history(HistoryFilter(cluster="cluster", owner="ada")).jobs) == 4
    assert store.read.run("cluster", namespace="vision", name="train-of-ada") is not None
    similar = store.read.similar_runs(ASKED, now_ms=NOW_MS)
    assert (similar.level, len(similar.runs)) == (1, 3)
    store.close()
