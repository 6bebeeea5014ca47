"""The history in memory: its size, and what its events share."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local.apiserver.storage.durability import Durability
from gangline.local.apiserver.storage.sqlite import StateDatabase
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import (
    EVENT_BYTES,
    history_limit,
    make_revision,
)


@pytest.mark.parametrize(
    ("sizes", "total", "limit"),
    [
        pytest.param([], 100, 0, id="no histories"),
        pytest.param([10, 20, 30], 100, 30, id="all fit"),
        pytest.param([10, 200, 20], 100, 70, id="the largest gets the rest"),
        pytest.param([300, 10, 200], 100, 45, id="two large ones share it"),
        pytest.param([50, 50, 50, 50], 100, 25, id="equal ones"),
    ],
)
def test_large_histories_share_what_small_ones_leave(
    sizes: list[int], total: int, limit: int
) -> None:
    assert history_limit(sizes, total) == limit


@given(st.lists(st.integers(0, 10_000), max_size=20), st.integers(0, 50_000))
def test_limited_histories_fit_and_use_the_total(sizes: list[int], total: int) -> None:
    limit = history_limit(sizes, total)
    used = sum(min(size, limit) for size in sizes)
    assert used <= total
    assert used == sum(sizes) or total - used < max(1, len(sizes))


async def test_flood_of_one_kind_leaves_the_history_of_another(tmp_path: Path) -> None:
    database = StateDatabase(tmp_path / "state.db", durability=Durability.PROCESS)
    store = ObjectStore(database, history_bytes=400_000)
    quiet, loud = store.cache("quiet."), store.cache("loud.")

    def change(number: int) -> dict[str, Any]:
        return {"metadata": {"name": "a"}, "n": number, "filler": "x" * 1000}

    for number in range(20):
        await store.stage(quiet, "a", change(number), ({}, {}))
    for number in range(3_000):
        await store.stage(loud, "a", change(number), ({}, {}))
    assert (quiet.horizon, len(quiet.events)) == (0, 20)
    assert 100 < len(loud.events) < 400, "its newest changes are retained, too"
    assert quiet.history_bytes + loud.history_bytes < 600_000
    await store.close()


async def test_many_small_changes_take_no_more_memory_than_few_large_ones(tmp_path: Path) -> None:
    database = StateDatabase(tmp_path / "state.db", durability=Durability.PROCESS)
    store = ObjectStore(database, history_bytes=100_000)
    cache = store.cache("things.")
    for start in range(0, 3_000, 100):
        await asyncio.gather(
            *(
                store.stage(cache, f"k{number}", {"metadata": {}}, ({}, {}))
                for number in range(start, start + 100)
            )
        )
    assert len(cache.events) * EVENT_BYTES < 150_000
    await store.close()


def test_revisions_of_an_object_share_its_labels_and_fields() -> None:
    first = make_revision("ns/a", 1, b"{}", ({"app": "x" * 40}, {"phase": "Pending"}), None)
    other = make_revision("ns/b", 2, b"{}", ({"app": "x" * 40}, {}), None)
    later = make_revision(
        "".join(["ns", "/a"]), 3, b"{}", ({"app": "x" * 40}, {"phase": "Running"}), first
    )
    assert later.key is first.key
    assert later.labels is first.labels
    assert (first.fields, later.fields) == ({"phase": "Pending"}, {"phase": "Running"})
    assert next(iter(other.labels.values())) is next(iter(first.labels.values()))
