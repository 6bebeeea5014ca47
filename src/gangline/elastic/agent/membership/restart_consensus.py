"""What the agents of one round agree on without the master: the next attempt, and who is to blame.

Restart consensus (``Round``), in order:

1. An agent that sees a failure sends the leader, the node of rank 0, a request. Rank 0 opens the
   store of the workers, so only its node can choose the port of the next one.
2. The leader orders the attempt after the one of the request. Attempt numbers only rise, and a
   request for an attempt that has a successor is answered with that order: concurrent requests for
   one attempt result in one order.
3. The leader sends the order to all members. Each adopts it and acknowledges it.
4. All members acknowledged: the attempt starts. One did not: the leader asks the master for a new
   world, which interrupts the attempt on all members. So an order may be lost, but no attempt
   trains with a part of the members.

``RankExits`` and ``HangDiagnosis`` collect what all nodes know about the end of an attempt. They do
it once for each attempt, so that all nodes blame the same rank. ``PeerTransport`` carries the
messages, encrypted with the job's secret; the tag of a message is its type on the wire.
"""

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from gangline.elastic.agent.failures import RankExit
from gangline.elastic.agent.hang_detector import RankStack, working_ranks
from gangline.elastic.agent.rendezvous import WorkerControl, WorldSpec, free_port
from gangline.elastic.protocol.channel import (
    MAX_FRAME_BYTES,
    JobSecret,
    SecureChannelError,
    SecureStream,
)
from gangline.elastic.protocol.messages import WorldInfo, WorldMember
from gangline.elastic.variables import listen_on_any_port, split_address

log = logging.getLogger(__name__)

LEFT_ROUND = -1
"""Replaces the attempt number in the reply of a node that has left the round."""
TEXT_LIMIT = 4096
"""Characters of a reason or a message at most, in what agents send."""
MAX_CONNECTIONS = 1024
"""Connections of other agents at the same time; above it the oldest one is cut."""
_REQUEST_TIMEOUT_S = 10.0
"""How long a connection may take to authenticate and to send its request."""
T = TypeVar("T")
PEER_TIMEOUT_S = 3.0
"""A peer that does not answer within this time is lost; the master is asked for a world then."""
NODE_TIMEOUT_S = 0.5
"""Time limit for one node's exits: the restart waits for it, and the node may be lost."""
LEADER_TIMEOUT_S = 0.8
"""Time limit for the leader's reply about exits. After it a node only knows its own workers."""
STACK_REQUEST_TIMEOUT_S = 10.0
"""Time limit for one node's stacks."""
HANG_DIAGNOSIS_TIMEOUT_S = 15.0
"""Time limit for the leader's reply about stacks. After it a node only knows its own workers."""


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
        listener = listen_on_any_port()
        self._server = await asyncio.start_server(self._serve, sock=listener)
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        if self._server:
            self._server.close()
            for writer in [*self._open]:
                writer.close()
            await self._server.wait_closed()

    async def request(self, address: str, message: PeerMessage, timeout_s: float) -> PeerMessage:
        """Send a message to a peer and return its reply.

        Raises PeerError: there is no valid reply in time.
        """
        host, port = split_address(address)
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, port)
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


@dataclass(slots=True)
class Round:
    """A round as one of its members sees it: the world, and the latest order in it."""

    world: WorldInfo
    node_id: int
    peers: PeerTransport
    order: RestartOrder = field(init=False)
    """The latest agreed attempt."""
    _acks: asyncio.Task[bool] | None = None

    def __post_init__(self) -> None:
        world = self.world
        self.order = RestartOrder(world.round, world.attempt, world.store_host, world.store_port)

    @property
    def member(self) -> WorldMember:
        return next(member for member in self.world.members if member.node_id == self.node_id)

    @property
    def leader(self) -> WorldMember:
        """The node of rank 0: it opens the store, so it decides where the next one is."""
        return self.world.members[0]

    @property
    def is_leader(self) -> bool:
        return self.leader.node_id == self.node_id

    @property
    def other_members(self) -> list[WorldMember]:
        return [member for member in self.world.members if member.node_id != self.node_id]

    def is_running(
        self, message: HangReport | StackRequest | ExitRequest, running_attempt: int
    ) -> bool:
        """Return whether a question is about the attempt whose workers run here."""
        return (message.round, message.attempt) == (self.world.round, running_attempt)

    def world_spec(self, restarts_before: int) -> WorldSpec:
        """Return the world of the current attempt for the workers."""
        return WorldSpec(
            attempt=restarts_before + self.order.attempt,
            group_rank=self.member.group_rank,
            group_world_size=len(self.world.members),
            first_rank=self.member.first_rank,
            world_size=self.world.world_size,
            store_host=self.order.store_host,
            store_port=self.order.store_port,
            round=self.world.round,
            is_running=self.world.continues and self.order.attempt == self.world.attempt,
        )

    async def agree_on_restart(self, attempt: int, reason: str) -> bool:
        """Agree that ``attempt`` is over. Returns True if all members start the next one."""
        request = RestartRequest(self.world.round, attempt, reason[:TEXT_LIMIT])
        if self.is_leader:
            self.apply(request)
            return await self.wait_for_acks()
        address = self.leader.agent_address
        try:
            self.apply(await self.peers.request(address, request, PEER_TIMEOUT_S))
        except PeerError as error:
            log.warning("the first node does not answer: %s", error)
            return False
        return self.order.attempt > attempt

    def apply(self, message: PeerMessage) -> PeerMessage:
        """Apply an order or a request; return the reply.

        As the leader, order the attempt after the one of a request, unless there is a later order
        already. Messages of another round change nothing.
        """
        order = self.order
        match message:
            case RestartOrder(round=order.round) if message.attempt > order.attempt:
                self.order = message
            case RestartRequest(round=order.round) if self.is_leader:
                if message.attempt >= order.attempt:
                    host, reason = order.store_host, message.reason
                    self.order = RestartOrder(
                        order.round, order.attempt + 1, host, free_port(), reason
                    )
                    self._acks = asyncio.create_task(self._broadcast_order(self.order))
                return self.order
        return Ack(self.order.round, self.order.attempt)

    async def wait_for_acks(self) -> bool:
        """Wait for the replies to the last order. Returns True if all members acknowledged it."""
        return await self._acks if self._acks else True

    async def announce_start(self, attempt: int) -> None:
        """As the leader, announce that the workers of this node have started.

        Rank 0 opens the store. A worker that connects earlier loses 0.2 to 0.7 s until PyTorch
        tries again. The node of a dead worker would always be early: it has no workers to stop.
        """
        await self._send_to_others(WorkersStarted(self.world.round, attempt))

    async def _broadcast_order(self, order: RestartOrder) -> bool:
        # An agent that was stopped for a while may still lead a round that is over for the others:
        # their reply names a later round, and an attempt of this one would train alone.
        return all(
            isinstance(reply, Ack) and reply.round == order.round and reply.attempt != LEFT_ROUND
            for reply in await self._send_to_others(order)
        )

    async def _send_to_others(
        self, message: RestartOrder | WorkersStarted
    ) -> list[PeerMessage | None]:
        addresses = [member.agent_address for member in self.other_members]
        return await asyncio.gather(*(self._send(address, message) for address in addresses))

    async def _send(
        self, address: str, message: RestartOrder | WorkersStarted
    ) -> PeerMessage | None:
        try:
            return await self.peers.request(address, message, PEER_TIMEOUT_S)
        except PeerError as error:
            # A lost announcement of a start costs at most the wait for it. A dead node is detected
            # elsewhere, so this is no reason for a warning.
            level = logging.DEBUG if isinstance(message, WorkersStarted) else logging.WARNING
            log.log(level, "a node does not answer: %s", error)
            return None


class _AttemptCollector(Generic[T]):
    """As the leader, collects something of all nodes, once for each attempt and epoch."""

    _subject = ""
    _silence_level = logging.WARNING

    def __init__(self, peers: PeerTransport) -> None:
        self._peers = peers
        self._attempt: tuple[int, int] = (-1, -1)
        self._epoch = 0
        self._task: asyncio.Task[tuple[T, ...]] | None = None

    async def gather_once(
        self, current_round: Round, attempt: int, node: WorkerControl
    ) -> tuple[T, ...]:
        is_known = self._attempt == (current_round.world.round, attempt)
        is_known = is_known and self._epoch == node.epoch
        if self._task is None or not is_known or self._is_outdated(self._task):
            self._epoch = node.epoch
            self._attempt = (current_round.world.round, attempt)
            self._task = asyncio.create_task(self._gather(current_round, attempt, node))
        return await asyncio.shield(self._task)

    def _is_outdated(self, task: asyncio.Task[tuple[T, ...]]) -> bool:
        """Return whether the attempt goes on after what was collected."""
        del task
        return False

    async def recall(self, round_: int, attempt: int) -> tuple[T, ...]:
        """Return what was collected for an attempt, which may be over; empty if nothing was.

        A node that notices the end of the same attempt later must blame the same rank.
        """
        if self._task is None or self._attempt != (round_, attempt):
            return ()
        return await asyncio.shield(self._task)

    @abstractmethod
    async def _gather(
        self, current_round: Round, attempt: int, node: WorkerControl
    ) -> tuple[T, ...]: ...

    async def _ask_others(
        self, current_round: Round, request: ExitRequest | StackRequest, timeout_s: float
    ) -> list[T]:
        members = current_round.other_members
        replies = await asyncio.gather(
            *(self._ask(member.agent_address, request, timeout_s) for member in members)
        )
        return [item for reply in replies for item in reply]

    async def _ask(
        self, address: str, request: ExitRequest | HangReport | StackRequest, timeout_s: float
    ) -> Sequence[T]:
        """Return what a node knows; nothing if it does not answer."""
        try:
            reply = await self._peers.request(address, request, timeout_s)
        except PeerError as error:
            log.log(self._silence_level, "a node does not return its %s: %s", self._subject, error)
            return ()
        items: Sequence[Any] = ()
        if isinstance(reply, ExitReply):
            items = reply.exits
        elif isinstance(reply, StackReply):
            items = reply.views
        return items


class RankExits(_AttemptCollector[RankExit]):
    """Finds the rank that left a world early.

    A worker that loses a connection is a consequence. The cause may be a worker of another node,
    which ended with exit code 0 and is no failure there.
    """

    _subject = "ended ranks"
    _silence_level = logging.DEBUG  # the node may be lost, which is reported elsewhere

    async def find(
        self, current_round: Round, attempt: int, node: WorkerControl
    ) -> Sequence[RankExit]:
        """Return the ranks of all nodes that answer."""
        if current_round.is_leader:
            return await self.gather_once(current_round, attempt, node)
        address = current_round.leader.agent_address
        request = ExitRequest(current_round.world.round, attempt)
        return await self._ask(address, request, LEADER_TIMEOUT_S) or node.exits()

    async def answer(
        self,
        message: ExitRequest,
        current_round: Round,
        running_attempt: int,
        node: WorkerControl | None,
    ) -> ExitReply:
        """Answer another node; empty if its attempt is over here and its exits are not known."""
        if node is not None and current_round.is_running(message, running_attempt):
            if message.is_from_leader:
                return ExitReply(tuple(node.exits()))
            if current_round.is_leader:
                return ExitReply(await self.gather_once(current_round, running_attempt, node))
        return ExitReply(await self.recall(message.round, message.attempt))

    async def _gather(
        self, current_round: Round, attempt: int, node: WorkerControl
    ) -> tuple[RankExit, ...]:
        request = ExitRequest(current_round.world.round, attempt, is_from_leader=True)
        own = node.exits()
        return (*own, *await self._ask_others(current_round, request, NODE_TIMEOUT_S))


class HangDiagnosis(_AttemptCollector[RankStack]):
    """Collects the stacks of all ranks: the rank that does not wait for the others hangs."""

    _subject = "stacks"

    def _is_outdated(self, task: asyncio.Task[tuple[RankStack, ...]]) -> bool:
        return task.done() and bool(working_ranks(task.result()))

    async def rank_stacks(
        self, current_round: Round, attempt: int, node: WorkerControl
    ) -> Sequence[RankStack]:
        """Return the stacks of the ranks of all nodes that answer."""
        if current_round.is_leader:
            return await self.gather_once(current_round, attempt, node)
        request = HangReport(current_round.world.round, attempt)
        address = current_round.leader.agent_address
        stacks = await self._ask(address, request, HANG_DIAGNOSIS_TIMEOUT_S)
        return stacks or await node.rank_stacks()

    async def answer(
        self,
        message: HangReport | StackRequest,
        current_round: Round,
        running_attempt: int,
        node: WorkerControl | None,
    ) -> StackReply:
        """Answer another node: a report with the stacks of all nodes, a request with those here."""
        if node is None or not current_round.is_running(message, running_attempt):
            return StackReply(await self.recall(message.round, message.attempt))
        if isinstance(message, StackRequest):
            return StackReply(tuple(await node.rank_stacks()))
        return StackReply(await self.gather_once(current_round, running_attempt, node))

    async def _gather(
        self, current_round: Round, attempt: int, node: WorkerControl
    ) -> tuple[RankStack, ...]:
        request = StackRequest(current_round.world.round, attempt)
        # Concurrently: a process that is stopped takes all of its time limit.
        own, others = await asyncio.gather(
            node.rank_stacks(),
            self._ask_others(current_round, request, STACK_REQUEST_TIMEOUT_S),
        )
        return (*own, *others)
