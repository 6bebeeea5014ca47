"""The audit log: a bounded queue that one thread writes to a file.

A request never waits for the disk. If the queue is full, because the disk is slow or the file
cannot be written, further events are lost; they are counted, and a warning names their number. A
killed process loses the events of the last tenth of a second. Nothing is synced to the disk.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gangline.local.apiserver.audit.events import (
    RESPONSE_COMPLETE,
    RESPONSE_STARTED,
    RequestTrace,
    encode_event,
)
from gangline.local.apiserver.audit.log_file import RotatedFile

log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 16 << 20
WRITE_INTERVAL_S = 0.1
CLOSE_TIMEOUT_S = 5.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Where audit events are written."""

    path: Path
    max_mib: int = 100
    """The size in MiB at which the file is rotated."""
    backups: int = 10
    """The number of rotated files to keep."""


class AuditLog:
    """Writes events to a file, in a thread of its own."""

    def __init__(
        self,
        settings: AuditSettings,
        on_lost: Callable[[int], None] = lambda count: None,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        """Open the file and start the thread, which calls ``on_lost`` with numbers of lost events.

        Raises:
            OSError: the file cannot be opened.
        """
        self._file = RotatedFile(settings.path, settings.max_mib * MIB, settings.backups)
        self._path = settings.path
        self._on_lost = on_lost
        self._max_queued_bytes = max_queued_bytes
        self._changed = threading.Condition()
        self._queued: list[bytes] = []
        self._queued_bytes = self._dropped = 0
        self._closing = False
        self._failing = False
        self._thread = threading.Thread(target=self._write_forever, name="audit", daemon=True)
        self._thread.start()

    def record_start(self, trace: RequestTrace) -> None:
        """Record that the response of a long request, such as exec, begins."""
        self._enqueue(encode_event(trace, RESPONSE_STARTED, datetime.now(UTC)))

    def record_end(self, trace: RequestTrace) -> None:
        """Record that a request is answered."""
        self._enqueue(encode_event(trace, RESPONSE_COMPLETE, datetime.now(UTC)))

    def close(self) -> None:
        """Write the queued events and close the file; give up on a disk that does not respond."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _enqueue(self, line: bytes) -> None:
        with self._changed:
            if self._queued_bytes + len(line) > self._max_queued_bytes:
                self._dropped += 1
                return
            if not self._queued:
                self._changed.notify()
            self._queued.append(line)
            self._queued_bytes += len(line)

    def _write_forever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queued or self._closing)
                # One write for the events of an interval: a thread that woke for each event would
                # compete with the event loop for the interpreter lock.
                self._changed.wait_for(lambda: self._closing, WRITE_INTERVAL_S)
                batch, self._queued = self._queued, []
                dropped, self._dropped = self._dropped, 0
                self._queued_bytes = 0
            if batch:
                self._write(batch)
            if dropped:
                self._report_lost(dropped, "the queue was full")
            if not batch:
                self._file.close()
                return

    def _write(self, batch: list[bytes]) -> None:
        try:
            self._file.append(b"".join(batch))
        except OSError as error:
            self._report_lost(len(batch), str(error))
            self._failing = True
        else:
            self._failing = False

    def _report_lost(self, count: int, why: str) -> None:
        self._on_lost(count)
        if not self._failing:  # once until a write succeeds
            log.warning(
                "audit events are lost", extra={"path": str(self._path), "count": count, "why": why}
            )
