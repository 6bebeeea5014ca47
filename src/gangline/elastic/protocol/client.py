"""The clients of a master: of agents, and of training scripts (``BlockingClient``).

``MasterClient`` sends requests to the master, and retries while the master is absent.

    async with Client("train-master:50001", secret, ClientIdentity(...)) as client:
        world = await client.call(Join(...), timeout_s=600)
        async for command in client.commands(node_id): ...

One connection carries all requests, long polls too; replies come in any order. A broken connection
is replaced after a random pause (from half of to the full backoff, 0.05 s growing to 5 s). Requests
without a reply are sent again under their old number, by which the master recognises them.
"""

import asyncio
import logging
import random
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Self, TypeVar, cast

from gangline.elastic.protocol import wire
from gangline.elastic.protocol.channel import (
    MAX_FRAME_BYTES,
    JobSecret,
    SecretsDifferError,
    SecureChannel,
    SecureChannelError,
)
from gangline.elastic.protocol.messages import (
    Commands,
    GetCommands,
    Hello,
    NodeCommand,
    ProtocolMessage,
    Reply,
    RequestRefused,
    Welcome,
)
from gangline.elastic.protocol.wire import (
    MasterUnreachableError,
    RequestRefusedError,
    enable_keepalive,
    installed_version,
    require_reply,
)
from gangline.elastic.variables import SECRET_VARIABLE, split_address

log = logging.getLogger(__name__)

R = TypeVar("R", bound=ProtocolMessage)

MIN_RETRY_PAUSE_S = 0.05
MAX_RETRY_PAUSE_S = 5.0
CONNECT_TIMEOUT_S = 5.0
_PERMANENT = ("VersionMismatch", "WrongJob")
_HELLO_NUMBER = 0
_READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    job: str = ""
    node_id: int | None = None
    """Only for the agent of a node; see ``Hello``."""
    incarnation: str = ""
    client_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def hello(self) -> Hello:
        return Hello(
            version=installed_version(),
            job=self.job,
            client=self.client_id,
            node_id=self.node_id,
            incarnation=self.incarnation,
        )


class _MasterConnection(asyncio.Protocol):
    def __init__(self, secret: JobSecret, received: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()
        self._received = received
        self._transport: asyncio.Transport | None = None
        self._channel = SecureChannel(secret, client=True, limit=MAX_FRAME_BYTES)

    @property
    def is_mute(self) -> bool:
        """True if the other end accepted the connection but has not answered the handshake."""
        return self._transport is not None and not self._channel.is_established

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not instances of asyncio's class, but have its methods.
        self._transport = transport = cast("asyncio.Transport", transport)
        enable_keepalive(transport.get_extra_info("socket"))
        transport.write(self._channel.output())

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish(str(exc) if exc else f"the master closed the connection{self._guess()}")

    def data_received(self, data: bytes) -> None:
        try:
            for content in self._channel.feed(data):
                self._received(content)
        except SecretsDifferError as error:
            self._write(self._channel.output())
            self.finish(
                f"{error}: {SECRET_VARIABLE}, or the job's name without it, must be the same on "
                "all nodes"
            )
            return
        except (SecureChannelError, wire.EnvelopeError) as error:
            self.finish(str(error))
            return
        self._write(self._channel.output())
        if self._channel.is_established and not self.greeted.done():
            self.greeted.set_result(None)

    def send(self, number: int, body: bytes) -> None:
        if self._transport is not None and self._channel.is_established:
            self._write(self._channel.encrypt_frame(wire.wrap_body(number, body)))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def finish(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
        if not self.greeted.done():
            self.greeted.set_result(None)
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _guess(self) -> str:
        """Return a likely cause when there was no answer at all."""
        if not self._channel.is_established:
            return (
                " before the handshake: another program may listen there, or the master uses an "
                "older secure channel"
            )
        return ""


@dataclass(slots=True)
class _PendingRequest:
    body: bytes
    reply: "asyncio.Future[bytes]"
    """The encoded reply: the waiting task decodes it. So a large world that many tasks wait for is
    decoded by one after the other, and a reply that no task waits for is not decoded.
    """


class MasterClient:
    """A client of one master, whose address is resolved again for each connection."""

    def __init__(self, address: str, secret: JobSecret, name: ClientIdentity | None = None) -> None:
        self.address = address
        self.name = name or ClientIdentity()
        self.welcome: Welcome | None = None
        self.replies = 0
        """Number of replies so far: while it increases, the master is reachable."""
        self.last_error = "not connected yet"
        """Why there is no connection; empty while there is one."""
        self.unresolved_host = ""
        """The master's host name, if it did not resolve at the last attempt."""
        self.attempted = asyncio.Event()
        """Set once the first attempt to connect has ended, with success or not."""
        self._secret = secret
        self._asked: dict[int, _PendingRequest] = {}
        self._next_number = 1
        self._link: _MasterConnection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._refusal = ""
        self._refused: RequestRefused | None = None
        self._open = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep(), name="connection to the master")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection; pending requests fail with ``MasterUnreachableError``."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._fail_pending(MasterUnreachableError(self.address, 0.0, "the client was closed"))
        self._asked.clear()

    @property
    def is_connected(self) -> bool:
        """True if the master would receive a request now."""
        return self._open.is_set()

    async def wait_connected(self, timeout_s: float | None = None) -> Welcome:
        """Wait until there is a connection.

        Raises:
            MasterUnreachableError: there was none for ``timeout_s``.
            RequestRefusedError: the master refuses this client.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._open.wait()
        except TimeoutError:
            raise MasterUnreachableError(self.address, timeout_s or 0.0, self.last_error) from None
        if self._refused is not None:
            raise RequestRefusedError(self._refused)
        assert self.welcome is not None
        return self.welcome

    async def call(self, message: ProtocolMessage, *, timeout_s: float | None = 60.0) -> Reply:
        """Send a request and return the reply.

        Args:
            timeout_s: how long to try, including absences of the master; None for ever. It must
                exceed the wait of a long poll.

        Raises:
            MasterUnreachableError: no reply came within the timeout.
            RequestRefusedError: the master refused.
        """
        if self._refused is not None:
            raise RequestRefusedError(self._refused)
        number = self._next_number
        self._next_number += 1
        pending = _PendingRequest(
            wire.encode_body(message), asyncio.get_running_loop().create_future()
        )
        self._asked[number] = pending
        if self._link is not None:
            self._link.send(number, pending.body)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._reply(pending)
        except TimeoutError:
            trouble = self.last_error or "it did not answer"
            raise MasterUnreachableError(self.address, timeout_s or 0.0, trouble) from None
        finally:
            self._asked.pop(number, None)
        if isinstance(reply, RequestRefused):
            raise RequestRefusedError(reply)
        return reply

    async def ask(
        self, message: ProtocolMessage, kind: type[R], *, timeout_s: float | None = 60.0
    ) -> R:
        """Send a request, and require one type of reply.

        Raises:
            MasterUnreachableError, RequestRefusedError: as ``call``; refused also for another type.
        """
        return require_reply(await self.call(message, timeout_s=timeout_s), kind)

    async def commands(self, wait_s: float = 30.0) -> AsyncIterator[NodeCommand]:
        """Yield the node's commands as they arrive, for ever; each once.

        Raises RequestRefusedError: the master refuses this client.
        """
        assert self.name.node_id is not None, "commands are for the agent of a node"
        seen = 0
        while True:
            request = GetCommands(
                node_id=self.name.node_id,
                incarnation=self.name.incarnation,
                seen=seen,
                wait_s=wait_s,
            )
            reply = await self.ask(request, Commands, timeout_s=None)
            for command in reply.commands:
                if command.number > seen:
                    seen = command.number
                    yield command

    # Connection

    async def _keep(self) -> None:
        """Maintain the connection until the master refuses it permanently."""
        pause = MIN_RETRY_PAUSE_S
        while self._refused is None:
            link = _MasterConnection(self._secret, self._received)
            self._refusal = ""
            try:
                await self._connect(link)
                reason = await link.ended
                pause = MIN_RETRY_PAUSE_S if self.is_connected else pause
                self.last_error = self._refusal or reason
                self.unresolved_host = ""
            except (OSError, TimeoutError) as error:
                self._troubled(error, link)
            finally:
                self._link = None
                if self._refused is None:
                    self._open.clear()
                link.finish("closed")
            self.attempted.set()
            log.debug(
                "the master is unreachable",
                extra={"address": self.address, "reason": self.last_error},
            )
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, MAX_RETRY_PAUSE_S)
        self._fail_pending(RequestRefusedError(self._refused))

    def _fail_pending(self, error: wire.ProtocolError) -> None:
        for pending in self._asked.values():
            if not pending.reply.done():
                pending.reply.set_exception(error)
                pending.reply.exception()  # the waiting task may be gone; avoids a warning

    def _troubled(self, error: OSError, link: _MasterConnection) -> None:
        late = "the connection was not established in time"
        if link.is_mute:
            late = "no handshake on the connection: another program may listen there"
        self.last_error = str(error) or late
        self.unresolved_host = ""
        if isinstance(error, socket.gaierror):
            self.unresolved_host, _ = split_address(self.address)
            self.last_error = f"the name {self.unresolved_host} does not resolve: {error.strerror}"

    async def _connect(self, link: _MasterConnection) -> None:
        host, port = split_address(self.address)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().create_connection(lambda: link, host, port)
            await link.greeted
        if link.ended.done():
            return
        self._link = link
        link.send(_HELLO_NUMBER, wire.encode_body(self.name.hello()))
        # The master reads the following requests only after it has accepted Hello.
        for number, pending in [*self._asked.items()]:
            link.send(number, pending.body)

    async def _reply(self, pending: _PendingRequest) -> Reply:
        """Wait for the reply; if it cannot be decoded, ask again on a new connection."""
        while True:
            try:
                return wire.decode_reply(await pending.reply)[1]
            except wire.EnvelopeError as error:
                pending.reply = asyncio.get_running_loop().create_future()
                if self._link is not None:
                    self._link.finish(str(error))

    def _received(self, content: bytes) -> None:
        number = wire.request_number(content)
        self.replies += 1
        if number == _HELLO_NUMBER:
            self._greeted(wire.decode_reply(content)[1])
            return
        pending = self._asked.get(number)
        if pending is not None and not pending.reply.done():
            pending.reply.set_result(content)

    def _greeted(self, reply: Reply) -> None:
        if isinstance(reply, Welcome):
            self.welcome, self.last_error = reply, ""
            self._open.set()
            self.attempted.set()
        elif isinstance(reply, RequestRefused):
            self._refusal = f"{reply.reason}: {reply.message}"
            if reply.reason in _PERMANENT:
                self._refused = reply
                self._open.set()


class BlockingClient:
    """The client for programs without an event loop, such as a training script.

    It has one connection and one request at a time. Threads may share a client but wait for each
    other, so use a separate client for long polls.
    """

    def __init__(self, address: str, secret: JobSecret, name: ClientIdentity | None = None) -> None:
        self.address = address
        self.name = name or ClientIdentity()
        self._secret = secret
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._channel: SecureChannel | None = None
        self._next_number = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection. The next call makes another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._channel = None

    def call(self, message: ProtocolMessage, *, timeout_s: float = 60.0) -> Reply:
        """Send a request and return the reply; arguments and errors as in ``MasterClient``."""
        body = wire.encode_body(message)
        deadline = time.monotonic() + timeout_s
        with self._lock:
            number = self._next_number
            self._next_number += 1
            reply = self._call(number, body, deadline, timeout_s)
        if isinstance(reply, RequestRefused):
            raise RequestRefusedError(reply)
        return reply

    def ask(self, message: ProtocolMessage, kind: type[R], *, timeout_s: float = 60.0) -> R:
        """Send a request, and require one type of reply; errors as in the asynchronous client."""
        return require_reply(self.call(message, timeout_s=timeout_s), kind)

    def _call(self, number: int, body: bytes, deadline: float, timeout_s: float) -> Reply:
        pause = MIN_RETRY_PAUSE_S
        while True:
            try:
                if self._socket is None:
                    self._connect(deadline)
                return self._exchange(number, body, deadline)
            except (OSError, SecureChannelError, wire.EnvelopeError) as error:
                self.close()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise MasterUnreachableError(self.address, timeout_s, str(error)) from error
            time.sleep(min(random.uniform(pause / 2, pause), left))
            pause = min(pause * 2, MAX_RETRY_PAUSE_S)

    def _connect(self, deadline: float) -> None:
        left = max(0.001, min(CONNECT_TIMEOUT_S, deadline - time.monotonic()))
        self._socket = socket.create_connection(split_address(self.address), left)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        enable_keepalive(self._socket)
        self._channel = SecureChannel(self._secret, client=True, limit=MAX_FRAME_BYTES)
        self._socket.sendall(self._channel.output())
        while not self._channel.is_established:
            for _ in self._feed():
                raise SecureChannelError("the master sent a message before Hello")
        reply = self._exchange(_HELLO_NUMBER, wire.encode_body(self.name.hello()), deadline)
        if isinstance(reply, RequestRefused):
            self.close()
            raise RequestRefusedError(reply)
        if not isinstance(reply, Welcome):
            raise SecureChannelError("the master did not answer Hello with Welcome")

    def _exchange(self, number: int, body: bytes, deadline: float) -> Reply:
        assert self._socket is not None
        assert self._channel is not None
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        self._socket.sendall(self._channel.encrypt_frame(wire.wrap_body(number, body)))
        while True:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            for content in self._feed():
                answered, reply = wire.decode_reply(content)
                if answered == number:
                    return reply

    def _feed(self) -> Iterator[bytes]:
        """Receive bytes; yield the contents that they complete."""
        assert self._socket is not None
        assert self._channel is not None
        received = self._socket.recv(_READ_BYTES)
        if not received:
            raise ConnectionResetError("the master closed the connection")
        try:
            yield from self._channel.feed(received)
        finally:
            if output := self._channel.output():
                self._socket.sendall(output)
