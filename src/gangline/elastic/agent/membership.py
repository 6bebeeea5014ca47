"""Worlds of several nodes: joins at the master, restarts agreed upon by the agents themselves.

The master is asked when members change. While it is away nothing stops: workers go on, and their
deaths are settled with the peers of the round.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from gangline.api.failure import Failure
from gangline.elastic.agent.peers import Failed, Go, Heard, PeerError, PeerMessage, Peers
from gangline.elastic.agent.round import Round
from gangline.elastic.agent.wanted import Wanted
from gangline.elastic.agent.world import MeetingError, Notice, World, free_port
from gangline.elastic.protocol import messages as said
from gangline.elastic.protocol.client import Client, ClientName
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError
from gangline.elastic.protocol.seal import Secret

log = logging.getLogger(__name__)

PEER_TIMEOUT_S = 3.0
"""A peer that does not answer for so long counts as gone; the master is asked then."""
FAREWELL_S = 2.0
FINISH_PATIENCE_S = 60.0
"""So long a master may be away when all is done, before this node goes without it."""
_WAIT_TOLD_S = 10.0
_POLL_S = 30.0
_TEXT_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """Who this node is, and whom it wants to meet."""

    job: str
    master: str
    node_id: int
    node_rank: int
    host: str
    local_world_size: int
    min_nodes: int
    max_nodes: int
    node_unit: int
    last_call_s: float
    join_timeout_s: float
    connect_timeout_s: float = 60.0
    topology: tuple[str, ...] = ()


class Membership:
    """One node's membership of a job; a ``Rendezvous``."""

    def __init__(self, place: Place, secret: Secret) -> None:
        self._place = place
        self._incarnation = secrets.token_hex(8)
        name = ClientName(place.job, place.node_id, self._incarnation)
        self._client = Client(place.master, secret, name)
        self._peers = Peers(secret, self._answer)
        self._peer_port = 0
        self._joins = 0
        self._restarts_before = 0
        self._round: Round | None = None
        self._changed = asyncio.Condition()
        self._wanted = Wanted()
        self._running = -1
        self._background: set[asyncio.Task[None]] = set()
        self._broadcast: asyncio.Task[bool] | None = None

    async def join(self) -> World:
        """Ask the master for a world until there is one.

        Raises:
            MeetingError: the master cannot be reached, or says that there will be none.
        """
        if not self._peer_port:
            await self._begin()
        self._joins += 1
        world = await self._world_unless_stopped()
        if self._round:
            self._restarts_before += self._round.go.attempt - self._round.world.attempt
        self._round = Round(world, self._place.node_id)
        self._broadcast = None
        return self._world()

    async def restart(self, world: World, failure: Failure | None) -> World:
        """Agree with the peers on the next attempt; ask the master when one of them is gone."""
        stands = self._round
        if stands is None or self._notice:
            return await self.join()
        if failure and stands.go.attempt <= self._running:
            self._report(failure)
            agreed = await self._agree(stands, str(failure))
        else:
            agreed = await self._all_heard()
        if agreed and self._notice is None and self._round is stands:
            return self._world()
        return await self.join()

    async def notice(self) -> Notice:
        """Wait for a peer's Go, or the master's word."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._notice or self._is_behind())
        return self._notice or Notice(self._round.go.reason if self._round else "")

    async def finished(self, world: World) -> Notice | None:
        """Tell the master; wait for the others, or for what makes all start again."""
        done = asyncio.ensure_future(self._finish())
        notice = asyncio.ensure_future(self.notice())
        try:
            await asyncio.wait({done, notice}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (done, notice):
                each.cancel()
            await asyncio.gather(done, notice, return_exceptions=True)
        if not done.cancelled() and done.exception() is None and done.result() is None:
            return None
        if not notice.cancelled() and notice.exception() is None:
            return notice.result()
        return done.result()

    async def leave(self, reason: str) -> None:
        """Tell the master, if it is there; end all connections."""
        succeeded = reason == "done"
        farewell = said.Leave(
            node_id=self._place.node_id,
            incarnation=self._incarnation,
            reason=reason[:_TEXT_LIMIT],
            succeeded=succeeded,
        )
        if self._client.is_connected:
            with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
                await self._client.call(farewell, timeout_s=FAREWELL_S)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._client.close()
        await self._peers.close()

    # Joining

    async def _begin(self) -> None:
        self._peer_port = await self._peers.listen()
        await self._client.__aenter__()
        started = time.monotonic()
        while not self._client.is_connected:
            try:
                await self._client.connected(_WAIT_TOLD_S)
            except RequestRefusedError as error:
                raise MeetingError(str(error)) from error
            except MasterUnreachableError as error:
                if time.monotonic() - started > self._place.connect_timeout_s:
                    raise MeetingError(str(error)) from error
                log.warning("waiting for the master: %s", error)
        self._keep(self._follow_commands())
        self._keep(self._beat())

    def _join_message(self) -> said.Join:
        place = self._place
        return said.Join(
            node_id=place.node_id,
            incarnation=self._incarnation,
            number=self._joins,
            node_rank=place.node_rank,
            local_world_size=place.local_world_size,
            host=place.host,
            agent_address=f"{place.host}:{self._peer_port}",
            store_port=free_port(),
            topology=place.topology,
            round_seen=self._round.world.round if self._round else 0,
            attempt=self._round.go.attempt if self._round else 0,
            wait_s=_POLL_S,
            min_nodes=place.min_nodes,
            max_nodes=place.max_nodes,
            node_unit=place.node_unit,
            last_call_s=place.last_call_s,
            join_timeout_s=place.join_timeout_s,
        )

    @property
    def _notice(self) -> Notice | None:
        """What the master wants now."""
        return self._wanted.notice(self._round.world.round if self._round else None)

    async def _world_unless_stopped(self) -> said.World:
        """Ask for a world, and hear while waiting that there is to be none."""
        world = asyncio.ensure_future(self._ask_for_world())
        stopped = asyncio.ensure_future(self._stopped())
        try:
            await asyncio.wait({world, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (world, stopped):
                each.cancel()
            await asyncio.gather(world, stopped, return_exceptions=True)
        if stopped.cancelled():
            return world.result()
        raise MeetingError(f"stopped: {stopped.result().reason}")

    async def _stopped(self) -> Notice:
        async with self._changed:
            await self._changed.wait_for(lambda: self._wanted.stop)
        assert self._wanted.stop is not None
        return self._wanted.stop

    async def _ask_for_world(self) -> said.World:
        message, told = self._join_message(), time.monotonic()
        while True:
            try:
                reply = await self._client.call(message, timeout_s=None)
            except RequestRefusedError as error:
                raise MeetingError(str(error)) from error
            if isinstance(reply, said.World):
                return reply
            waiting = reply.message if isinstance(reply, said.Waiting) else ""
            if waiting and time.monotonic() - told >= _WAIT_TOLD_S:
                told = time.monotonic()
                log.warning("waiting: %s", waiting)

    def _world(self) -> World:
        assert self._round is not None
        stands, me = self._round, self._round.me
        self._running = stands.go.attempt
        return World(
            attempt=self._restarts_before + stands.go.attempt,
            group_rank=me.group_rank,
            group_world_size=len(stands.world.members),
            first_rank=me.first_rank,
            world_size=stands.world.world_size,
            store_host=stands.go.store_host,
            store_port=stands.go.store_port,
            round=stands.world.round,
        )

    # Restarts in place

    def _is_behind(self) -> bool:
        return self._round is not None and self._round.go.attempt > self._running

    async def _agree(self, stands: Round, reason: str) -> bool:
        reason = reason[:_TEXT_LIMIT]
        if stands.leads:
            self._lead(stands, self._running, reason)
            return await self._all_heard()
        wish = Failed(stands.world.round, self._running, reason)
        try:
            reply = await self._peers.tell(stands.leader.agent_address, wish, PEER_TIMEOUT_S)
        except PeerError as error:
            log.warning("the first node does not answer: %s", error)
            return False
        stands.hear(reply)
        return stands.go.attempt > self._running

    def _lead(self, stands: Round, attempt: int, reason: str) -> None:
        go = stands.propose(attempt, free_port(), reason)
        if go is not None:
            self._broadcast = asyncio.create_task(self._tell_all(stands, go))

    async def _tell_all(self, stands: Round, go: Go) -> bool:
        async def tell(address: str) -> bool:
            try:
                await self._peers.tell(address, go, PEER_TIMEOUT_S)
            except PeerError as error:
                log.warning("a node does not answer: %s", error)
                return False
            return True

        return all(await asyncio.gather(*(tell(each.agent_address) for each in stands.others)))

    async def _all_heard(self) -> bool:
        return await self._broadcast if self._broadcast else True

    async def _answer(self, message: PeerMessage) -> PeerMessage:
        stands = self._round
        if stands is None:
            return Heard(0, 0)
        reply = stands.hear(message)
        if isinstance(message, Failed) and stands.leads and message.round == stands.go.round:
            if stands.is_news(message):
                self._lead(stands, message.attempt, message.reason)
            reply = stands.go
        await self._wake()
        return reply

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # The master's word

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _follow_commands(self) -> None:
        try:
            async for command in self._client.commands():
                await self._obey(command.what)
        except RequestRefusedError as error:
            self._wanted.end(str(error))
            await self._wake()

    async def _obey(self, what: said.CommandKind) -> None:
        match what:
            case said.Restart():
                self._wanted.leave(what.round, what.reason)
            case said.Stop() | said.Evict():
                self._wanted.end(what.message or what.reason)
            case _:
                log.debug("command left to others", extra={"command": type(what).__name__})
        await self._wake()

    async def _beat(self) -> None:
        while True:
            welcome = self._client.welcome
            await asyncio.sleep(welcome.heartbeat_s if welcome else 1.0)
            stands = self._round
            beat = said.Heartbeat(
                node_id=self._place.node_id,
                incarnation=self._incarnation,
                round=stands.world.round if stands else 0,
                attempt=stands.go.attempt if stands else 0,
                phase=said.Phase.TRAINING if stands else said.Phase.WAITING,
            )
            with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
                await self._client.call(beat, timeout_s=_POLL_S)

    async def _finish(self) -> Notice | None:
        assert self._round is not None
        message = said.Finished(
            node_id=self._place.node_id,
            incarnation=self._incarnation,
            round=self._round.world.round,
            attempt=self._round.go.attempt,
            wait_s=_POLL_S,
        )
        while True:
            try:
                reply = await self._client.call(message, timeout_s=FINISH_PATIENCE_S)
            except MasterUnreachableError as error:
                log.warning("going without the master: %s", error)
                return None
            except RequestRefusedError as error:
                self._wanted.leave(message.round, str(error))
                return self._notice
            if not isinstance(reply, said.Waiting):
                return None

    def _report(self, failure: Failure) -> None:
        stands = self._round
        report = said.Failure(
            node_id=self._place.node_id,
            round=stands.world.round if stands else 0,
            attempt=self._running,
            exit_codes=(failure.exit_code,) if failure.exit_code is not None else (),
            cause=failure.cause,
            blame=failure.blame.value,
            remedy=failure.remedy.value,
            message=failure.message[:_TEXT_LIMIT],
            action="RestartInPlace",
        )
        self._keep(self._send(report))

    async def _send(self, message: said.Message) -> None:
        with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
            await self._client.call(message, timeout_s=_POLL_S)
