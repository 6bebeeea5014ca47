"""The store: writes become visible after the commit, in order, or not at all."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local.apiserver.database import Database
from gangline.local.apiserver.errors import StatusError
from gangline.local.apiserver.history import ADDED, DELETED, MODIFIED, Event, Record, Topic
from gangline.local.apiserver.negotiation import read_json
from gangline.local.apiserver.store import Store


def obj(**data: Any) -> dict[str, Any]:
    return {"metadata": {"name": "it"}, **data}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(Database(tmp_path / "state.db"))
    yield opened
    await opened.close()


async def test_a_write_is_seen_by_writers_at_once_and_by_readers_when_it_is_committed(store: Store):
    topic = store.topic("things.")
    done = store.put(topic, "a", obj(), {}, {})
    assert topic.latest("a") is not None
    assert "a" not in topic.records
    record = await done
    assert topic.records["a"] is record
    assert store.revision == record.rv == int(read_json(record.body)["metadata"]["resourceVersion"])


async def test_writes_keep_their_order_and_types(store: Store):
    topic = store.topic("things.")
    seen: list[tuple[str, int]] = []
    store.on_change("things.", lambda event: seen.append((event.type, event.record.rv)))
    await asyncio.gather(
        store.put(topic, "a", obj(), {}, {}),
        store.put(topic, "a", obj(n=1), {}, {}),
        store.remove(topic, "a", obj(n=1), {}, {}),
        store.put(topic, "a", obj(n=2), {}, {}),
    )
    assert [type_ for type_, _ in seen] == [ADDED, MODIFIED, DELETED, ADDED]
    assert [rv for _, rv in seen] == sorted(rv for _, rv in seen)


async def test_everything_is_there_after_opening_again(tmp_path: Path):
    path = tmp_path / "state.db"
    first = Store(Database(path))
    topic = first.topic("things.")
    await first.put(topic, "a", obj(n=1), {}, {})
    await first.put(topic, "b", obj(), {}, {})
    last = await first.remove(topic, "b", obj(), {}, {})
    await first.close()
    second = Store(Database(path))
    second.load(lambda topic, body: ({}, {}))
    again = second.topic("things.")
    assert list(again.records) == ["a"]
    assert read_json(again.records["a"].body)["n"] == 1
    assert second.revision == last.rv
    assert [event.type for event in again.events] == [ADDED, ADDED, DELETED]
    assert (await second.put(again, "c", obj(), {}, {})).rv > last.rv
    await second.close()


async def test_dropped_history_does_not_come_back_and_objects_stay(tmp_path: Path):
    path = tmp_path / "state.db"
    first = Store(Database(path))
    topic = first.topic("things.")
    for number in range(5):
        await first.put(topic, "a", obj(n=number), {}, {})
    await first.remove(topic, "b", obj(), {}, {})
    horizon = first.revision
    first.compact(older_than=float("inf"))
    await first.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM log").fetchone() == (1,)
    second = Store(Database(path))
    second.load(lambda topic, body: ({}, {}))
    assert read_json(second.topic("things.").records["a"].body)["n"] == 4
    assert second.topic("things.").horizon == second.topic("others.").horizon == horizon
    assert (await second.put(second.topic("things."), "c", obj(), {}, {})).rv > horizon
    await second.close()


async def test_full_disk_fails_writes_with_message_and_leaves_state_unchanged(
    tmp_path: Path,
):
    database = Database(tmp_path / "state.db")
    store = Store(database)
    topic = store.topic("things.")
    kept = await store.put(topic, "a", obj(), {}, {})
    pages = database._connection.execute("PRAGMA page_count").fetchone()[0]
    database._connection.execute(f"PRAGMA max_page_count={pages + 2}")
    large = store.put(topic, "b", obj(filler="x" * 100_000), {}, {})
    behind = store.put(topic, "a", obj(n=2), {}, {})
    outcomes = await asyncio.gather(large, behind, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, StatusError)
        assert "the disk of" in str(outcome)
        assert "is full" in str(outcome)
    assert topic.records == {"a": kept}
    assert topic.latest("b") is None
    database._connection.execute("PRAGMA max_page_count=100000")
    again = await store.put(topic, "b", obj(filler="x" * 100_000), {}, {})
    assert again.rv > kept.rv
    await store.close()


async def test_disconnected_client_does_not_undo_its_write(store: Store):
    topic = store.topic("things.")
    done = store.put(topic, "a", obj(), {}, {})
    done.cancel()
    await store.put(topic, "b", obj(), {}, {})
    assert set(topic.records) == {"a", "b"}


changes = st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40)


@given(changes, st.data())
def test_the_state_at_a_revision_is_what_it_was_then(steps: list[tuple[str, bool]], data: Any):
    topic = Topic("things.", 0)
    past: list[list[str]] = [[]]
    for rv, (key, removed) in enumerate(steps, start=1):
        before = topic.records.get(key)
        if removed and before is None:
            past.append(past[-1])
            continue
        type_ = DELETED if removed else MODIFIED if before else ADDED
        topic.publish(Event(type_, Record(key, rv, str(rv).encode(), {}, {}), before))
        past.append([topic.records[k].body.decode() for k in sorted(topic.records)])
    rv = data.draw(st.integers(0, len(steps)))
    assert [record.body.decode() for record in topic.state_at(rv)] == past[rv]


async def test_a_flood_of_writes_does_not_fill_the_memory(tmp_path: Path):
    store = Store(Database(tmp_path / "state.db"), history_bytes=100_000)
    topic = store.topic("things.")
    for number in range(200):
        await store.put(topic, "a", obj(n=number, filler="x" * 5_000), {}, {})
    assert topic.history_bytes < 150_000
    assert topic.horizon > 0
    assert read_json(topic.records["a"].body)["n"] == 199
    await store.close()


def test_state_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.glob("state.db*")}
    database.close()
    assert modes == {"state.db": 0, "state.db-wal": 0}
