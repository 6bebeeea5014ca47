"""Messages between the agents of a round, so that a restart in place does not need the master.

The agent of the first node leads: other agents report failures to it, and it sends the order with
the address of the next attempt's store to all. Messages are encrypted with the job's secret, as
those of the master. The class name of a message is its type on the wire.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from gangline.elastic.agent.failures import RankExit
from gangline.elastic.agent.hang_detector import RankStack
from gangline.elastic.protocol.channel import (
    MAX_FRAME_BYTES,
    JobSecret,
    SecureChannelError,
    SecureStream,
)

log = logging.getLogger(__name__)

LEFT_ROUND = -1
"""Replaces the attempt number in the reply of a node that has left the round."""
TEXT_LIMIT = 4096
"""Characters of a reason or a message at most, in what agents send."""
MAX_CONNECTIONS = 1024
"""Connections of other agents at the same time; above it the oldest one is cut."""
_REQUEST_TIMEOUT_S = 10.0
"""How long a connection may take to authenticate and to send its request."""


class PeerError(Exception):
    """A peer cannot be reached, or does not belong to this job."""


class RestartRequest(msgspec.Struct, frozen=True, tag="Failed"):
    """Request: workers of this attempt have failed; restart. Reply: ``RestartOrder``."""

    round: int
    attempt: int
    reason: str = ""


class RestartOrder(msgspec.Struct, frozen=True, tag="Go"):
    """Order of the leader: stop the workers and start this attempt. Reply: ``Ack``."""

    round: int
    attempt: int
    store_host: str
    store_port: int
    reason: str = ""


class WorkersStarted(msgspec.Struct, frozen=True, tag="Started"):
    """The leader's workers of this attempt, rank 0 among them, have started. Reply: ``Ack``."""

    round: int
    attempt: int


class HangReport(msgspec.Struct, frozen=True, tag="Hung"):
    """Request: this attempt hangs; return the stacks of all ranks. Reply: ``StackReply``."""

    round: int
    attempt: int


class StackRequest(msgspec.Struct, frozen=True, tag="Look"):
    """Request: return the stacks of this node's ranks. Reply: ``StackReply``."""

    round: int
    attempt: int


class StackReply(msgspec.Struct, frozen=True, tag="Seen"):
    """Reply: stack locations of ranks."""

    views: tuple[RankStack, ...] = ()


class ExitRequest(msgspec.Struct, frozen=True, tag=True):
    """Request: return the ranks that have ended in this attempt. Reply: ``ExitReply``.

    The leader returns those of all nodes, unless it is the sender.
    """

    round: int
    attempt: int
    is_from_leader: bool = False


class ExitReply(msgspec.Struct, frozen=True, tag=True):
    """Reply: ranks that have ended."""

    exits: tuple[RankExit, ...] = ()


class Ack(msgspec.Struct, frozen=True, tag="Heard"):
    """Reply and probe: the sender's round and attempt."""

    round: int
    attempt: int


PeerMessage: TypeAlias = (
    RestartRequest
    | RestartOrder
    | WorkersStarted
    | HangReport
    | StackRequest
    | StackReply
    | ExitRequest
    | ExitReply
    | Ack
)
AnswerHandler: TypeAlias = Callable[[PeerMessage], Awaitable[PeerMessage]]


class PeerTransport:
    """Exchanges messages with other agents, encrypted with the job secret."""

    def __init__(self, secret: JobSecret, answer: AnswerHandler) -> None:
        self._secret, self._answer = secret, answer
        self._decoder = msgspec.json.Decoder(PeerMessage)
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}  # in the order of their start

    async def listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, None, 0)
        sockets = self._server.sockets
        port = int(sockets[0].getsockname()[1])
        if any(listener.getsockname()[1] != port for listener in sockets):
            # Each address family got its own port, but peers are given a single one.
            self._server.close()
            self._server = await asyncio.start_server(self._serve, "0.0.0.0", 0)
            port = int(self._server.sockets[0].getsockname()[1])
        return port

    async def close(self) -> None:
        if self._server:
            self._server.close()
            for writer in [*self._open]:
                writer.close()
            await self._server.wait_closed()

    async def request(self, address: str, message: PeerMessage, timeout_s: float) -> PeerMessage:
        """Send a message to a peer and return its reply.

        Raises:
            PeerError: there is no valid reply in time.
        """
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
                with contextlib.closing(writer):
                    return await self._exchange(reader, writer, message)
        except (
            OSError,
            TimeoutError,
            EOFError,
            SecureChannelError,
            msgspec.DecodeError,
        ) as error:
            raise PeerError(f"{address}: {error or 'no answer in time'}") from error

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: PeerMessage
    ) -> PeerMessage:
        stream = await SecureStream.connect(reader, writer, self._secret, client=True)
        stream.channel.limit = MAX_FRAME_BYTES  # only a reply to a request may be this long
        await stream.send(msgspec.json.encode(message))
        reply: PeerMessage = self._decoder.decode(await stream.receive())
        return reply

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            self._open.pop(oldest)
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                stream = await SecureStream.connect(reader, writer, self._secret, client=False)
                request = self._decoder.decode(await stream.receive())
            reply = await self._answer(request)
            await stream.send(msgspec.json.encode(reply))
        except (OSError, EOFError, SecureChannelError, msgspec.DecodeError) as error:
            log.debug("rejected a connection", extra={"error": str(error)})
        finally:
            self._open.pop(writer, None)
            writer.close()
