"""Replication: savers of a job exchange segments, so that a lost node needs no read from storage.

There is one TLS connection for each segment, authenticated with the job's token. The client sends a
request; then the complete segment follows. The receiver verifies every entry before the segment
gets its name.

While a segment is received, one thread reads and another computes checksums and writes blocks that
are still in the processor's cache. Measured with 524 MB over loopback on two cores: 0.62 s into a
mapping, whose pages are zeroed first, 0.46 s with ``pwrite``, 0.38 s with two threads.
"""

import contextlib
import logging
import os
import socket
import socketserver
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import BufferedIOBase, RawIOBase
from pathlib import Path
from typing import Literal

import msgspec

from gangline.elastic.checkpoint.errors import CheckpointError, CorruptError, MemoryShortError
from gangline.elastic.checkpoint.format.checksum import CHECKSUM_BLOCK, checksum
from gangline.elastic.checkpoint.format.manifest import LayoutEntry, PartLayout
from gangline.elastic.checkpoint.snapshot import directory, inventory
from gangline.elastic.checkpoint.snapshot.directory import FileLock, SaverSettings
from gangline.elastic.checkpoint.snapshot.inventory import SnapshotInfo
from gangline.elastic.checkpoint.snapshot.segment import (
    PAGE,
    Segment,
    SegmentHeader,
    SegmentState,
    create_segment,
)
from gangline.elastic.checkpoint.storage import commit
from gangline.elastic.protocol.channel import (
    JobSecret,
    SecretsDifferError,
    SecureChannelError,
    accept_securely,
    connect_securely,
)
from gangline.elastic.variables import split_address

_Stream = RawIOBase | BufferedIOBase
_BLOCKS = 4
"""Number of blocks that the reader may be ahead of the writer."""
log = logging.getLogger(__name__)
PEER_TIMEOUT_S = 30.0
"""Longest pause in a peer's traffic before the connection is given up."""
HANDSHAKE_TIMEOUT_S = 10.0
"""How long a new connection may take to prove that it knows the token."""
MAX_UNAUTHENTICATED = 64
"""Connections, each with a thread, that have not proved it yet; above it the oldest one is cut."""
_LINE = 4096
_SEND_BYTES = 1 << 20
_ARRIVING = "arriving-"
"""Prefix of the names of segments that are not complete yet."""


class SegmentRequest(msgspec.Struct, frozen=True):
    """Request for the segment of ``rank`` at ``step``."""

    verb: Literal["get", "put"]
    rank: int
    step: int
    plan: str
    bytes: int = 0
    """Length of the segment that follows a ``put``."""


class SegmentReply(msgspec.Struct, frozen=True):
    bytes: int = 0
    """Length of the segment that follows, after a ``get``."""
    refusal: str = ""


def receive_segment(stream: _Stream, segment: Segment, request: SegmentRequest) -> None:
    """Read a requested segment into ``segment``, which has its size and no content yet; verify it.

    Raises:
        CorruptError: the bytes are no segment or another one, are damaged, or ended early.
        MemoryShortError: shared memory is too small for it.
        OSError: the connection broke.
    """
    size = request.bytes
    with ThreadPoolExecutor(1, thread_name_prefix="gangline-checkpoint-arrival") as writer:
        incoming = _Incoming(stream, segment, size, writer)
        try:
            header, layout = _read_head(incoming)
        except CorruptError:
            incoming.take(size)  # otherwise the sender sees a reset and not the reason
            raise
        sums = _EntryChecksums(layout.entries)
        incoming.take(header.part_offset + header.part_bytes, sums.add)
        incoming.take(size)
    if (header.step, layout.plan, layout.rank) != (request.step, request.plan, request.rank):
        raise CorruptError("the received segment is not the requested one")
    # The seal arrived with the segment: it is compared with what was computed from the bytes.
    if segment.read_seal(header, len(layout.entries)) != sums.of_entries:
        raise CorruptError(f"the segment of rank {layout.rank} was damaged in transfer")


class _Incoming:
    def __init__(
        self, stream: _Stream, segment: Segment, size: int, writer: ThreadPoolExecutor
    ) -> None:
        self.segment, self.size, self.at = segment, size, 0
        self._stream, self._writer = stream, writer
        self._free = deque(memoryview(bytearray(CHECKSUM_BLOCK)) for _ in range(_BLOCKS))

    def take(self, end: int, on_block: Callable[[memoryview], None] = lambda _: None) -> None:
        """Receive bytes up to ``end``. The writer thread passes each block to ``on_block``."""
        busy: deque[Future[memoryview]] = deque()
        end = min(end, self.size)  # a wrong header may name more
        while self.at < end:
            if not self._free:
                self._free.append(busy.popleft().result())
            block = self._free.popleft()
            length = self._fill(block[: end - self.at])
            busy.append(self._writer.submit(self._put, self.at, block, length, on_block))
            self.at += length
        self._free.extend(written.result() for written in busy)

    def _fill(self, buffer: memoryview) -> int:
        length = len(buffer)
        while len(buffer):
            got = self._stream.readinto(buffer)
            if not got:
                raise CorruptError("the peer closed the connection in the middle of a segment")
            buffer = buffer[got:]
        return length

    def _put(
        self, at: int, block: memoryview, length: int, on_block: Callable[[memoryview], None]
    ) -> memoryview:
        on_block(block[:length])
        self.segment.write(at, block[:length])
        return block


def _read_head(incoming: _Incoming) -> tuple[SegmentHeader, PartLayout]:
    incoming.take(PAGE)
    header = incoming.segment.read_header()
    if header is None or header.state is not SegmentState.COMPLETE:
        raise CorruptError("the received segment has no valid header")
    incoming.take(header.part_offset)
    return header, incoming.segment.read_layout(header)


class _EntryChecksums:
    """Checksums of adjacent entries, computed from blocks of any size."""

    def __init__(self, entries: list[LayoutEntry]) -> None:
        self.of_entries = [0] * len(entries)
        self._entries, self._number, self._at = entries, 0, 0

    def add(self, block: memoryview) -> None:
        begin, self._at = self._at, self._at + len(block)
        while self._number < len(self._entries):
            entry = self._entries[self._number]
            end = entry.offset + entry.length
            piece = block[max(entry.offset - begin, 0) : min(end, self._at) - begin]
            self.of_entries[self._number] = checksum(piece, self.of_entries[self._number])
            if end > self._at:
                return
            self._number += 1


class PeerServer(socketserver.ThreadingTCPServer):
    """Serves and receives segments of one job's folder, on any free port."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, job_folder: Path) -> None:
        self.job_folder = job_folder
        self._unauthenticated: dict[socket.socket, None] = {}  # in the order of their start
        self._lock = threading.Lock()
        try:  # a restarted saver must keep the address that its peers know
            super().__init__(("", int((job_folder / "port").read_text())), _Handler)
        except (OSError, ValueError):
            super().__init__(("", 0), _Handler)

    @property
    def port(self) -> int:
        port: int = self.server_address[1]
        return port

    def start(self) -> None:
        """Serve in a thread, and publish the port to the processes of this node."""
        threading.Thread(target=self.serve_forever, name="peers", daemon=True).start()
        unpublished = self.job_folder / "port.new"
        unpublished.write_text(str(self.port))
        unpublished.rename(self.job_folder / "port")

    def process_request(
        self, request: "socket.socket | tuple[bytes, socket.socket]", client_address: object
    ) -> None:
        """Start the thread of a connection; cut the oldest one that has proved nothing."""
        assert isinstance(request, socket.socket)
        with self._lock:
            if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
            self._unauthenticated[request] = None
        super().process_request(request, client_address)

    def mark_authenticated(self, connection: socket.socket) -> None:
        """Exempt a connection from the limit, because it is authenticated or has ended."""
        with self._lock:
            self._unauthenticated.pop(connection, None)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the failure of one request; the server continues."""
        log.warning(
            f"the request of the peer {client_address} failed",
            extra={"peer": str(client_address)},
            exc_info=True,
        )


class _Handler(socketserver.BaseRequestHandler):
    server: PeerServer
    request: socket.socket

    def handle(self) -> None:
        settings = directory.read_settings(self.server.job_folder)
        if settings is None or not settings.token:
            self.server.mark_authenticated(self.request)
            return
        self.request.settimeout(HANDSHAKE_TIMEOUT_S)
        try:
            connection = accept_securely(self.request, _secret(settings.token))
        except (OSError, SecureChannelError) as error:
            log.warning(
                f"the connection of the peer {self.client_address} was refused: {error}",
                extra={"peer": str(self.client_address), "reason": str(error)},
            )
            return
        finally:
            self.server.mark_authenticated(self.request)
        connection.settimeout(PEER_TIMEOUT_S)
        with connection:
            self._serve(connection)

    def _serve(self, connection: ssl.SSLSocket) -> None:
        request = msgspec.json.decode(_line(connection), type=SegmentRequest)
        if request.verb == "get":
            self._give(connection, request)
        else:
            self._take(connection, request)

    def _give(self, connection: ssl.SSLSocket, request: SegmentRequest) -> None:
        requested = (request.step, request.plan, request.rank)
        for snapshot in inventory.list_snapshots(self.server.job_folder):
            if (snapshot.step, snapshot.layout.plan, snapshot.rank) != requested:
                continue
            with contextlib.closing(Segment(snapshot.path)) as segment, segment.reading() as free:
                if free and segment.read_header() == snapshot.header:
                    commit.seal_segment(segment, snapshot.header, snapshot.layout)
                    _answer(connection, SegmentReply(bytes=snapshot.header.total_bytes))
                    _send(connection, segment, snapshot.header.total_bytes)
                    return
        _answer(
            connection,
            SegmentReply(refusal=f"step {request.step} of rank {request.rank} is not here"),
        )

    def _take(self, connection: ssl.SSLSocket, request: SegmentRequest) -> None:
        try:
            with connection.makefile("rb", buffering=0) as stream:
                receive_copy(stream, self.server.job_folder, request)
            _answer(connection, SegmentReply())
        except (CheckpointError, OSError) as error:
            if isinstance(error, MemoryShortError):
                # A peer that still sends may see a reset in place of the reply.
                log.warning(
                    f"not enough memory for a peer's save: {error}", extra={"reason": str(error)}
                )
            _answer(connection, SegmentReply(refusal=str(error)))


def _secret(token: str) -> JobSecret:
    return JobSecret(token.encode())


def _answer(connection: ssl.SSLSocket, answer: SegmentReply) -> None:
    connection.sendall(msgspec.json.encode(answer) + b"\n")


def _send(connection: ssl.SSLSocket, segment: Segment, size: int) -> None:
    block = memoryview(bytearray(min(_SEND_BYTES, size)))
    at = 0
    while at < size:
        length = os.preadv(segment.descriptor, [block[: size - at]], at)
        if not length:
            raise CorruptError("the segment ended while it was sent")
        connection.sendall(block[:length])
        at += length


def receive_copy(stream: _Stream, job_folder: Path, request: SegmentRequest) -> None:
    """Receive a segment as this node's copy of a rank.

    Raises:
        CorruptError: the content is damaged or not what was requested.
        MemoryShortError: shared memory is too small for it.
        OSError: the connection broke.
    """
    partial = job_folder / f"{_ARRIVING}{os.getpid()}-{threading.get_ident()}.seg"
    with contextlib.ExitStack() as leaving:
        leaving.callback(partial.unlink, missing_ok=True)
        segment = create_segment(partial, request.bytes, reserve=False)
        leaving.callback(segment.close)
        with segment.reading():  # marks it as in use for remove_partial_copies
            receive_segment(stream, segment, request)
            # Only now it has its name: no reader ever finds a copy that is not verified. A reader
            # of the rank's previous copy retains that file.
            partial.rename(directory.copy_segment_path(job_folder, request.rank))


def remove_partial_copies(job_folder: Path) -> None:
    """Remove segments that killed processes had begun to receive."""
    for path in job_folder.glob(f"{_ARRIVING}*"):
        lock = FileLock(path)
        if lock.acquire(exclusive=True):
            path.unlink(missing_ok=True)
        lock.close()


@contextlib.contextmanager
def _asking(address: str, token: str, request: SegmentRequest) -> Iterator[ssl.SSLSocket]:
    with socket.create_connection(split_address(address), timeout=PEER_TIMEOUT_S) as plain:
        try:
            connection = connect_securely(plain, _secret(token))
        except SecretsDifferError as error:
            raise CorruptError(f"the peer {address} belongs to another job: {error}") from error
        except SecureChannelError as error:
            raise CorruptError(f"the peer {address}: {error}") from error
        with connection:
            connection.sendall(msgspec.json.encode(request) + b"\n")
            yield connection


def _line(connection: ssl.SSLSocket) -> bytes:
    """Read a line byte by byte, so that no byte of the following segment is consumed."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > _LINE:
            raise CorruptError("the peer closed the connection")
        line += byte
    return bytes(line[:-1])


def _answer_of(connection: ssl.SSLSocket) -> SegmentReply:
    answer = msgspec.json.decode(_line(connection), type=SegmentReply)
    if answer.refusal:
        raise CorruptError(f"the peer refused: {answer.refusal}")
    return answer


def fetch_segment(job_folder: Path, address: str, token: str, request: SegmentRequest) -> None:
    """Copy a segment from a peer's memory into this job's folder.

    Raises:
        CorruptError: the peer does not have it, or the content is damaged.
        MemoryShortError: shared memory is too small for it.
        OSError: the peer cannot be reached.
    """
    with _asking(address, token, request) as connection:
        answer = _answer_of(connection)
        with connection.makefile("rb", buffering=0) as stream:
            receive_copy(stream, job_folder, msgspec.structs.replace(request, bytes=answer.bytes))


class Replicator:
    """Sends each new save of this node's ranks to the node's peer."""

    def __init__(self, job_folder: Path) -> None:
        self.job_folder = job_folder
        self._sent: dict[int, int] = {}
        """The generation of each rank that the peer has."""

    def replicate(self, settings: SaverSettings) -> int:
        """Send new saves that only this node holds; return the number of segments sent."""
        if not settings.peer:
            return 0
        newest = inventory.newest_by_rank(inventory.list_snapshots(self.job_folder))
        return sum(
            self._send(settings, snapshot) for snapshot in newest.values() if snapshot.layout.alone
        )

    def _send(self, settings: SaverSettings, snapshot: SnapshotInfo) -> bool:
        if self._sent.get(snapshot.rank) == snapshot.header.generation:
            return False
        size = snapshot.header.total_bytes
        request = SegmentRequest("put", snapshot.rank, snapshot.step, snapshot.layout.plan, size)
        segment = Segment(snapshot.path)
        try:
            # Not locked: a slow network would leave saves without a free buffer. The peer
            # refuses a segment that is overwritten during the transfer; the newer save follows.
            if not commit.seal_if_unchanged(segment, snapshot.header, snapshot.layout):
                return False
            with _asking(settings.peer, settings.token, request) as connection:
                _send(connection, segment, size)
                _answer_of(connection)
        except (OSError, CorruptError) as error:
            level = logging.WARNING if segment.read_header() == snapshot.header else logging.DEBUG
            log.log(
                level,
                f"no copy at the peer {settings.peer}",
                extra={"peer": settings.peer},
                exc_info=error,
            )
            return False
        finally:
            segment.close()
        self._sent[snapshot.rank] = snapshot.header.generation
        return True
