"""Which events are deleted, and when."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gangline.local.apiserver import event_expiry
from gangline.local.apiserver.event_expiry import EventExpiry
from gangline.local.apiserver.storage.sqlite import StateDatabase
from gangline.local.apiserver.storage.store import ObjectStore


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectStore]:
    monkeypatch.setattr(event_expiry, "INTERVAL_S", 0.0)
    store = ObjectStore(StateDatabase(tmp_path / "state.db"))
    yield store
    await store.close()


async def write(store: ObjectStore, key: str, age_s: float = 0.0) -> None:
    at = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    namespace, _, name = key.partition("/")
    event = {"metadata": {"name": name, "namespace": namespace}, "lastTimestamp": at}
    await store.stage(store.cache("events."), key, event, ({}, {}))


async def remaining(store: ObjectStore, expiry: EventExpiry, count: int) -> set[str]:
    """Run the expiry until ``count`` events remain."""
    task = asyncio.create_task(expiry.run())
    cache = store.cache("events.")
    async with asyncio.timeout(10):
        while len(cache.records) > count or cache.staged:
            await asyncio.sleep(0)
    task.cancel()
    return set(cache.records)


async def test_event_is_deleted_after_its_time_to_live(store: ObjectStore) -> None:
    await write(store, "a/old", age_s=100)
    await write(store, "a/recent", age_s=10)
    expiry = EventExpiry(store, time_to_live_s=50, max_events=100)
    assert await remaining(store, expiry, 1) == {"a/recent"}


async def test_write_of_an_event_begins_its_time_again(store: ObjectStore) -> None:
    await write(store, "a/repeated", age_s=100)
    await write(store, "a/old", age_s=90)
    expiry = EventExpiry(store, time_to_live_s=50, max_events=100)
    await write(store, "a/repeated")
    assert await remaining(store, expiry, 1) == {"a/repeated"}


async def test_namespace_with_most_events_loses_its_oldest_first(store: ObjectStore) -> None:
    expiry = EventExpiry(store, time_to_live_s=3600, max_events=3)
    await write(store, "quiet/1")
    for number in range(1, 6):
        await write(store, f"busy/{number}")
    assert await remaining(store, expiry, 3) == {"quiet/1", "busy/4", "busy/5"}


async def test_deleted_event_is_not_counted(store: ObjectStore) -> None:
    expiry = EventExpiry(store, time_to_live_s=3600, max_events=2)
    cache = store.cache("events.")
    for name in ("1", "2", "3"):
        await write(store, f"a/{name}")
    gone = {"metadata": {"name": "1", "namespace": "a"}}
    await store.stage(cache, "a/1", gone, ({}, {}), removed=True)
    task = asyncio.create_task(expiry.run())
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    assert set(cache.records) == {"a/2", "a/3"}
