"""The order in which TLS handshakes start: one after the other, in turn for each peer.

A handshake takes two milliseconds of processor time on the event loop. Hundreds of them that start
together would delay all requests by a second.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

PAUSE_S = 0.001
"""Seconds between two handshakes, in which requests are served."""


class _Client(NamedTuple):
    start: Callable[[], None]
    refuse: Callable[[], None]


class HandshakeQueue:
    """Clients whose first bytes have arrived, by peer."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[_Client]] = OrderedDict()
        self._filled = asyncio.Event()

    def add(self, peer: str, start: Callable[[], None], refuse: Callable[[], None]) -> None:
        """Call ``start`` when it is the turn of this client, or ``refuse`` if that never comes."""
        self._waiting.setdefault(peer, deque()).append(_Client(start, refuse))
        self._filled.set()

    def clear(self) -> None:
        """Refuse the clients that wait."""
        for clients in self._waiting.values():
            for client in clients:
                client.refuse()
        self._waiting.clear()
        self._filled.clear()

    async def run(self) -> None:
        """Start handshakes until cancelled."""
        while True:
            await self._filled.wait()
            peer, clients = self._waiting.popitem(last=False)
            client = clients.popleft()
            if clients:
                self._waiting[peer] = clients  # at the end: the other peers come first
            if not self._waiting:
                self._filled.clear()
            client.start()
            await asyncio.sleep(PAUSE_S)
