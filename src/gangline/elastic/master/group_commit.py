"""Group commit: a reply leaves only after its records are written, many at a time.

"Written" means that the kernel has the record, so that it survives the process. A reply that must
survive the machine waits for the disk too. While one batch is synced the next one is collected, so
the latency of the disk does not limit the rate of requests. With a full disk the master continues,
reports the error and tries again; agents repeat what matters to the next master.

Invariant: replies to one client leave in the order in which their records were written.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from gangline.elastic.master.journal.journal import Journal
from gangline.elastic.protocol.messages import JobEvent
from gangline.elastic.protocol.server import Peer

log = logging.getLogger(__name__)

RETRY_S = 1.0
SYNC_EVERY_S = 1.0
"""Interval of syncs that no reply waits for. Not more often: the kernel blocks writes to a file
while it syncs it, which would delay all requests.
"""


class GroupCommit:
    """Delays replies until the journal has the records before them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._snapshot: Callable[[], bytes] = bytes
        self._failed: Callable[[OSError], None] = lambda error: None
        self._unwritten: list[_DelayedReply] = []
        """Replies that leave when the journal is written."""
        self._unsafe: list[_DelayedReply] = []
        """Replies that leave when the journal is on disk."""
        self._is_due = False
        self._is_sync_due = False
        self._is_failing = False
        self._awake = asyncio.Event()

    def configure(self, snapshot: Callable[[], bytes], failed: Callable[[OSError], None]) -> None:
        """Set the source of the state, and the callback for a journal that cannot be written."""
        self._snapshot, self._failed = snapshot, failed

    def append_record(self, record: bytes) -> None:
        """Append a record; it is written at the end of this turn of the event loop."""
        self._journal.append(record)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._write)

    def publish_events(self, events: Sequence[JobEvent]) -> None:
        for event in events:
            self._journal.publish_event(event)

    def send(self, peer: Peer, number: int, body: bytes, *, is_durable: bool = False) -> None:
        """Send a reply when all records before it are written.

        Args:
            peer: the connection of the client.
            number: the request's number.
            body: the encoded reply.
            is_durable: wait until the records are on disk, so that they survive the machine.
        """
        if not self._is_due:
            peer.send_body(number, body)
        elif is_durable and self._journal.is_slow and not self._is_failing:
            self._unsafe.append((peer, number, body))
        else:
            self._unwritten.append((peer, number, body))

    async def run(self) -> None:
        """Sync the journal whenever that is due, for ever."""
        while True:
            await self._awake.wait()
            self._awake.clear()
            await self.flush()
            if self._is_failing:
                await asyncio.sleep(RETRY_S)
                self._awake.set()

    async def flush(self) -> None:
        """Sync the journal, and send the replies that waited for it."""
        if self._is_due:
            self._write()
        self._is_sync_due = False
        unsafe, self._unsafe = self._unsafe, []
        try:
            if self._journal.needs_compaction:
                await self._journal.compact(self._snapshot())
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
        if self._unsafe or self._is_failing or self._journal.needs_compaction:
            self._awake.set()
        elif not self._is_sync_due:
            self._is_sync_due = True
            asyncio.get_running_loop().call_later(SYNC_EVERY_S, self._awake.set)

    def _fail(self, error: OSError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.error("the journal cannot be written", extra={"reason": str(error)})
            self._failed(error)


_DelayedReply = tuple[Peer, int, bytes]


def _send(replies: list[_DelayedReply]) -> None:
    for peer, number, body in replies:
        peer.send_body(number, body)
