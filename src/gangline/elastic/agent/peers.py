"""Agents of one round talk to each other, so that a restart in place needs no master.

The agent that is first in the world leads: who sees a failure tells it, and it tells all where the
store of the next attempt will be. Messages are sealed with the job's secret, as the master's are.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from gangline.elastic.agent.hang import View
from gangline.elastic.protocol import seal

log = logging.getLogger(__name__)

LEFT = -1
"""In place of an attempt: the one who says so has left the round."""
TEXT_LIMIT = 4096
"""Characters of a reason or a message at most, in what agents send."""
_READ = 1 << 16


class PeerError(Exception):
    """A peer cannot be reached, or is no part of this job."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Workers of this attempt have failed here and are to be started again -> ``Go``."""

    round: int
    attempt: int
    reason: str = ""


class Go(msgspec.Struct, frozen=True, tag=True):
    """Stop your workers and start those of this attempt -> ``Heard``."""

    round: int
    attempt: int
    store_host: str
    store_port: int
    reason: str = ""


class Started(msgspec.Struct, frozen=True, tag=True):
    """The workers of this attempt, rank 0 among them, are started here -> ``Heard``."""

    round: int
    attempt: int


class Hung(msgspec.Struct, frozen=True, tag=True):
    """Nothing goes on in this attempt: who is to blame? -> ``Seen``, of all nodes."""

    round: int
    attempt: int


class Look(msgspec.Struct, frozen=True, tag=True):
    """Where are your workers? -> ``Seen``, of this node."""

    round: int
    attempt: int


class Seen(msgspec.Struct, frozen=True, tag=True):
    """Where workers are."""

    views: tuple[View, ...] = ()


class Heard(msgspec.Struct, frozen=True, tag=True):
    """Understood; where the other stands."""

    round: int
    attempt: int


PeerMessage: TypeAlias = Failed | Go | Started | Hung | Look | Seen | Heard
Answer: TypeAlias = Callable[[PeerMessage], Awaitable[PeerMessage]]


class Peers:
    """One agent's ear and mouth."""

    def __init__(self, secret: seal.Secret, answer: Answer) -> None:
        """Take the job's secret, and what answers the others."""
        self._secret, self._answer = secret, answer
        self._decoder = msgspec.json.Decoder(PeerMessage)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self) -> int:
        """Begin to listen on any free port, and return it."""
        self._server = await asyncio.start_server(self._serve, None, 0)
        sockets = self._server.sockets
        port = int(sockets[0].getsockname()[1])
        if any(each.getsockname()[1] != port for each in sockets):
            # Each address family got a port of its own; the others know one only.
            self._server.close()
            self._server = await asyncio.start_server(self._serve, "0.0.0.0", 0)
            port = int(self._server.sockets[0].getsockname()[1])
        return port

    async def close(self) -> None:
        """Listen no more."""
        if self._server:
            self._server.close()
            for writer in self._open:
                writer.close()
            await self._server.wait_closed()

    async def tell(self, address: str, message: PeerMessage, timeout_s: float) -> PeerMessage:
        """Say something to a peer and return what it answers.

        Raises:
            PeerError: it does not answer in time, or not in our language.
        """
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
                with contextlib.closing(writer):
                    return await self._ask(reader, writer, message)
        except (OSError, TimeoutError, EOFError, seal.SealError, msgspec.DecodeError) as error:
            raise PeerError(f"{address}: {error or 'no answer in time'}") from error

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: PeerMessage
    ) -> PeerMessage:
        mine = seal.greeting()
        writer.write(mine)
        theirs = await reader.readexactly(seal.GREETING_BYTES)
        seal.check_greeting(theirs)
        ends = seal.ends(self._secret, mine, theirs, client=True)
        ends.opener.limit = seal.LARGEST_FRAME  # we have asked, so the reply may be long
        writer.write(ends.sealer.seal(msgspec.json.encode(message)))
        reply: PeerMessage = self._decoder.decode(await _content(reader, ends))
        return reply

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            mine = seal.greeting()
            writer.write(mine)
            theirs = await reader.readexactly(seal.GREETING_BYTES)
            seal.check_greeting(theirs)
            ends = seal.ends(self._secret, theirs, mine, client=False)
            heard = self._decoder.decode(await _content(reader, ends))
            reply = await self._answer(heard)
            writer.write(ends.sealer.seal(msgspec.json.encode(reply)))
            await writer.drain()
        except (OSError, EOFError, seal.SealError, msgspec.DecodeError) as error:
            log.debug("a stranger called", extra={"error": str(error)})
        finally:
            self._open.discard(writer)
            writer.close()


async def _content(reader: asyncio.StreamReader, ends: seal.Ends) -> bytes:
    while piece := await reader.read(_READ):
        for content in ends.opener.feed(piece):
            return content
    raise EOFError("the other end closed the connection")
