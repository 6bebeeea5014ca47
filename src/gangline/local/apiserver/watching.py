"""Watches: many readers of one history, each with a cursor of its own.

A change wakes no task. The first change after a pause is sent at once; under load changes are
gathered for a few milliseconds, and each watcher gets all that is new to it in one write. Watchers
with the same selection and form (there are few different ones) share the bytes. A watcher whose
client does not read is passed over until it does; if history has moved on by then, it is told to
list again (410). So a slow watcher costs nothing, and a hundred of them cost little more than one.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from gangline.api.meta import Status
from gangline.local.apiserver.errors import expired
from gangline.local.apiserver.history import ADDED, DELETED, MODIFIED, Event, Record, Topic
from gangline.local.apiserver.negotiation import encode, read_json
from gangline.local.apiserver.selection import Selection

PAUSE_SHARE = 2.0
"""After a round of sending that took t, the next one starts no sooner than this times t."""
SHORTEST_PAUSE = 0.002
CATCH_UP_S = 0.02
"""How soon a watcher that is behind is looked at again, in seconds."""
MOST_AT_ONCE = 1000
"""Changes sent to one watcher in one round; whoever is further behind gets the rest later."""
BACKLOG = 1 << 20
"""Bytes waiting in a connection over which its watcher is passed over."""

Shape = Callable[[bytes], bytes]


class View:
    """What a watcher wants to see. Views with equal keys share what has been encoded.

    ``form`` names the form, ``shape`` puts a stored object into it (None: as it is stored).
    """

    __slots__ = ("key", "namespace", "selection", "shape")

    def __init__(
        self, namespace: str, selection: Selection, form: object, shape: Shape | None
    ) -> None:
        self.namespace = namespace
        self.selection = selection
        self.shape = shape
        self.key = (namespace, selection.text, form)

    def sees(self, record: Record) -> bool:
        """Whether an object is in the view."""
        if self.namespace and not record.key.startswith(self.namespace):
            return False
        return self.selection.everything or self.selection.matches(record)

    def encoded(self, event: Event) -> bytes:
        """The event as this view shows it; empty when it does not."""
        forms = event.forms
        if forms is None:
            forms = event.forms = {}
        found = forms.get(self.key)
        if found is None:
            found = forms[self.key] = self._encode(event)
        return found

    def _encode(self, event: Event) -> bytes:
        now = self.sees(event.record)
        before = event.before is not None and self.sees(event.before)
        if event.type == DELETED:
            return self.line(DELETED, event.record.body) if now or before else b""
        if now:
            return self.line(MODIFIED if before else ADDED, event.record.body)
        if before and event.before is not None:
            return self.line(DELETED, _at_revision(event.before.body, event.record.rv))
        return b""

    def line(self, type_: str, body: bytes) -> bytes:
        """One line of a watch."""
        shown = self.shape(body) if self.shape else body
        return b'{"type":"' + type_.encode() + b'","object":' + shown + b"}\n"


def _at_revision(body: bytes, rv: int) -> bytes:
    obj = read_json(body)
    obj["metadata"]["resourceVersion"] = str(rv)
    return encode(obj)


class Watcher:
    """One open watch."""

    def __init__(self, view: View, cursor: int, transport: asyncio.WriteTransport) -> None:
        self.view = view
        self.cursor = cursor
        self.transport = transport
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.too_slow = False

    def end(self) -> None:
        """Let the request come to its end."""
        if not self.ended.done():
            self.ended.set_result(None)

    def send(self, payload: bytes) -> None:
        """Write one chunk of the answer."""
        self.transport.write(chunk(payload))

    @property
    def ready(self) -> bool:
        """Whether the client reads what it was sent."""
        return self.transport.get_write_buffer_size() < BACKLOG


def chunk(payload: bytes) -> bytes:
    """A piece of an HTTP answer in chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class Broadcast:
    """Sends the changes of one topic to its watchers."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.watchers: set[Watcher] = set()
        self._loop = asyncio.get_running_loop()
        self._not_before = 0.0
        self._sent = topic.end
        self._due: asyncio.TimerHandle | None = None
        topic.woken = self.wake

    def wake(self) -> None:
        """See to it that what is new is sent soon."""
        if self._due is None and self.watchers:
            self._due = self._loop.call_at(max(self._not_before, self._loop.time()), self._send)

    def _send(self) -> None:
        self._due = None
        started = time.perf_counter()
        joined: dict[object, bytes] = {}
        behind = False
        for watcher in list(self.watchers):
            if watcher.transport.is_closing():
                watcher.end()
            elif watcher.ready:
                self._send_to(watcher, joined)
            behind = behind or watcher.cursor < self.topic.end
        self._forget_forms()
        took = time.perf_counter() - started
        self._not_before = self._loop.time() + max(SHORTEST_PAUSE, took * PAUSE_SHARE)
        if behind:
            self._due = self._loop.call_later(CATCH_UP_S, self._send)

    def _forget_forms(self) -> None:
        """Let go of encoded events: nearly all watchers have them, and history is long."""
        topic = self.topic
        for event in topic.events[max(self._sent - topic.base, 0) :]:
            event.forms = None
        self._sent = topic.end

    def _send_to(self, watcher: Watcher, joined: dict[object, bytes]) -> None:
        topic = self.topic
        if watcher.cursor < topic.base:
            watcher.too_slow = True
            watcher.end()
            return
        if watcher.cursor == topic.end:
            return
        key = (watcher.cursor, watcher.view.key)
        payload = joined.get(key)
        if payload is None:
            start = watcher.cursor - topic.base
            events = topic.events[start : start + MOST_AT_ONCE]
            lines = b"".join(map(watcher.view.encoded, events))
            payload = joined[key] = chunk(lines) if lines else b""
        watcher.cursor = min(watcher.cursor + MOST_AT_ONCE, topic.end)
        if payload:
            watcher.transport.write(payload)

    def add(self, watcher: Watcher) -> None:
        """Serve a watcher from its cursor on."""
        self.watchers.add(watcher)
        if watcher.cursor < self.topic.end:
            self.wake()

    def remove(self, watcher: Watcher) -> None:
        """Forget a watcher."""
        self.watchers.discard(watcher)


class Broadcasts:
    """The broadcasts of all topics."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Broadcast] = {}

    def of(self, topic: Topic) -> Broadcast:
        """The broadcast of a topic."""
        found = self._by_topic.get(topic.name)
        if found is None:
            found = self._by_topic[topic.name] = Broadcast(topic)
        return found

    def end_all(self) -> None:
        """End every watch: the server stops."""
        for broadcast in self._by_topic.values():
            for watcher in list(broadcast.watchers):
                watcher.end()

    def end_topic(self, name: str) -> None:
        """End the watches of a kind that is no longer served."""
        with contextlib.suppress(KeyError):
            for watcher in list(self._by_topic[name].watchers):
                watcher.end()

    def count(self) -> int:
        """How many watches are open."""
        return sum(len(broadcast.watchers) for broadcast in self._by_topic.values())


def too_old(revision: int, horizon: int) -> bytes:
    """The last line of a watch whose history is gone."""
    status = expired(f"too old resource version: {revision} ({horizon})").status
    return b'{"type":"ERROR","object":' + encode(status_json(status)) + b"}\n"


def status_json(status: Status) -> dict[str, Any]:
    """A Status with its kind, which defaults would leave out."""
    return {"kind": "Status", "apiVersion": "v1", **msgspec.to_builtins(status)}
