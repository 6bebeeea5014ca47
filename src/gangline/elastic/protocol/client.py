"""The agent's end: asks the master, and keeps asking through its absence.

    async with Client("train-master:50001", secret, ClientName(...)) as client:
        world = await client.call(Join(...), timeout_s=600)
        async for command in client.commands(node_id): ...

One connection carries all requests, long polls too; replies come in any order. When it breaks, it
is made anew after a moment (0.05 s, growing to 5 s, each drawn at random from its half to itself),
and what was not answered is asked again under its old number, by which the master knows it.
"""

import asyncio
import logging
import random
import socket
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Self, TypeVar, cast

from gangline.elastic.protocol import envelope, seal
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError
from gangline.elastic.protocol.messages import (
    Command,
    Commands,
    GetCommands,
    Hello,
    Message,
    Refused,
    Reply,
    Welcome,
)
from gangline.elastic.protocol.release import release
from gangline.elastic.protocol.sockets import notice_silence
from gangline.elastic.variables import SECRET_VARIABLE

log = logging.getLogger(__name__)

__all__ = ["Client", "ClientName", "MasterUnreachableError", "RequestRefusedError", "split_address"]

R = TypeVar("R", bound=Message)

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
CONNECT_TIMEOUT_S = 5.0
DEFAULT_PORT = 50001
_PERMANENT = ("VersionMismatch", "WrongJob")
_HELLO_NUMBER = 0


@dataclass(frozen=True, slots=True)
class ClientName:
    """Who speaks."""

    job: str = ""
    node_id: int | None = None
    """For the agent of a node only; see ``Hello``."""
    incarnation: str = ""
    client: str = field(default_factory=lambda: uuid.uuid4().hex)

    def hello(self) -> Hello:
        """Return what is said first."""
        return Hello(
            version=release(),
            job=self.job,
            client=self.client,
            node_id=self.node_id,
            incarnation=self.incarnation,
        )


def split_address(address: str) -> tuple[str, int]:
    """Read host:port, host, or [v6]:port.

    Raises:
        ValueError: the port is no number.
    """
    host, colon, port = address.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        return address.strip("[]"), DEFAULT_PORT
    if not port.isdigit():
        raise ValueError(f"{address!r}: the port must be a number")
    return host.strip("[]"), int(port)


class _Link(asyncio.Protocol):
    """One connection to the master."""

    def __init__(self, secret: seal.Secret, received: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()
        """Why the connection ended."""
        self._secret, self._received = secret, received
        self._transport: asyncio.Transport | None = None
        self._mine = seal.greeting()
        self._head = bytearray()
        self._ends: seal.Ends | None = None
        self._has_heard = False

    @property
    def is_mute(self) -> bool:
        """Whether the other end took the connection and has not greeted."""
        return self._transport is not None and self._ends is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's class, though they do the same.
        self._transport = transport = cast(asyncio.Transport, transport)
        notice_silence(transport.get_extra_info("socket"))
        transport.write(self._mine)

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish(str(exc) if exc else f"the master closed the connection{self._guess()}")

    def data_received(self, data: bytes) -> None:
        try:
            if self._ends is None:
                data = self._greet(data)
            if self._ends is not None and data:
                for content in self._ends.opener.feed(data):
                    self._has_heard = True
                    self._received(content)
        except (seal.SealError, envelope.EnvelopeError) as error:
            self.finish(str(error))

    def send(self, number: int, body: bytes) -> None:
        if self._transport is not None and self._ends is not None:
            self._transport.write(self._ends.sealer.seal(envelope.wrap(number, body)))

    def finish(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
        if not self.greeted.done():
            self.greeted.set_result(None)
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _guess(self) -> str:
        """Say what may be wrong when there was no answer at all."""
        if self._ends is None:
            return " before it greeted: something else may listen there"
        if not self._has_heard:
            return f" unanswered: {SECRET_VARIABLE}, or the job's name without it, may differ"
        return ""

    def _greet(self, data: bytes) -> bytes:
        self._head += data
        if len(self._head) < seal.GREETING_BYTES:
            return b""
        theirs = bytes(self._head[: seal.GREETING_BYTES])
        seal.check_greeting(theirs)
        self._ends = seal.ends(self._secret, self._mine, theirs, client=True)
        self._ends.opener.limit = seal.LARGEST_FRAME
        self.greeted.set_result(None)
        return bytes(self._head[seal.GREETING_BYTES :])


@dataclass(slots=True)
class _Asked:
    body: bytes
    reply: "asyncio.Future[bytes]"
    """As it came: whoever waits for it reads it. So what many wait for at once, a large world, is
    read and let go by one after the other, and what nobody waits for any more not at all."""


class Client:
    """Asks one master, wherever it is now: its name is looked up for each connection."""

    def __init__(self, address: str, secret: seal.Secret, name: ClientName | None = None) -> None:
        self.address = address
        self.name = name or ClientName()
        self.welcome: Welcome | None = None
        """What the master said last when it took a connection."""
        self.replies = 0
        """How many replies have come: while it grows, the master is there."""
        self.trouble = "not connected yet"
        """Why there is no connection now; empty while there is one."""
        self.unknown_name = ""
        """The master's host, if its name did not resolve when that was tried last."""
        self.tried = asyncio.Event()
        """Set as soon as a first attempt to connect has ended, well or not."""
        self._secret = secret
        self._asked: dict[int, _Asked] = {}
        self._next_number = 1
        self._link: _Link | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._refusal = ""
        self._refused: Refused | None = None
        self._open = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep(), name="connection to the master")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection; whoever still waits for a reply is told that there is none."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        for asked in self._asked.values():
            if not asked.reply.done():
                asked.reply.set_exception(
                    MasterUnreachableError(self.address, 0.0, "the client was closed")
                )
                asked.reply.exception()  # nobody may wait any more
        self._asked.clear()

    @property
    def is_connected(self) -> bool:
        """Whether the master would get a request now."""
        return self._open.is_set()

    async def connected(self, timeout_s: float | None = None) -> Welcome:
        """Wait until there is a connection.

        Raises:
            MasterUnreachableError: there was none for ``timeout_s``.
            RequestRefusedError: the master will not have us.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._open.wait()
        except TimeoutError:
            raise MasterUnreachableError(self.address, timeout_s or 0.0, self.trouble) from None
        if self._refused is not None:
            raise RequestRefusedError(self._refused)
        assert self.welcome is not None
        return self.welcome

    async def call(self, message: Message, *, timeout_s: float | None = 60.0) -> Reply:
        """Ask and return the reply.

        Args:
            message: one of ``messages.Request``.
            timeout_s: how long to try, through absences of the master too; None for ever. A long
                poll takes its own time: leave it more.

        Raises:
            MasterUnreachableError: no reply came in this time.
            RequestRefusedError: the master refused.
        """
        if self._refused is not None:
            raise RequestRefusedError(self._refused)
        number = self._next_number
        self._next_number += 1
        asked = _Asked(envelope.encode_body(message), asyncio.get_running_loop().create_future())
        self._asked[number] = asked
        if self._link is not None:
            self._link.send(number, asked.body)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._reply(asked)
        except TimeoutError:
            trouble = self.trouble or "it did not answer"
            raise MasterUnreachableError(self.address, timeout_s or 0.0, trouble) from None
        finally:
            self._asked.pop(number, None)
        if isinstance(reply, Refused):
            raise RequestRefusedError(reply)
        return reply

    async def ask(self, message: Message, kind: type[R], *, timeout_s: float | None = 60.0) -> R:
        """Ask, and insist on one kind of reply.

        Raises:
            MasterUnreachableError, RequestRefusedError: as ``call``; refused also for another kind.
        """
        reply = await self.call(message, timeout_s=timeout_s)
        if not isinstance(reply, kind):
            said = f"{type(reply).__name__} came where {kind.__name__} was expected"
            raise RequestRefusedError(Refused(reason="BadReply", message=said))
        return reply

    async def commands(self, wait_s: float = 30.0) -> AsyncIterator[Command]:
        """Give the node's commands as they come, for ever; each once.

        Raises:
            RequestRefusedError: the master will not have us.
        """
        assert self.name.node_id is not None, "commands are for the agent of a node"
        seen = 0
        while True:
            wish = GetCommands(
                node_id=self.name.node_id,
                incarnation=self.name.incarnation,
                seen=seen,
                wait_s=wait_s,
            )
            reply = await self.ask(wish, Commands, timeout_s=None)
            for command in reply.commands:
                if command.number > seen:
                    seen = command.number
                    yield command

    # The connection

    async def _keep(self) -> None:
        """Have a connection at all times."""
        pause = FIRST_PAUSE_S
        while self._refused is None:
            link = _Link(self._secret, self._received)
            self._refusal = ""
            try:
                await self._connect(link)
                reason = await link.ended
                pause = FIRST_PAUSE_S if self.is_connected else pause
                self.trouble = self._refusal or reason
                self.unknown_name = ""
            except (OSError, TimeoutError) as error:
                self._troubled(error, link)
            finally:
                self._link = None
                if self._refused is None:
                    self._open.clear()
                link.finish("closed")
            self.tried.set()
            log.debug("no master", extra={"address": self.address, "reason": self.trouble})
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, LONGEST_PAUSE_S)
        for asked in self._asked.values():
            if not asked.reply.done():
                asked.reply.set_exception(RequestRefusedError(self._refused))
                asked.reply.exception()  # nobody may wait any more

    def _troubled(self, error: OSError, link: _Link) -> None:
        late = "the connection could not be made in time"
        if link.is_mute:
            late = "whoever took the connection did not greet: something else may listen there"
        self.trouble = str(error) or late
        self.unknown_name = ""
        if isinstance(error, socket.gaierror):
            self.unknown_name, _ = split_address(self.address)
            self.trouble = f"the name {self.unknown_name} does not resolve: {error.strerror}"

    async def _connect(self, link: _Link) -> None:
        host, port = split_address(self.address)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().create_connection(lambda: link, host, port)
            await link.greeted
        if link.ended.done():
            return
        self._link = link
        link.send(_HELLO_NUMBER, envelope.encode_body(self.name.hello()))
        # What follows is read by the master only after it has welcomed us.
        for number, asked in [*self._asked.items()]:
            link.send(number, asked.body)

    async def _reply(self, asked: _Asked) -> Reply:
        """Wait for the reply; after one that cannot be read ask again, on another connection."""
        while True:
            try:
                return envelope.read_reply(await asked.reply)[1]
            except envelope.EnvelopeError as error:
                asked.reply = asyncio.get_running_loop().create_future()
                if self._link is not None:
                    self._link.finish(str(error))

    def _received(self, content: bytes) -> None:
        number = envelope.number_of(content)
        self.replies += 1
        if number == _HELLO_NUMBER:
            self._greeted(envelope.read_reply(content)[1])
            return
        asked = self._asked.get(number)
        if asked is not None and not asked.reply.done():
            asked.reply.set_result(content)

    def _greeted(self, reply: Reply) -> None:
        if isinstance(reply, Welcome):
            self.welcome, self.trouble = reply, ""
            self._open.set()
            self.tried.set()
        elif isinstance(reply, Refused):
            self._refusal = f"{reply.reason}: {reply.message}"
            if reply.reason in _PERMANENT:
                self._refused = reply
                self._open.set()
