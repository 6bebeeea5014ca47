"""The audit log: who requested what, when, and with which result.

Events have the format of Kubernetes (``audit.k8s.io/v1``, level Metadata): no bodies, so that the
log contains no Secret. The options of the request are in ``requestURI``, among them the commands of
exec.

A bounded queue stands between requests and the one thread that writes the file, so a request never
waits for the disk. If the queue is full, further events are lost; they are counted, and a warning
names their number. A killed process loses the events of the last tenth of a second. Nothing is
synced to the disk. A full file is renamed to ``NAME-TIME.EXTENSION``, as Kubernetes' API server
does, and the oldest renamed files beyond a limit are removed. Only the owner can read them.
"""

import contextlib
import logging
import os
import re
import stat
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gangline.api.meta.objects import Status
from gangline.local.apiserver.core.negotiation import encode_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest, RequestUser

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
_TIME = re.compile(r"-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{6}")


class RotatedFile:
    """An open file of lines."""

    def __init__(self, path: Path, max_bytes: int, backups: int) -> None:
        """Open the file. Raises OSError: it cannot be opened, or is not a regular file."""
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._torn = False
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = self._open()

    def append(self, lines: bytes) -> None:
        """Append complete lines, to a new file if this one would exceed its size. Raises OSError:
        they were not written, or only in part. The next call begins a new line.
        """
        if self._descriptor < 0:
            self._descriptor = self._open()
        if self._size and self._size + len(lines) > self._max_bytes:
            self._rotate()
        if self._torn:
            lines = b"\n" + lines
        left = memoryview(lines)
        while left:
            written = os.write(self._descriptor, left)
            self._size += written
            left = left[written:]
            self._torn = bool(left)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> int:
        descriptor = os.open(self._path, _FLAGS, 0o600)
        try:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise OSError(f"{self._path} is not a regular file")
            os.fchmod(descriptor, 0o600)
            self._size = state.st_size
            # A process that was killed may have left an incomplete line.
            self._torn = bool(self._size) and os.pread(descriptor, 1, self._size - 1) != b"\n"
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _rotate(self) -> None:
        path = self._path
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")
        self.close()
        # If the folder permits no change, lines are appended to the full file: none is lost.
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f"{path.stem}-{at}{path.suffix}"))
            for old in sorted(self._rotated())[: -self._backups or None]:
                old.unlink()
        self._descriptor = self._open()

    def _rotated(self) -> list[Path]:
        path = self._path
        return [
            file
            for file in path.parent.iterdir()
            if file.suffix == path.suffix
            and file.stem.startswith(path.stem)
            and _TIME.fullmatch(file.stem.removeprefix(path.stem))
        ]


RESPONSE_STARTED, RESPONSE_COMPLETE = "ResponseStarted", "ResponseComplete"
DECISION, REASON = "authorization.k8s.io/decision", "authorization.k8s.io/reason"


@dataclass(slots=True)
class RequestTrace:
    """What is known about a request, completed while it is handled."""

    method: str
    uri: str
    source_address: str
    user_agent: str
    received: datetime = field(default_factory=lambda: datetime.now(UTC))
    audit_id: str = ""
    """The same in all events of a request; assigned with the first."""
    user: RequestUser | None = None
    """The authenticated user; None before authentication, and if it fails."""
    impersonated: RequestUser | None = None
    request: ApiRequest | None = None
    """The request for objects; None for a non-resource path."""
    reason: str = ""
    """Why the request is authorized; empty if it is not."""
    code: int = 0
    """The HTTP status; 0 if the client disconnected before it."""
    failure: Status | None = None


def encode_event(trace: RequestTrace, stage: str, now: datetime) -> bytes:
    """Return the event of a stage as one line."""
    request = trace.request
    trace.audit_id = trace.audit_id or str(uuid.uuid4())
    event: Json = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": trace.audit_id,
        "stage": stage,
        "requestURI": trace.uri,
        "verb": request.verb if request is not None else trace.method.lower(),
        "user": trace.user.to_json() if trace.user is not None else {},
    }
    if trace.impersonated is not None:
        event["impersonatedUser"] = trace.impersonated.to_json()
    event["sourceIPs"] = [trace.source_address] if trace.source_address else []
    if trace.user_agent:
        event["userAgent"] = trace.user_agent
    if request is not None:
        event["objectRef"] = _object_reference(request)
    if stage == RESPONSE_COMPLETE:
        event["responseStatus"] = _response_status(trace)
    event["requestReceivedTimestamp"] = _timestamp(trace.received)
    event["stageTimestamp"] = _timestamp(now)
    if trace.reason:
        event["annotations"] = {DECISION: "allow", REASON: trace.reason}
    elif trace.code == 403:
        event["annotations"] = {DECISION: "forbid", REASON: ""}
    if request is not None and request.audit_annotations:
        event["annotations"] = event.get("annotations", {}) | request.audit_annotations
    try:
        return encode_json(event) + b"\n"
    except UnicodeEncodeError:  # headers may contain bytes that are not UTF-8
        return encode_json(_escaped(event)) + b"\n"


def _escaped(value: Any) -> Any:
    """Return a value whose text has ``\\udc80`` in place of a byte that is not UTF-8."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(name): _escaped(item) for name, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value


def _object_reference(request: ApiRequest) -> Json:
    kind = request.kind
    named = {
        "resource": kind.plural,
        "namespace": request.namespace,
        "name": request.name,
        "apiGroup": kind.group,
        "apiVersion": kind.version,
        "subresource": request.subresource,
    }
    return {name: value for name, value in named.items() if value}


def _response_status(trace: RequestTrace) -> Json:
    status: Json = {"metadata": {}}
    if trace.failure is not None:
        failure = trace.failure
        status |= {"status": "Failure", "message": failure.message, "reason": failure.reason}
    return status | ({"code": trace.code} if trace.code else {})


def _timestamp(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


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
        Raises OSError: the file cannot be opened.
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
