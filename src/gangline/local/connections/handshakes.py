"""The order in which TLS handshakes start: one after the other, in turn for each peer.

A handshake takes two milliseconds of processor time on the event loop. Hundreds of them that start
together would delay all requests by a second.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

PAUSE_S = 0.001
"""Seconds between two handshakes, in which requests are served."""


class HandshakeQueue:
    """Clients whose first bytes have arrived, by peer."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._filled = asyncio.Event()

    def add(self, peer: str, start: Callable[[], None]) -> None:
        """Call ``start`` when it is the turn of this client."""
        self._waiting.setdefault(peer, deque()).append(start)
        self._filled.set()

    async def run(self) -> None:
        """Start handshakes until cancelled."""
        while True:
            await self._filled.wait()
            peer, clients = self._waiting.popitem(last=False)
            start = clients.popleft()
            if clients:
                self._waiting[peer] = clients  # at the end: the other peers come first
            if not self._waiting:
                self._filled.clear()
            start()
            await asyncio.sleep(PAUSE_S)
