"""Watches: selected objects, and several readers of one history, each with its own cursor.

A change wakes no task. The first change after a pause is sent immediately. Under load changes are
collected for a few milliseconds, and each watcher gets all its new events in one write. Watchers
with equal selectors and formats share the encoded bytes. A watcher whose client does not read is
skipped until it does. If the history no longer reaches back to its cursor, it gets 410 and must
list again. If its client has read nothing for ``STALL_TIMEOUT_S``, it is disconnected, so that what
it was sent does not stay in memory. A slow watcher thus costs little, and a hundred watchers cost
little more than one.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from gangline.api.meta.objects import Status
from gangline.api.meta.selectors import (
    Requirement,
    Selector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)
from gangline.local import limits
from gangline.local.apiserver.core.errors import StatusError, bad_request, expired
from gangline.local.apiserver.core.negotiation import encode_json, read_json
from gangline.local.apiserver.core.registry import ServedKind
from gangline.local.apiserver.core.request import STALL_TIMEOUT_S, ApiRequest
from gangline.local.apiserver.storage.watch_cache import (
    ADDED,
    DELETED,
    MODIFIED,
    CacheEvent,
    ObjectRevision,
    WatchCache,
)

MAX_CACHED_CHARS = 1000
"""Longer selectors are not cached: a thousand of them would take much memory."""
NAME, NAMESPACE = "metadata.name", "metadata.namespace"


class SelectionPredicate:
    """A compiled pair of selectors. ``key`` is set if only the object with this key can match."""

    def __init__(self, labels: Selector, fields: Selector, key: str | None) -> None:
        self.text = f"{labels}|{fields}"
        self.key = key
        self._labels = labels if labels.requirements else None
        self._fields = [r for r in fields.requirements if r.key not in (NAME, NAMESPACE)]
        self._identity = [r for r in fields.requirements if r.key in (NAME, NAMESPACE)]
        self.terms = len(labels.requirements) + len(fields.requirements)
        self.matches_all = not (labels.requirements or fields.requirements)

    def matches(self, record: ObjectRevision) -> bool:
        if self._labels is not None and not self._labels.matches(record.labels):
            return False
        if self._identity and not _all_match(self._identity, _identity(record)):
            return False
        return _all_match(self._fields, record.fields)


def _all_match(requirements: list[Requirement], fields: dict[str, str]) -> bool:
    return all(requirement.matches(fields) for requirement in requirements)


def _identity(record: ObjectRevision) -> dict[str, str]:
    namespace, _, name = record.key.rpartition("/")
    return {NAME: name, NAMESPACE: namespace}


def compile_selection(request: ApiRequest) -> SelectionPredicate:
    """Return the compiled selectors of a request, including its name if it has one. Raises
    StatusError: 400, a selector is invalid or names a field that is not selectable.
    """
    labels = request.params.get("labelSelector", "")
    fields = request.params.get("fieldSelector", "")
    for option, text in (("labelSelector", labels), ("fieldSelector", fields)):
        if text.count(",") >= limits.MAX_SELECTOR_VALUES:
            most = limits.MAX_SELECTOR_VALUES
            raise bad_request(f"{option} has more than {most} terms and values")
    if request.name:
        fields = f"{fields},{NAME}={request.name}" if fields else f"{NAME}={request.name}"
    compile_ = _compile if len(labels) + len(fields) <= MAX_CACHED_CHARS else _compile.__wrapped__
    return compile_(request.kind, request.namespace, labels, fields)


@lru_cache(maxsize=1024)
def _compile(
    kind: ServedKind, namespace: str | None, labels: str, fields: str
) -> SelectionPredicate:
    try:
        by_label, by_field = parse_label_selector(labels), parse_field_selector(fields)
    except SelectorError as error:
        raise bad_request(f"unable to parse requirement: {error}") from None
    for selector in (by_label, by_field):
        if len(selector.requirements) > limits.MAX_SELECTOR_TERMS:
            raise bad_request(f"a selector has more than {limits.MAX_SELECTOR_TERMS} terms")
    key = None
    for requirement in by_field.requirements:
        if requirement.key not in (NAME, NAMESPACE, *kind.selectable):
            raise bad_request(f"field label not supported: {requirement.key}")
        if requirement.key == NAME and requirement.operator == "=":
            name = requirement.values[0]
            if not kind.namespaced or namespace:
                key = f"{namespace}/{name}" if kind.namespaced else name
    return SelectionPredicate(by_label, by_field, key)


PAUSE_FACTOR = 2.0
"""After a send round of duration t, the next round starts at least this times t later."""
MIN_PAUSE_S = 0.002
LAGGING_RETRY_S = 0.02
"""Seconds after which a lagging watcher is checked again."""
MAX_EVENTS_PER_ROUND = 1000
"""Maximum number of events sent to one watcher in one round."""
MAX_BYTES_PER_ROUND = 1 << 18
"""Bytes of events after which the next ones are sent in the next round; one event may be larger."""
MAX_STEP_S = 0.01
"""Seconds of a send round after which other work of the event loop comes first."""
MAX_BACKLOG_BYTES = 1 << 16
"""Unsent bytes of a connection above which its watcher is skipped."""

RenderFunction = Callable[[bytes], bytes]


class WatchView:
    """The selected objects and the format of a watcher. Views with equal keys share encodings.

    ``form`` identifies the format. ``shape`` converts a stored object to it (None: as stored).
    """

    __slots__ = ("form", "key", "namespace", "render", "selection")

    def __init__(
        self,
        namespace: str,
        selection: SelectionPredicate,
        form: object,
        shape: RenderFunction | None,
    ) -> None:
        self.namespace = namespace
        self.selection = selection
        self.render = shape
        self.form = form
        self.key = (namespace, selection.text, form)

    def includes(self, record: ObjectRevision) -> bool:
        if self.namespace and not record.key.startswith(self.namespace):
            return False
        return self.selection.matches_all or self.selection.matches(record)

    def encode(self, event: CacheEvent) -> bytes:
        """Return the event in this view; empty if the view does not include it."""
        forms = event.encoded_forms
        if forms is None:
            forms = event.encoded_forms = {}
        encoded = forms.get(self.key)
        if encoded is None:
            encoded = forms[self.key] = self._encode(event)
        return encoded

    def change(self, event: CacheEvent) -> tuple[str, bytes] | None:
        """Return what the event is in this view: its type and the stored object; None if the view
        does not include it.
        """
        now = self.includes(event.record)
        before = event.before is not None and self.includes(event.before)
        if event.type == DELETED:
            return (DELETED, event.record.body) if now or before else None
        if now:
            return (MODIFIED if before else ADDED), event.record.body
        if before and event.before is not None:
            return DELETED, _at_revision(event.before.body, event.record.rv)
        return None

    def _encode(self, event: CacheEvent) -> bytes:
        change = self.change(event)
        if change is None:
            return b""
        type_, body = change
        if body is event.record.body:
            return self._line_of_event(type_, event)
        return self.format_line(type_, body)

    def _line_of_event(self, type_: str, event: CacheEvent) -> bytes:
        """Views with different selectors share the rendered object and its line."""
        forms = event.encoded_forms
        if forms is None:
            return self.format_line(type_, event.record.body)
        line = forms.get((self.form, type_))
        if line is None:
            line = forms[self.form, type_] = _line(type_, self._rendered(event, forms))
        return line

    def _rendered(self, event: CacheEvent, forms: dict[object, bytes]) -> bytes:
        if self.render is None:
            return event.record.body
        shown = forms.get(self.form)
        if shown is None:
            shown = forms[self.form] = self.render(event.record.body)
        return shown

    def format_line(self, type_: str, body: bytes) -> bytes:
        return _line(type_, self.render(body) if self.render else body)


def _line(type_: str, shown: bytes) -> bytes:
    return b'{"type":"' + type_.encode() + b'","object":' + shown + b"}\n"


def _at_revision(body: bytes, rv: int) -> bytes:
    obj = read_json(body)
    obj["metadata"]["resourceVersion"] = str(rv)
    return encode_json(obj)


class Watcher:
    """One open watch."""

    def __init__(
        self,
        view: WatchView,
        cursor: int,
        transport: asyncio.WriteTransport,
        lagging: asyncio.Event | None = None,
    ) -> None:
        """With ``lagging``, a watch sends its events itself, and is told so when there are some."""
        self.lagging = lagging
        self.view = view
        self.cursor = cursor
        self.transport = transport
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.too_slow = False
        self._last_ready = time.monotonic()

    def end(self) -> None:
        """Complete the watch request."""
        if not self.ended.done():
            self.ended.set_result(None)

    def send(self, payload: bytes) -> None:
        self.transport.write(encode_chunk(payload))

    @property
    def ready(self) -> bool:
        """True if the client reads what was sent."""
        return self.transport.get_write_buffer_size() < MAX_BACKLOG_BYTES

    def disconnect_if_stalled(self) -> None:
        """Abort the connection of a client that has read nothing for too long."""
        now = time.monotonic()
        if self.ready:
            self._last_ready = now
        elif now - self._last_ready > STALL_TIMEOUT_S:
            self.transport.abort()
            self.end()


def encode_chunk(payload: bytes) -> bytes:
    """Return data as one chunk of HTTP chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class WatchBroadcaster:
    """Sends the events of one kind to its watchers."""

    def __init__(self, cache: WatchCache) -> None:
        self.cache = cache
        self.watchers: set[Watcher] = set()
        self._loop = asyncio.get_running_loop()
        self._not_before = 0.0
        self._encoded: list[CacheEvent] = []
        """Events that hold encodings for the watchers of this round."""
        self._due: asyncio.TimerHandle | None = None
        self._round: list[Watcher] = []
        """The watchers that the present round has not reached."""
        self._joined: dict[object, tuple[bytes, int]] = {}
        """Chunks of the present round by cursor and view, and the cursors after them."""
        self._chunks: dict[tuple[bytes, ...], bytes] = {}
        """The same chunks by their lines, for views that differ and show the same."""
        cache.on_publish = self.wake

    def wake(self) -> None:
        """Schedule the next send round."""
        if self._due is None and self.watchers:
            self._due = self._loop.call_at(max(self._not_before, self._loop.time()), self._send)

    def _send(self) -> None:
        """Send a round, or a step of one: a large event for many watchers takes long."""
        self._due = None
        started = time.perf_counter()
        if not self._round:
            self._round = list(self.watchers)
        took = 0.0
        while self._round and took < MAX_STEP_S:
            watcher = self._round.pop()
            if watcher.transport.is_closing():
                # A closed TLS transport cannot be asked for the size of its buffer.
                watcher.end()
            else:
                if watcher.ready:
                    self._send_to(watcher, self._joined)
                watcher.disconnect_if_stalled()
            took = time.perf_counter() - started
        if self._round:
            self._due = self._loop.call_later(took, self._send)
            return
        self._joined.clear()
        self._chunks.clear()
        self._drop_encoded_forms()
        self._not_before = self._loop.time() + max(MIN_PAUSE_S, took * PAUSE_FACTOR)
        end = self.cache.end
        if any(watcher.cursor < end for watcher in self.watchers):
            self._due = self._loop.call_later(LAGGING_RETRY_S, self._send)

    def _drop_encoded_forms(self) -> None:
        """Drop the encodings of sent events: nearly all watchers have them, and the history is
        long. Those of old events too, which a resumed watch was sent.
        """
        for event in self._encoded:
            event.encoded_forms = None
        self._encoded.clear()

    def _send_to(self, watcher: Watcher, joined: dict[object, tuple[bytes, int]]) -> None:
        cache = self.cache
        if watcher.lagging is not None:
            watcher.lagging.set()
            return
        if watcher.cursor < cache.base:
            watcher.too_slow = True
            watcher.end()
            return
        if watcher.cursor == cache.end:
            return
        key = (watcher.cursor, watcher.view.key)
        batch = joined.get(key)
        if batch is None:
            batch = joined[key] = self._join_events(watcher)
        payload, watcher.cursor = batch
        if payload:
            watcher.transport.write(payload)

    def _join_events(self, watcher: Watcher) -> tuple[bytes, int]:
        """Return the next events of a watcher as one chunk, and the cursor after them."""
        start = watcher.cursor - self.cache.base
        lines: list[bytes] = []
        count = size = 0
        for event in self.cache.events[start : start + MAX_EVENTS_PER_ROUND]:
            if event.encoded_forms is None:
                self._encoded.append(event)
            line = watcher.view.encode(event)
            if size and size + len(line) > MAX_BYTES_PER_ROUND:
                break
            lines.append(line)
            size += len(line)
            count += 1
        if not size:
            return b"", watcher.cursor + count
        # Views with different selectors often share their lines, which may be long.
        shown = tuple(line for line in lines if line)
        chunk = self._chunks.get(shown)
        if chunk is None:
            chunk = self._chunks[shown] = encode_chunk(b"".join(shown))
        return chunk, watcher.cursor + count

    def add(self, watcher: Watcher) -> None:
        self.watchers.add(watcher)
        if watcher.cursor < self.cache.end:
            self.wake()

    def remove(self, watcher: Watcher) -> None:
        self.watchers.discard(watcher)
        if watcher in self._round:
            self._round.remove(watcher)


class WatchBroadcasters:
    """The broadcasters of all kinds."""

    def __init__(self) -> None:
        self._by_name: dict[str, WatchBroadcaster] = {}

    def get(self, cache: WatchCache) -> WatchBroadcaster:
        broadcaster = self._by_name.get(cache.name)
        if broadcaster is None:
            broadcaster = self._by_name[cache.name] = WatchBroadcaster(cache)
        return broadcaster

    def end_all(self) -> None:
        for broadcast in self._by_name.values():
            for watcher in list(broadcast.watchers):
                watcher.end()

    def end_resource(self, name: str) -> None:
        """End the watches of a kind that is no longer served."""
        with contextlib.suppress(KeyError):
            for watcher in list(self._by_name[name].watchers):
                watcher.end()

    def count(self) -> int:
        return sum(len(broadcast.watchers) for broadcast in self._by_name.values())


def expired_event(revision: int, horizon: int) -> bytes:
    """Return the last event of a watch whose history was dropped."""
    return error_event(expired(f"too old resource version: {revision} ({horizon})"))


def error_event(error: StatusError) -> bytes:
    """Return the last event of a watch that ends with an error."""
    return b'{"type":"ERROR","object":' + encode_json(status_to_json(error.status)) + b"}\n"


def status_to_json(status: Status) -> dict[str, Any]:
    """Return a Status with the kind that encoding defaults would omit."""
    return {"kind": "Status", "apiVersion": "v1", **msgspec.to_builtins(status)}
