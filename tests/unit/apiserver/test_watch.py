"""Watch streams: encodings are shared for one round, and nothing of them stays in the history."""

import asyncio
import re
from typing import Any, cast

from gangline.api.meta.selectors import parse_field_selector, parse_label_selector
from gangline.local.apiserver.storage.watch_cache import (
    ADDED,
    CacheEvent,
    ObjectRevision,
    WatchCache,
)
from gangline.local.apiserver.watch import (
    SelectionPredicate,
    WatchBroadcaster,
    Watcher,
    WatchView,
)


class Transport:
    """A connection whose client reads everything immediately."""

    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


def view(labels: str) -> WatchView:
    selection = SelectionPredicate(parse_label_selector(labels), parse_field_selector(""), None)
    return WatchView("", selection, ("v1", None), None)


def publish(cache: WatchCache, first: int, count: int) -> None:
    for rv in range(first, first + count):
        record = ObjectRevision(f"ns/o{rv}", rv, b'{"n":%d}' % rv, {"app": "a"}, {})
        cache.publish(CacheEvent(ADDED, record, None))


async def test_history_holds_no_encodings_after_old_events_were_sent_to_resumed_watches() -> None:
    cache = WatchCache("things.", 0)
    broadcaster = WatchBroadcaster(cache)
    publish(cache, 1, 1_500)
    transports = []
    for number in range(5):
        transport = Transport()
        transports.append(transport)
        broadcaster.add(Watcher(view(f"app!=b{number}"), number, cast(Any, transport)))
    publish(cache, 1_501, 10)
    async with asyncio.timeout(10):
        while any(watcher.cursor < cache.end for watcher in broadcaster.watchers):
            await asyncio.sleep(0.001)
    counts = [transport.sent.count(b'"ADDED"') for transport in transports]
    assert counts == [1_510 - number for number in range(5)]
    assert [event for event in cache.events if event.encoded_forms is not None] == []


async def test_each_view_is_sent_its_own_objects_over_many_rounds() -> None:
    cache = WatchCache("things.", 0)
    broadcaster = WatchBroadcaster(cache)
    publish(cache, 1, 1)
    transports = {}
    for selector in ("app=a", "app!=b", "app=b"):
        transports[selector] = Transport()
        broadcaster.add(Watcher(view(selector), 0, cast(Any, transports[selector])))
    for number in range(100):
        publish(cache, 2 + 3 * number, 3)
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        while any(watcher.cursor < cache.end for watcher in broadcaster.watchers):
            await asyncio.sleep(0.001)
    numbers = {
        selector: [int(each) for each in re.findall(rb'"n":(\d+)', transport.sent)]
        for selector, transport in transports.items()
    }
    everything = list(range(1, 302))
    assert numbers == {"app=a": everything, "app!=b": everything, "app=b": []}


class ClosedTransport(Transport):
    """A TLS connection that was closed: asyncio has dropped its protocol."""

    def get_write_buffer_size(self) -> int:
        raise AttributeError("'NoneType' object has no attribute '_get_write_buffer_size'")

    def is_closing(self) -> bool:
        return True


async def test_closed_connections_end_their_watches_and_disturb_no_other() -> None:
    cache = WatchCache("things.", 0)
    broadcaster = WatchBroadcaster(cache)
    closed = [Watcher(view(f"app!=b{n}"), 0, cast(Any, ClosedTransport())) for n in range(8)]
    transport = Transport()
    for watcher in [*closed, Watcher(view("app=a"), 0, cast(Any, transport))]:
        broadcaster.add(watcher)
    publish(cache, 1, 3)
    async with asyncio.timeout(10):
        await asyncio.gather(*(watcher.ended for watcher in closed))
        while transport.sent.count(b'"ADDED"') < 3:
            await asyncio.sleep(0.001)
