"""Replies leave only after what they follow from is written down, many at a time.

Written down is what the process's death cannot take any more: the system has it. What must outlive
the machine too waits until the disk has it; while one batch is on its way there the next gathers,
so a disk that takes a millisecond does not limit how many requests are answered. A full disk stops
nobody: the master goes on, says so, and tries again; agents tell a next master what matters.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from gangline.elastic.master.journal import Journal
from gangline.elastic.protocol.messages import JobEvent
from gangline.elastic.protocol.server import Peer

log = logging.getLogger(__name__)

RETRY_S = 1.0
SYNC_EVERY_S = 1.0
"""The disk gets what nobody waits for so often. Not always at once: the system lets nobody write to
a file while it brings it to the disk, and that would hold up all requests."""


class Outbox:
    """Holds replies back until the journal has what came before them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._snapshot: Callable[[], bytes] = bytes
        self._failed: Callable[[OSError], None] = lambda error: None
        self._unwritten: list[_Letter] = []
        """Replies that leave when the journal is written."""
        self._unsafe: list[_Letter] = []
        """Replies that leave when what is written has reached the disk."""
        self._is_due = False
        self._is_sync_due = False
        self._is_failing = False
        self._awake = asyncio.Event()

    def serve(self, snapshot: Callable[[], bytes], failed: Callable[[OSError], None]) -> None:
        """Say where the whole state comes from, and who is told when it cannot be written."""
        self._snapshot, self._failed = snapshot, failed

    def record(self, record: bytes) -> None:
        """Write a record at the end of this turn of the event loop."""
        self._journal.append(record)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._write)

    def show(self, news: Sequence[JobEvent]) -> None:
        """Show people what has happened."""
        for event in news:
            self._journal.show(event)

    def send(self, peer: Peer, number: int, body: bytes, *, is_lasting: bool = False) -> None:
        """Send a reply when all records before it are written.

        Args:
            peer: who asked.
            number: the request's number.
            body: the encoded reply.
            is_lasting: what was answered must outlive not only the process but the machine.
        """
        if not self._is_due:
            peer.send_body(number, body)
        elif is_lasting and self._journal.is_slow and not self._is_failing:
            self._unsafe.append((peer, number, body))
        else:
            self._unwritten.append((peer, number, body))

    async def run(self) -> None:
        """Bring to the disk what is written, for ever."""
        while True:
            await self._awake.wait()
            self._awake.clear()
            await self.flush()
            if self._is_failing:
                await asyncio.sleep(RETRY_S)
                self._awake.set()

    async def flush(self) -> None:
        """Bring to the disk what is written, and send what waited for it."""
        if self._is_due:
            self._write()
        self._is_sync_due = False
        unsafe, self._unsafe = self._unsafe, []
        try:
            if self._journal.wants_snapshot:
                await self._journal.shorten(self._snapshot())
            else:
                await self._journal.sync()
            self._is_failing = False
        except OSError as error:
            self._fail(error)
        _send(unsafe)

    def _write(self) -> None:
        self._is_due = False
        try:
            self._journal.write()
        except OSError as error:
            self._fail(error)
        unwritten, self._unwritten = self._unwritten, []
        _send(unwritten)
        if self._unsafe or self._is_failing or self._journal.wants_snapshot:
            self._awake.set()
        elif not self._is_sync_due:
            self._is_sync_due = True
            asyncio.get_running_loop().call_later(SYNC_EVERY_S, self._awake.set)

    def _fail(self, error: OSError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.error("the journal cannot be written", extra={"reason": str(error)})
            self._failed(error)


_Letter = tuple[Peer, int, bytes]


def _send(letters: list[_Letter]) -> None:
    for peer, number, body in letters:
        peer.send_body(number, body)
