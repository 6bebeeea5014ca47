"""Pages of lists: the same objects as in one list, and work by the size of the page."""

from typing import cast

import pytest

from gangline.local.apiserver.storage.watch_cache import (
    ADDED,
    DELETED,
    CacheEvent,
    ObjectRevision,
    WatchCache,
)
from gangline.local.apiserver.verbs import read
from gangline.local.apiserver.watch import SelectionPredicate

OBJECTS, LIMIT = 1_000, 10


class CountedRecords(dict[str, ObjectRevision]):
    looked_up = 0

    def __getitem__(self, key: str) -> ObjectRevision:
        self.looked_up += 1
        return super().__getitem__(key)


class OddNumbers:
    """Selects every second object."""

    key, matches_all, terms = None, False, 1

    def matches(self, record: ObjectRevision) -> bool:
        return int(record.key[-4:]) % 2 == 1


class Everything(OddNumbers):
    matches_all = True


def full_cache() -> tuple[WatchCache, CountedRecords]:
    cache = WatchCache("things.", 0)
    records = cache.records = CountedRecords()
    for number in range(OBJECTS):
        record = ObjectRevision(f"n/{number:04d}", number + 1, b"", {}, {})
        cache.publish(CacheEvent(ADDED, record, None))
    return cache, records


@pytest.mark.parametrize("chosen", [OddNumbers(), Everything()])
@pytest.mark.parametrize("limit", [1, LIMIT, OBJECTS])
def test_pages_have_the_objects_of_their_revision_once(chosen: OddNumbers, limit: int) -> None:
    cache, _ = full_cache()
    selection = cast(SelectionPredicate, chosen)
    expected = [record.key for record in cache.records.values() if chosen.matches_all
                or chosen.matches(record)]  # fmt: skip
    listed: list[str] = []
    while True:
        after = listed[-1] if listed else ""
        records, further = read._candidates(cache, OBJECTS, "n", selection, after, limit)
        page = read.ListQuery(records, further, OBJECTS, limit, selection).page()
        listed += [record.key for record in page.records]
        if not page.continue_token:
            break
        assert len(page.records) == limit
        if chosen.matches_all:
            assert page.remaining == len(expected) - len(listed)
        if len(listed) == limit:  # changes between two pages
            for rv, number in enumerate((0, 500, 999), start=OBJECTS + 1):
                before = cache.records[f"n/{number:04d}"]
                gone = ObjectRevision(before.key, rv, b"", {}, {})
                cache.publish(CacheEvent(DELETED, gone, before))
            new = ObjectRevision("n/05005", OBJECTS + 9, b"", {}, {})
            cache.publish(CacheEvent(ADDED, new, None))
    assert listed == expected


@pytest.mark.parametrize("chosen", [OddNumbers(), Everything()])
def test_a_page_looks_at_few_objects(chosen: OddNumbers) -> None:
    cache, records = full_cache()
    records.looked_up = 0
    read._candidates(cache, OBJECTS, "n", cast(SelectionPredicate, chosen), "n/0500", LIMIT)
    assert records.looked_up <= 5 * LIMIT
