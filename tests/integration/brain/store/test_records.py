"""Records of job runs in each database: written twice they are the same; retention is by size."""

from pathlib import Path

import pytest

from brain_records import NOW_MS, a_job, not_none
from gangline.brain.facts.job_record import (
    Curves,
    JobRecord,
    LogTail,
    Moment,
    TimelineEntry,
    with_entries,
)
from gangline.brain.facts.records import Run
from gangline.brain.store.deletion import Forget, RetentionSettings
from gangline.brain.store.engine import Store, open_store
from gangline.brain.store.records import MAX_LOGS, RecordRow

CLUSTER = "cluster"


def a_row(number: int, **changes: object) -> RecordRow:
    entry = TimelineEntry(what=Moment.RESTARTED, at_ms=NOW_MS, number=1, cause="Killed")
    record = with_entries(JobRecord(state="SUCCEEDED"), [entry])
    curves = Curves().with_point(NOW_MS, {"loss": 0.5})
    fields: dict[str, object] = {
        "uid": f"uid-{number}",
        "at_ms": NOW_MS - number * 1000,
        "record": JobRecord(state="SUCCEEDED", timeline=record.timeline, curves={"t": curves}),
        "spec": {"written": {"kind": "ElasticJob"}},
        "logs": (LogTail(pod="p", replica="worker-0", at_ms=NOW_MS, lines=("a", "b")),),
        "gpu_seconds": 100 * number,
    }
    return RecordRow(**(fields | changes))  # type: ignore[arg-type]


def write(store: Store, *rows: RecordRow) -> None:
    store.write.runs(Run(job=a_job(int(row.uid.removeprefix("uid-")))) for row in rows)
    assert store.records.write(CLUSTER, rows) == []


def test_record_that_is_written_again_is_one_record(store: Store) -> None:
    for state in ("RUNNING", "SUCCEEDED"):
        write(store, a_row(1, record=JobRecord(state=state), productive_seconds=60))
    stored = not_none(store.records.read(CLUSTER, "uid-1"))
    assert stored.record is not None
    assert (stored.record.state, len(stored.logs), stored.productive_seconds) == (
        "SUCCEEDED",
        1,
        60,
    )
    write(store, a_row(1))
    stored = not_none(store.records.read(CLUSTER, namespace="vision", name="train-resnet-1"))
    assert stored.record == a_row(1).record
    assert (stored.spec, stored.logs) == (a_row(1).spec, a_row(1).logs)


def test_only_jobs_of_the_history_have_records(store: Store) -> None:
    assert store.records.write(CLUSTER, [a_row(7)]) == ["uid-7"]
    write(store, a_row(1))
    store.forget(Forget(cluster=CLUSTER, owner="ada"))
    assert store.records.read(CLUSTER, "uid-1") is None


def test_last_tails_of_a_job_stay(store: Store) -> None:
    tails = [
        LogTail(pod="p", replica="worker-0", attempt=number, at_ms=NOW_MS + number, lines=("x",))
        for number in range(MAX_LOGS + 5)
    ]
    write(store, a_row(1, logs=tuple(tails)))
    stored = not_none(store.records.read(CLUSTER, "uid-1"))
    assert [tail.attempt for tail in stored.logs] == list(range(5, MAX_LOGS + 5))


def test_use_is_summed_by_queue_and_owner(store: Store) -> None:
    write(store, a_row(1, productive_seconds=50), a_row(2), a_row(3))
    [row] = store.records.usage(CLUSTER, "owner", NOW_MS - 2000, NOW_MS)
    assert (row.key, row.jobs, row.gpu_seconds) == ("ada", 2, 300)
    assert (row.accounted_seconds, row.productive_seconds) == (100, 50)
    assert store.records.usage(CLUSTER, "queue", 0, NOW_MS, ["elsewhere"]) == []


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        pytest.param(RetentionSettings(), [1, 2, 3], id="young and small records stay"),
        pytest.param(RetentionSettings(records_bytes=400), [1], id="the oldest go first by size"),
        pytest.param(RetentionSettings(records_days=0), [], id="old records go"),
    ],
)
async def test_retention_deletes_records_and_leaves_jobs(
    store: Store, settings: RetentionSettings, left: list[int]
) -> None:
    write(store, a_row(1), a_row(2), a_row(3))
    await store.prune(NOW_MS, settings, pause_s=0)
    stored = {number: store.records.read(CLUSTER, f"uid-{number}") for number in (1, 2, 3)}
    assert all(stored.values()), "the jobs themselves stay"
    assert [number for number, one in stored.items() if one and one.record] == left
    assert [number for number, one in stored.items() if one and one.logs] == left


def test_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/brain.db")
    write(store, a_row(1))
    modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(modes, 0)
    assert "brain.db-wal" in modes
    store.close()
