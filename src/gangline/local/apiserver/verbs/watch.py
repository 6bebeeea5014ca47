"""The watch verb over HTTP: the initial state if requested, then changes and bookmarks."""

import asyncio
import random
from collections.abc import Iterator
from itertools import chain
from typing import Any

from aiohttp import web

from gangline.local.apiserver.admission.conversion_webhooks import ConversionWebhooks
from gangline.local.apiserver.core.errors import StatusError, bad_request
from gangline.local.apiserver.core.negotiation import ResponseFormat, choose_format, encode_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest, join_parts, write_part
from gangline.local.apiserver.flowcontrol import LONG_SELECTION, FlowController
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import ADDED, ObjectRevision, WatchCache
from gangline.local.apiserver.verbs import read
from gangline.local.apiserver.verbs.read import check_revision_reached
from gangline.local.apiserver.watch import (
    WatchBroadcasters,
    Watcher,
    WatchView,
    compile_selection,
    error_event,
    expired_event,
)

BOOKMARK_INTERVAL_S = 30.0
DEFAULT_TIMEOUT_RANGE_S = (1800.0, 3600.0)
MAX_TIMEOUT_S = 10 * 365 * 86400.0
STALL_CHECK_INTERVAL_S = 10.0
CHUNK_BYTES = 1 << 16
MAX_CONVERTED_EVENTS = 100
"""Events whose objects a webhook converts at a time."""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class WatchHandler:
    """Handles watch requests."""

    def __init__(
        self,
        store: ObjectStore,
        broadcasts: WatchBroadcasters,
        flow: FlowController,
        conversions: ConversionWebhooks,
    ) -> None:
        self._conversions = conversions
        self._store = store
        self._flow = flow
        self._broadcasts = broadcasts

    async def __call__(
        self, request: web.BaseRequest, api_request: ApiRequest
    ) -> web.StreamResponse:
        """Stream the requested changes until the watch times out."""
        view = _view(api_request)
        revision = check_revision_reached(
            self._store, api_request.params.get("resourceVersion", "")
        )
        with_state = _sends_initial_state(api_request, revision)
        length = float(api_request.int_param("timeoutSeconds") or 0)
        length = min(length, MAX_TIMEOUT_S) or random.uniform(*DEFAULT_TIMEOUT_RANGE_S)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            return response
        cache = self._store.cache(api_request.kind.storage_name)
        if not with_state and revision < cache.horizon:
            await response.write(expired_event(revision, cache.horizon))
            return response
        # Invariant: no await between taking the cursor and reading the state, so they match.
        start = cache.end if with_state else cache.position_after(revision)
        converts = api_request.kind.converts_when_read
        watcher = Watcher(view, start, transport, asyncio.Event() if converts else None)
        if with_state:
            bookmarks = api_request.bool_param("allowWatchBookmarks")
            state = [cache.records[key] for key in cache.keys(api_request.namespace)]
            if converts:
                try:
                    state = await self._convert(api_request, state)
                except StatusError as error:
                    await response.write(error_event(error))
                    return response
            lines = await self._state_lines(api_request, view, state)
            if api_request.bool_param("sendInitialEvents") and bookmarks:
                lines = chain(lines, [self._bookmark(api_request, view, initial=True)])
            for chunk in join_parts(lines, CHUNK_BYTES):
                await write_part(request, response, chunk)
                await asyncio.sleep(0)
        if converts:
            await self._follow_converted(api_request, response, watcher, (cache, length))
        else:
            await self._follow(api_request, watcher, cache, length)
        if watcher.too_slow and not transport.is_closing():
            await response.write(expired_event(revision, cache.horizon))
        return response

    async def _state_lines(
        self, api_request: ApiRequest, view: WatchView, state: list[ObjectRevision]
    ) -> Iterator[bytes]:
        """Return the lines of the selected objects. Each is formatted when it is sent, so that a
        client that reads slowly needs no memory for the others.

        Many watches may start at the same time, so the selection is made in a thread.
        """
        if len(state) * view.selection.terms > LONG_SELECTION:
            state = await self._flow.compute(api_request.user, _select, view, state)
        elif not view.selection.matches_all:
            state = _select(view, state)
        return (view.format_line(ADDED, record.body) for record in state)

    async def _follow(
        self, api_request: ApiRequest, watcher: Watcher, cache: WatchCache, length: float
    ) -> None:
        broadcast = self._broadcasts.get(cache)
        loop = asyncio.get_running_loop()
        ends = loop.time() + length
        next_bookmark = loop.time() + BOOKMARK_INTERVAL_S
        broadcast.add(watcher)
        try:
            while not watcher.ended.done():
                left = ends - loop.time()
                if left <= 0:
                    break
                await asyncio.wait([watcher.ended], timeout=min(left, STALL_CHECK_INTERVAL_S))
                watcher.disconnect_if_stalled()
                if loop.time() < next_bookmark:
                    continue
                next_bookmark = loop.time() + BOOKMARK_INTERVAL_S
                # A bookmark claims that all earlier events were sent: not while lagging.
                seen_all = watcher.cursor == cache.end and watcher.ready
                if (
                    api_request.bool_param("allowWatchBookmarks")
                    and seen_all
                    and not watcher.ended.done()
                ):
                    watcher.send(self._bookmark(api_request, watcher.view))
        finally:
            broadcast.remove(watcher)

    async def _convert(
        self, api_request: ApiRequest, state: list[ObjectRevision]
    ) -> list[ObjectRevision]:
        bodies = await self._conversions.read(api_request.kind, [record.body for record in state])
        return [record.with_body(body) for record, body in zip(state, bodies, strict=True)]

    async def _follow_converted(
        self,
        api_request: ApiRequest,
        response: web.StreamResponse,
        watcher: Watcher,
        source: tuple[WatchCache, float],
    ) -> None:
        """Send the events of a kind whose objects a webhook converts, some at a time."""
        (cache, length), view, broadcast = source, watcher.view, self._broadcasts.get(source[0])
        broadcast.add(watcher)
        try:
            async with asyncio.timeout(length):
                while not watcher.ended.done():
                    if watcher.cursor < cache.base:
                        watcher.too_slow = True
                        return
                    start = watcher.cursor - cache.base
                    events = cache.events[start : start + MAX_CONVERTED_EVENTS]
                    if not events:
                        await self._wait_for_events(api_request, response, watcher)
                        continue
                    changes = [change for event in events if (change := view.change(event))]
                    bodies = await self._conversions.read(
                        api_request.kind, [body for _, body in changes]
                    )
                    lines = [
                        view.format_line(type_, body)
                        for (type_, _), body in zip(changes, bodies, strict=True)
                    ]
                    watcher.cursor += len(events)
                    if lines:
                        await response.write(b"".join(lines))
        except StatusError as error:
            await response.write(error_event(error))
        except TimeoutError:
            return
        finally:
            broadcast.remove(watcher)

    async def _wait_for_events(
        self, api_request: ApiRequest, response: web.StreamResponse, watcher: Watcher
    ) -> None:
        assert watcher.lagging is not None
        watcher.lagging.clear()
        waiting = asyncio.ensure_future(watcher.lagging.wait())
        ends: list[asyncio.Future[Any]] = [waiting, watcher.ended]
        try:
            done, _ = await asyncio.wait(
                ends, timeout=BOOKMARK_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if not done and api_request.bool_param("allowWatchBookmarks"):
            await response.write(self._bookmark(api_request, watcher.view))

    def _bookmark(
        self, api_request: ApiRequest, view: WatchView, *, initial: bool = False
    ) -> bytes:
        meta: Json = {"resourceVersion": str(self._store.revision)}
        if initial:
            meta["annotations"] = {INITIAL_EVENTS_END: "true"}
        kind = api_request.kind
        obj = encode_json({"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta})
        return view.format_line("BOOKMARK", obj)


def _view(api_request: ApiRequest) -> WatchView:
    form = choose_format(api_request.accept, (read.TABLE, read.PARTIAL_OBJECT))
    namespace = f"{api_request.namespace}/" if api_request.namespace else ""
    include = api_request.params.get("includeObject", "")
    key = None if form == ResponseFormat() else (form, include)
    return WatchView(
        namespace,
        compile_selection(api_request),
        (api_request.kind.version, key),
        read.make_renderer(api_request, form),
    )


def _sends_initial_state(api_request: ApiRequest, revision: int) -> bool:
    requested = api_request.optional_bool_param("sendInitialEvents")
    if requested is None:
        return revision == 0
    if api_request.params.get("resourceVersionMatch") != "NotOlderThan":
        raise bad_request(
            "resourceVersionMatch is required to be NotOlderThan when sendInitialEvents is given"
        )
    return requested


def _select(view: WatchView, state: list[ObjectRevision]) -> list[ObjectRevision]:
    return [record for record in state if view.includes(record)]
