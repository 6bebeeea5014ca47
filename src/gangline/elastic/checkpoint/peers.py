"""Savers of a job give each other what lies in their memory, so that a lost node costs no storage.

One TCP connection for each segment: the server sends a nonce, the client a request and a proof
that it knows the job's token, then whole segments travel as they lie in memory. They are verified,
entry by entry, before they get their name. The content is not encrypted: it is the network of the
training.
"""

import contextlib
import hmac
import logging
import os
import secrets
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from gangline.elastic.checkpoint import home as homes
from gangline.elastic.checkpoint import pending, persist
from gangline.elastic.checkpoint.arrival import Arrived, Stream, take_in
from gangline.elastic.checkpoint.errors import CheckpointError, CorruptError, MemoryShortError
from gangline.elastic.checkpoint.home import Hold, Settings
from gangline.elastic.checkpoint.pending import Held
from gangline.elastic.checkpoint.segment import Segment, create

log = logging.getLogger(__name__)
TIMEOUT_S = 30.0
"""Longest silence of a peer."""
_LINE = 4096
_ARRIVING = "arriving-"
"""How the names of segments begin that are not whole yet."""


class Request(msgspec.Struct, frozen=True):
    """What a client wants of the segment of ``rank`` at ``step``."""

    verb: Literal["get", "put"]
    rank: int
    step: int
    plan: str
    bytes: int = 0
    """How long the segment is that follows a ``put``."""


class Answer(msgspec.Struct, frozen=True):
    """What the server says to it."""

    bytes: int = 0
    """How long the segment is that follows, after a ``get``."""
    refusal: str = ""


def _proof(token: str, nonce: bytes, body: bytes) -> bytes:
    return hmac.digest(token.encode(), nonce + body, "sha256").hex().encode()


class PeerServer(socketserver.ThreadingTCPServer):
    """Gives and takes segments of one home; the operating system picks the first port."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, home: Path) -> None:
        self.home = home
        try:  # a saver that takes a dead one's place is to be found where that was
            super().__init__(("", int((home / "port").read_text())), _Handler)
        except (OSError, ValueError):
            super().__init__(("", 0), _Handler)

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self.server_address[1]
        return port

    def start(self) -> None:
        """Serve in a thread of its own, and tell the port to those who share the home."""
        threading.Thread(target=self.serve_forever, name="peers", daemon=True).start()
        fresh = self.home / "port.new"
        fresh.write_text(str(self.port))
        fresh.rename(self.home / "port")

    def handle_error(self, request: object, client_address: object) -> None:
        """A peer that goes away is no news worth a trace."""
        log.warning("a peer's request failed", extra={"peer": str(client_address)}, exc_info=True)


class _Handler(socketserver.StreamRequestHandler):
    server: PeerServer
    timeout = TIMEOUT_S

    def handle(self) -> None:
        settings = homes.read_settings(self.server.home)
        nonce = secrets.token_hex(16).encode()
        self.wfile.write(nonce + b"\n")
        proof, _, body = self.rfile.readline(_LINE).rstrip(b"\n").partition(b" ")
        if settings is None or not settings.token:
            return
        if not hmac.compare_digest(proof, _proof(settings.token, nonce, body)):
            self._answer(Answer(refusal="the token is another job's"))
            return
        request = msgspec.json.decode(body, type=Request)
        if request.verb == "get":
            self._give(request)
        else:
            self._take(request)

    def _answer(self, answer: Answer) -> None:
        self.wfile.write(msgspec.json.encode(answer) + b"\n")

    def _give(self, request: Request) -> None:
        wanted = (request.step, request.plan, request.rank)
        for held in pending.survey(self.server.home):
            if (held.step, held.layout.plan, held.rank) != wanted:
                continue
            with locked(held) as segment:
                if segment is not None:
                    persist.seal(segment, held.header, held.layout)
                    self._answer(Answer(bytes=held.header.total_bytes))
                    _send(self.connection, segment, held.header.total_bytes)
                    return
        self._answer(Answer(refusal=f"step {request.step} of rank {request.rank} is not here"))

    def _take(self, request: Request) -> None:
        try:
            receive(self.rfile, self.server.home, request)
            self._answer(Answer())
        except (CheckpointError, OSError) as error:
            if isinstance(error, MemoryShortError):
                # Who still sends may hear of a broken connection rather than why.
                log.warning("no room for a peer's save", extra={"reason": str(error)})
            self._answer(Answer(refusal=str(error)))


@contextlib.contextmanager
def locked(held: Held) -> Iterator[Segment | None]:
    """The segment, held against being overwritten; ``None`` when it was already."""
    segment = Segment(held.path)
    try:
        with segment.reading() as free:
            yield segment if free and segment.header() == held.header else None
    finally:
        segment.close()


def _send(connection: socket.socket, segment: Segment, size: int) -> None:
    with open(os.dup(segment.descriptor), "rb", buffering=0) as stream:
        connection.sendfile(stream, 0, size)


def receive(stream: Stream, home: Path, request: Request) -> None:
    """Take a segment in as this node's copy of a rank.

    Raises:
        CorruptError: what came is not what was asked for, or damaged.
        MemoryShortError: shared memory has no room for it.
        OSError: the connection broke.
    """
    arriving = home / f"{_ARRIVING}{os.getpid()}-{threading.get_ident()}.seg"
    with contextlib.ExitStack() as leaving:
        leaving.callback(arriving.unlink, missing_ok=True)
        segment = create(arriving, request.bytes, reserve=False)
        leaving.callback(segment.close)
        with segment.reading():  # so that nobody takes it for abandoned
            verify(segment, take_in(stream, segment, request.bytes), request)
            arriving.rename(homes.copy_path(home, request.rank))


def clear_abandoned(home: Path) -> None:
    """Give back the memory of what processes that were killed had begun to take in."""
    for path in home.glob(f"{_ARRIVING}*"):
        hold = Hold(path)
        if hold.take(exclusive=True):
            path.unlink(missing_ok=True)
        hold.close()


def verify(segment: Segment, arrived: Arrived, request: Request) -> None:
    """See that a segment is what was asked for, and came as it was sealed.

    Raises:
        CorruptError: it is not.
    """
    header, layout = arrived.header, arrived.layout
    if (header.step, layout.plan, layout.rank) != (request.step, request.plan, request.rank):
        raise CorruptError("another segment came than was asked for")
    if segment.seal(header, len(layout.entries)) != arrived.sums:
        raise CorruptError(f"the segment of rank {layout.rank} was damaged on its way")


@contextlib.contextmanager
def _asking(address: str, token: str, request: Request) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        nonce = _line(connection)
        body = msgspec.json.encode(request)
        connection.sendall(_proof(token, nonce, body) + b" " + body + b"\n")
        yield connection


def _line(connection: socket.socket) -> bytes:
    """A line, read byte by byte so that nothing of what follows is taken."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > _LINE:
            raise CorruptError("the peer hung up")
        line += byte
    return bytes(line[:-1])


def _answer_of(connection: socket.socket) -> Answer:
    answer = msgspec.json.decode(_line(connection), type=Answer)
    if answer.refusal:
        raise CorruptError(f"the peer refused: {answer.refusal}")
    return answer


def fetch(home: Path, address: str, token: str, request: Request) -> None:
    """Copy a segment from a peer's memory into this home.

    Raises:
        CorruptError: the peer does not have it, or what came is damaged.
        MemoryShortError: shared memory has no room for it.
        OSError: the peer cannot be reached.
    """
    with _asking(address, token, request) as connection:
        answer = _answer_of(connection)
        with connection.makefile("rb", buffering=0) as stream:
            receive(stream, home, msgspec.structs.replace(request, bytes=answer.bytes))


class Replicator:
    """Sends each new save of this node's ranks to the node's peer."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._sent: dict[int, int] = {}
        """The generation of each rank that the peer has."""

    def send(self, settings: Settings) -> int:
        """Send what is new and held on this node alone; returns how many segments went."""
        newest: dict[int, Held] = {}
        for held in pending.survey(self.home) if settings.peer else []:
            known = newest.get(held.rank)
            if held.own and (known is None or held.header.generation > known.header.generation):
                newest[held.rank] = held
        return sum(self._send(settings, held) for held in newest.values() if held.layout.alone)

    def _send(self, settings: Settings, held: Held) -> bool:
        if self._sent.get(held.rank) == held.header.generation:
            return False
        size = held.header.total_bytes
        request = Request("put", held.rank, held.step, held.layout.plan, size)
        segment = Segment(held.path)
        try:
            # Not locked, or slow networks would keep saves from finding a free buffer. What is
            # overwritten on its way the peer refuses, and the newer save follows.
            if not persist.seal_unless_overtaken(segment, held.header, held.layout):
                return False
            with _asking(settings.peer, settings.token, request) as connection:
                _send(connection, segment, size)
                _answer_of(connection)
        except (OSError, CorruptError) as error:
            level = logging.WARNING if segment.header() == held.header else logging.DEBUG
            log.log(level, "no copy at the peer", extra={"peer": settings.peer}, exc_info=error)
            return False
        finally:
            segment.close()
        self._sent[held.rank] = held.header.generation
        return True
