"""Replies leave only after what they follow from is written down, many at a time.

While one batch is being written, the next one gathers; so a disk that takes a millisecond does not
limit how many requests are answered in a second. A disk that is full stops nobody: the master goes
on, says so, and tries again; agents repeat to a next master what matters.
"""

import asyncio
import logging
from collections.abc import Callable

from gangline.elastic.master.journal import Journal
from gangline.elastic.protocol.server import Peer

log = logging.getLogger(__name__)

RETRY_S = 1.0


class Outbox:
    """Holds replies back until the journal has what came before them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._snapshot: Callable[[], bytes] = bytes
        self._failed: Callable[[OSError], None] = lambda error: None
        self._held: list[tuple[Peer, int, bytes]] = []
        self._awake = asyncio.Event()
        self._is_writing = False
        self._is_failing = False

    def serve(self, snapshot: Callable[[], bytes], failed: Callable[[OSError], None]) -> None:
        """Say where the whole state comes from, and who is told when it cannot be written."""
        self._snapshot, self._failed = snapshot, failed

    def record(self, record: bytes) -> None:
        """Write a record with the next batch."""
        self._journal.append(record)
        self._awake.set()

    def send(self, peer: Peer, number: int, body: bytes) -> None:
        """Send a reply as soon as all records before it are written."""
        if self._journal.is_dirty or self._is_writing:
            self._held.append((peer, number, body))
        else:
            peer.send_body(number, body)

    async def run(self) -> None:
        """Write batches for ever."""
        while True:
            await self._awake.wait()
            self._awake.clear()
            await self.flush()
            if self._is_failing:
                await asyncio.sleep(RETRY_S)
                self._awake.set()

    async def flush(self) -> None:
        """Write what is there and send what waited for it."""
        held, self._held = self._held, []
        self._is_writing = True
        try:
            if self._journal.wants_snapshot:
                await self._journal.shorten(self._snapshot())
            else:
                await self._journal.commit()
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                log.error("the journal cannot be written", extra={"reason": str(error)})
                self._failed(error)
            self._is_failing = True
        finally:
            self._is_writing = False
        for peer, number, body in held:
            peer.send_body(number, body)
        if self._held:
            self._awake.set()
