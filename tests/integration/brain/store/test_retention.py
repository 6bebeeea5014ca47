"""What is old goes in small transactions, and what is forgotten does not return (G9, Q18)."""

from typing import Any

import pytest
from sqlalchemy import event, func, select

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
)
from gangline.brain.advisers.advice import GuardAction, What
from gangline.brain.facts.records import Run
from gangline.brain.store.context import Fact, facts_of
from gangline.brain.store.deletion import Forget, RetentionSettings
from gangline.brain.store.engine import Store, open_store
from gangline.brain.store.reader import HistoryFilter
from gangline.brain.store.sql import tables

SETTINGS = RetentionSettings()


@pytest.fixture
def store(address: str) -> Any:
    opened = open_store(address, secret=b"secret", clock_ms=lambda: NOW_MS)
    yield opened
    opened.close()


def counts(store: Store) -> dict[str, int]:
    with store.engine.connect() as connection:
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables.metadata.sorted_tables
        }


def aged(number: int, days: int, **sizes: int) -> Run:
    """A run that finished ``days`` ago."""
    finished_ms = NOW_MS - days * DAY_MS
    return Run(
        job=a_job(
            number,
            submitted_ms=finished_ms - HOUR_MS,
            finished_ms=finished_ms,
        ),
        segments=tuple(
            a_segment(since=finished_ms - n * 1000, until=finished_ms - n * 1000)
            for n in range(sizes.get("segments", 2))
        ),
        pods=tuple(
            a_pod(rank, started_ms=finished_ms - HOUR_MS, ended_ms=finished_ms)
            for rank in range(sizes.get("pods", 2))
        ),
    )


async def test_each_kind_of_row_goes_at_its_age(store: Store) -> None:
    store.write.runs([aged(n, days) for n, days in enumerate((1, 91, 181, 401), 1)])
    store.write.facts(
        [job_fact(a_running_job(9, submitted_ms=NOW_MS - 401 * DAY_MS))]
    )  # its end was missed
    days = (19_000, NOW_MS // DAY_MS)
    store.write.facts(Fact("cluster", "", a_node_speed(day)) for day in days)
    deleted = await store.prune(NOW_MS, SETTINGS, pause_s=0)
    left = {
        run.job.uid: (len(run.segments), len(run.pods))
        for n in range(1, 10)
        if (run := store.read.run("cluster", f"uid-{n}"))
    }
    assert left == {"uid-1": (2, 2), "uid-2": (0, 2), "uid-3": (0, 0)}
    found = counts(store)
    assert (found["job"], found["node_speed"]) == (3, 1)
    assert deleted["segment"] == 6
    assert (await store.prune(NOW_MS, SETTINGS, pause_s=0))["segment"] == 0
    assert counts(store) == found


async def test_large_job_goes_in_transactions_of_five_hundred_rows(store: Store) -> None:
    store.write.runs([aged(1, 401, segments=1300, pods=700)])
    sizes: list[int] = []

    def note(_: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("DELETE"):
            sizes.append(cursor.rowcount)

    event.listen(store.engine, "after_cursor_execute", note)
    await store.prune(NOW_MS, RetentionSettings(segments_days=500, pods_days=500), pause_s=0)
    assert max(sizes) == 500
    assert counts(store)["job"] == 0
    assert counts(store)["segment"] == 0


def remember(store: Store) -> tuple[list[Run], int]:
    """Runs of two owners in one family by the name, with everything that can be derived."""
    mine = [a_run(n, owner="ada", segments=600) for n in (1, 2)]
    peak = 100 << 30
    others = [Run(job=a_job(n, owner="bob"), pods=(a_pod(peak_memory_bytes=peak),)) for n in (3, 4)]
    store.write.runs([*mine, *others])
    fence = store.write.lead("cluster", "brain")
    for uid in ("uid-1", "uid-3", "uid-4"):
        action = GuardAction(job=uid, family="f", what=What.MEMORY, at_ms=1)
        store.write.begin_action("cluster", action, fence=fence)
    return mine, fence


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        pytest.param({"owner": "ada"}, {"uid-3", "uid-4"}, id="owner"),
        pytest.param({"namespace": "vision"}, set(), id="namespace"),
        pytest.param(
            {"namespace": "vision", "name": "train-resnet-1"},
            {"uid-2", "uid-3", "uid-4"},
            id="job",
        ),
    ],
)
def test_g9_what_is_forgotten_does_not_return(
    store: Store, asked: dict[str, str], left: set[str]
) -> None:
    mine, _ = remember(store)
    forgotten = store.forget(Forget(cluster="cluster", **asked))
    assert forgotten == 4 - len(left)
    relisted = [
        *(fact for run in mine for fact in facts_of(run)),
        job_fact(a_job(3)),
        job_fact(a_job(4)),
    ]
    if "owner" in asked:
        relisted = relisted[:-2]
    store.add(relisted)
    store.flush_now()
    assert len(store.buffer) == 0  # facts of forgotten jobs do not wait for them
    found = store.read.history(HistoryFilter(cluster="cluster")).jobs
    assert {job.uid for job in found} - {"uid-3", "uid-4"} == left - {"uid-3", "uid-4"}
    late = [Fact("cluster", "uid-1", a_segment(7)), Fact("cluster", "uid-1", a_pod(9))]
    assert store.write.facts(late).orphans == []
    assert store.read.run("cluster", "uid-1") is None


def test_g9_nothing_of_a_forgotten_owner_is_left(store: Store) -> None:
    remember(store)
    assert store.forget(Forget(cluster="cluster", owner="ada")) == 2
    assert len(store.read.actions("cluster", "uid-3")) == 1
    with store.engine.connect() as connection:
        for table in tables.metadata.sorted_tables:
            rows = repr(connection.execute(select(table)).all())
            assert "ada" not in rows, table.name
            assert "uid-1" not in rows, table.name
            assert "train-resnet-1'" not in rows, table.name
    assert counts(store)["segment"] == 0
    # Jobs that are submitted later are stored.
    store.write.facts([job_fact(a_running_job(8, owner="ada", submitted_ms=NOW_MS + 1))])
    assert store.read.run("cluster", "uid-8") is not None


def test_owner_that_was_stored_as_a_digest_is_forgotten(address: str) -> None:
    private = open_store(address, secret=b"secret", digest_names=True, clock_ms=lambda: NOW_MS)
    private.write.runs([a_run(1, owner="ada"), a_run(2, owner="bob")])
    plain = open_store(address, secret=b"secret", clock_ms=lambda: NOW_MS)
    assert plain.forget(Forget(cluster="cluster", owner="ada")) == 1
    private.write.runs([a_run(1, owner="ada")])
    assert counts(private)["job"] == 1
    plain.close()
    private.close()


@pytest.mark.parametrize("asked", [{}, {"name": "x"}, {"owner": "a", "namespace": "b"}])
def test_unclear_request_to_forget_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="an owner, a namespace, or a namespace and a name"):
        Forget(cluster="cluster", **asked)
