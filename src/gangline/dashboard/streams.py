"""Server-sent events: the parts of a page that have changed, at most once per second.

Each message has the HTML of one part, and the revision as its id. Viewers with the same rights and
the same address share the rendering, also of the page itself. Before the stream opens, and for each
message, the rights are those of ``Rights``, so a right that is taken away ends the stream within
30 s. A reader that does not read for ``READ_TIMEOUT_S`` is disconnected; the browser opens a new
stream and gets all parts.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from aiohttp import web

from gangline.dashboard.rights import put_last

INTERVAL_S = 1.0
"""Shortest time between two messages of one part."""
PAUSE_S = 0.2
"""Shortest time between two looks at a job, whose changes are known one by one."""
REFRESH_S = 5.0
"""A page is computed again after this time: figures that are read, not observed, may be new."""
COMMENT_S = 15.0
READ_TIMEOUT_S = 30.0
MAX_RENDERED, UNUSED_S = 500, 15.0
"""Pages whose parts are kept, and how long they are after their last reader."""
_TIME = re.compile(r"(<time [^>]*>)[^<]*")
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


def message(parts: Mapping[str, str], event_id: str, swap: str = "outerMorph") -> bytes:
    """Return an event that replaces parts of the page, HTML by the id of its element; with
    ``beforeend`` it is added to the element.
    """
    html = "".join(
        f'<hx-partial hx-target="#{name}" hx-swap="{swap}">{content}</hx-partial>'
        for name, content in parts.items()
    )
    return _event(f"id: {event_id}", html)


def named(event: str, data: str = "") -> bytes:
    """Return an event with a name, which the page's script handles."""
    return _event(f"event: {event}", data)


def _event(head: str, data: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"{head}\n{lines}\n".encode()


def digest(html: str) -> str:
    """Return the digest of a part without its relative times: these change by themselves."""
    return hashlib.blake2b(_TIME.sub(r"\1", html).encode(), digest_size=8).hexdigest()


@dataclass(slots=True)
class RenderedParts:
    """The parts of one page for equal viewers."""

    state: tuple[int, int] = (-1, -1)
    view: Any = None
    parts: Mapping[str, str] = field(default_factory=dict)
    """HTML of each part of the view."""
    digests: Mapping[str, str] = field(default_factory=dict)
    used_at: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _messages: dict[tuple[str, ...], bytes] = field(default_factory=dict)

    def set(self, state: tuple[int, int], view: Any, parts: Mapping[str, str]) -> None:
        self.state, self.view, self.parts, self._messages = state, view, parts, {}
        self.digests = {name: digest(html) for name, html in parts.items()}

    def news(self, sent: Mapping[str, str]) -> bytes:
        """Return the event with the parts whose digests are not those that were sent; empty if all
        are. Readers with the same state share it.
        """
        names = tuple(name for name, mark in self.digests.items() if sent.get(name) != mark)
        if names and names not in self._messages:
            changed = {name: self.parts[name] for name in names}
            self._messages[names] = message(changed, str(self.state[0]))
        return self._messages[names] if names else b""


class RenderCache:
    """Parts that several viewers see."""

    def __init__(self) -> None:
        self._rendered: dict[Any, RenderedParts] = {}

    async def parts(
        self, key: Any, revision: int, render: Callable[[], Awaitable[tuple[Any, dict[str, str]]]]
    ) -> RenderedParts:
        """Return view and parts of a revision; one of the viewers computes and renders them."""
        now = time.monotonic()
        rendered = self._rendered.get(key) or RenderedParts()
        rendered.used_at = now
        put_last(self._rendered, key, rendered, MAX_RENDERED)
        unused = takewhile(lambda one: one[1].used_at < now - UNUSED_S, self._rendered.items())
        for old, _ in list(unused):
            del self._rendered[old]
        # Pages are not all computed at the same moment, hence the offset.
        state = revision, int(now / REFRESH_S + hash(key) % 1024 / 1024)
        async with rendered.lock:
            if rendered.state != state:
                rendered.set(state, *await render())
        return rendered


class PageStream:
    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers=HEADERS)
        self._sent_at = time.monotonic()

    async def open(self) -> None:
        """Send the headers, and a first comment, so that proxies pass on what follows."""
        await self.response.prepare(self._request)
        await self.send(b": open\n\n")

    async def send(self, data: bytes) -> None:
        """Send an event; ``ConnectionError`` if the reader is gone, or does not read."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self.response.write(data)
        except TimeoutError as error:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the reader does not read") from error
        self._sent_at = time.monotonic()

    async def rest(self, waiting: Awaitable[Any], *, eager: bool = False) -> None:
        """Wait for news, but not so long that the connection or the page becomes stale; ``eager``
        if looking at the news costs little.

        Raises:
            ConnectionError: the reader is gone.
        """
        await wait_until(waiting, REFRESH_S)
        since_sent = time.monotonic() - self._sent_at
        await asyncio.sleep(max(PAUSE_S if eager else INTERVAL_S, INTERVAL_S - since_sent))
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the reader is gone")
        if time.monotonic() - self._sent_at >= COMMENT_S:
            await self.send(b":\n\n")


async def wait_until(work: Awaitable[Any], timeout_s: float) -> None:
    """Wait for something, but not longer than a timeout."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await work
