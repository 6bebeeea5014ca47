"""Membership of a job of several nodes: joins at the master, restarts in place among the agents.

The master is asked only when members change. While it is unreachable the workers continue, and
failures are handled with the peers of the round. Three sources can interrupt an attempt: an order
of the leader, a command of the master, and partition detection. All of them set state and notify
``_changed``; ``notice`` evaluates the state.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from gangline.api.failure import Failure
from gangline.elastic.agent.account import Report
from gangline.elastic.agent.agreement import Agreement
from gangline.elastic.agent.arrival import WAIT_TOLD_S, arrived
from gangline.elastic.agent.contact import Contact
from gangline.elastic.agent.hang import View
from gangline.elastic.agent.inquest import Inquest
from gangline.elastic.agent.library import Library
from gangline.elastic.agent.peers import (
    LEFT,
    TEXT_LIMIT,
    Failed,
    Heard,
    Hung,
    Look,
    PeerMessage,
    Peers,
    Seen,
    Started,
)
from gangline.elastic.agent.place import Place
from gangline.elastic.agent.rendezvous import CutOffError, MeetingError, Node, Notice
from gangline.elastic.agent.round import Round
from gangline.elastic.agent.wanted import Wanted
from gangline.elastic.agent.words import POLL_S, Speaker, failed
from gangline.elastic.agent.world import World
from gangline.elastic.protocol import messages as msg
from gangline.elastic.protocol.client import Client, ClientName
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError
from gangline.elastic.protocol.seal import Secret

log = logging.getLogger(__name__)

START_WAIT_S = 1.0
"""Maximum time for which workers wait until the leader's workers have started."""
FAREWELL_S = 2.0
FINISH_PATIENCE_S = 60.0
"""Maximum absence of the master at the end, after which this node ends without its confirmation."""


Check: TypeAlias = Callable[[Client, msg.RunCheck], Awaitable[None]]
"""Checks this node, over the connection to the master, with all nodes that got the same order."""


class Membership:
    """One node's membership of a job; implements ``RendezvousHandler``."""

    def __init__(self, place: Place, secret: Secret, check: Check | None = None) -> None:
        self._place, self._check = place, check
        self._check_wanted: msg.RunCheck | None = None
        self._node: Node | None = None
        self._current: World | None = None
        self._doing: str | None = msg.Phase.WAITING
        """Phase while no workers run; None while they do."""
        self._incarnation = secrets.token_hex(8)
        name = ClientName(place.job, place.node_id, self._incarnation)
        self._client = Client(place.master, secret, name)
        self._library = Library(self._client)
        self._peers = Peers(secret, self._answer)
        self._inquest = Inquest(self._peers)
        self._peer_port = 0
        self._joins = 0
        self._restarts_before = 0
        self._round: Round | None = None
        self._changed = asyncio.Condition()
        self._wanted = Wanted()
        self._running = -1
        self._background: set[asyncio.Task[None]] = set()
        self._agreement = Agreement(self._peers)
        self._contact = Contact(self._client, self._peers, place.witness)

    def serve(self, node: Node) -> None:
        self._node = node

    async def imports(self) -> Sequence[str]:
        """Ask the master for the preload list.

        Raises:
            MeetingError: it cannot be reached, or refuses this node.
        """
        await self._begin()
        return await self._library.known()

    def learned(self, modules: Sequence[str]) -> None:
        """Store the preload list at the master, if this node leads its round."""
        self._library.modules = tuple(modules)
        self._share()

    async def join(self) -> World:
        """Ask the master for a world until there is one.

        Raises:
            MeetingError: the master cannot be reached, or refuses to form a world.
        """
        await self._begin()
        if self._check_wanted and self._check:
            order, self._check_wanted = self._check_wanted, None
            self._doing = msg.Phase.CHECKING
            await self._check(self._client, order)
        self._doing = msg.Phase.WAITING
        self._joins += 1
        world = await self._world_unless_stopped()
        if self._round:
            self._restarts_before += self._round.go.attempt - self._round.world.attempt
        self._round = Round(world, self._place.node_id)
        self._agreement.forget()
        self._share()
        first = self._world(self._round)
        await self._first_node_starts(self._round)
        return first

    async def restart(self, world: World, failure: Failure | None) -> World:
        """Agree with the peers on the next attempt. Ask the master if one of them is lost."""
        current_round = self._round
        # The heartbeat reports the last steps of the ended attempt: lost work is counted from them.
        self._keep(self._send(self._heartbeat()))
        if current_round is None or self._notice:
            return await self.join()
        if failure and current_round.go.attempt <= self._running:
            report = failed(self._place, self._in_round, self._running, failure)
            self._keep(self._send(report))
            agreed = await self._agreement.reached(current_round, self._running, str(failure))
        else:
            agreed = await self._agreement.all_heard()
        if agreed:
            await self._first_node_starts(current_round)
        if agreed and self._notice is None and self._round is current_round:
            return self._world(current_round)
        return await self.join()

    def started(self, world: World) -> None:
        """Announce the start to the other nodes, if this node leads its round."""
        if self._round and self._round.leads and world is self._current:
            self._keep(self._agreement.tell_start(self._round, self._running))

    async def notice(self) -> Notice:
        """Wait for an order of the leader or the master."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._notice or self._is_behind())
        return self._notice or Notice(self._round.go.reason if self._round else "")

    async def views(self) -> Sequence[View]:
        if self._round is None or self._node is None:
            return ()
        return await self._inquest.views(self._round, self._running, self._node)

    async def finished(self, world: World) -> Notice | None:
        """Report the end to the master; wait for the other nodes, or for the cause of a restart."""
        done = asyncio.ensure_future(self._finish())
        notice = asyncio.ensure_future(self.notice())
        try:
            await asyncio.wait({done, notice}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in (done, notice):
                future.cancel()
            await asyncio.gather(done, notice, return_exceptions=True)
        if not done.cancelled() and done.exception() is None and done.result() is None:
            return None
        if not notice.cancelled() and notice.exception() is None:
            return notice.result()
        return done.result()

    async def leave(self, reason: str) -> None:
        """Leave the job at the master, if it is connected; close all connections."""
        succeeded = reason == "done"
        farewell = msg.Leave(
            node_id=self._place.node_id,
            incarnation=self._incarnation,
            reason=reason[:TEXT_LIMIT],
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
        if self._peer_port:
            return
        self._peer_port = await self._peers.listen()
        await self._client.__aenter__()
        await arrived(self._client, self._place.connect_timeout_s)
        self._keep(self._follow_commands())
        self._keep(self._beat())
        self._keep(self._contact.watch(lambda: self._round, self._leave_round))

    def _share(self) -> None:
        if self._round and self._round.leads:
            self._keep(self._library.tell())

    @property
    def _notice(self) -> Notice | None:
        return self._wanted.notice(self._round.world.round if self._round else None)

    async def _world_unless_stopped(self) -> msg.World:
        """Request a world; raise when an order to stop comes first, or this node is partitioned."""
        world = asyncio.ensure_future(self._ask_for_world())
        stopped = asyncio.ensure_future(self._stopped())
        cut_off = asyncio.ensure_future(self._contact.cut_off())
        every: tuple[asyncio.Future[Any], ...] = (world, stopped, cut_off)
        try:
            await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in every:
                future.cancel()
            await asyncio.gather(*every, return_exceptions=True)
        if not stopped.cancelled():
            raise MeetingError(f"stopped: {stopped.result().reason}")
        if not cut_off.cancelled():
            raise CutOffError(cut_off.result())
        return world.result()

    async def _stopped(self) -> Notice:
        async with self._changed:
            await self._changed.wait_for(lambda: self._wanted.stop)
        assert self._wanted.stop is not None
        return self._wanted.stop

    async def _ask_for_world(self) -> msg.World:
        messages, logged_at = Speaker(self._place, self._incarnation), time.monotonic()
        message = messages.join(self._joins, self._peer_port, self._round)
        while True:
            try:
                reply = await self._client.call(message, timeout_s=None)
            except RequestRefusedError as error:
                raise MeetingError(str(error)) from error
            if isinstance(reply, msg.World):
                return reply
            waiting = reply.message if isinstance(reply, msg.Waiting) else ""
            if waiting and time.monotonic() - logged_at >= WAIT_TOLD_S:
                logged_at = time.monotonic()
                log.warning("waiting: %s", waiting)

    async def _first_node_starts(self, current_round: Round) -> None:
        """Wait until the leader has started its workers, another order comes, or the timeout."""
        attempt = current_round.go.attempt

        def is_time() -> bool:
            is_over = self._notice is not None or current_round.go.attempt > attempt
            return is_over or self._agreement.is_started(current_round.world.round, attempt)

        if not current_round.leads:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(START_WAIT_S), self._changed:
                    await self._changed.wait_for(is_time)

    def _world(self, current_round: Round) -> World:
        self._running, self._doing = current_round.go.attempt, None
        self._current = current_round.attempt_world(self._restarts_before)
        return self._current

    # Restarts in place

    def _is_behind(self) -> bool:
        return self._round is not None and self._round.go.attempt > self._running

    async def _answer(self, message: PeerMessage) -> PeerMessage:
        current_round = self._round
        if isinstance(message, Started):
            self._agreement.hear_start(message)
        if current_round is None:
            return Heard(0, 0)
        if isinstance(message, Hung | Look):
            return await self._testify(current_round, message)
        if self._wanted.notice(current_round.world.round):
            return Heard(current_round.world.round, LEFT)
        reply = current_round.hear(message)
        if (
            isinstance(message, Failed)
            and current_round.leads
            and message.round == current_round.go.round
        ):
            if current_round.is_news(message):
                self._agreement.lead(current_round, message.attempt, message.reason)
            reply = current_round.go
        await self._wake()
        return reply

    async def _testify(self, current_round: Round, message: Hung | Look) -> Seen:
        is_ours = (message.round, message.attempt) == (current_round.world.round, self._running)
        if not is_ours or self._node is None:
            return Seen(await self._inquest.recalled(message.round, message.attempt))
        if isinstance(message, Look):
            return Seen(tuple(await self._node.views()))
        return Seen(await self._inquest.gathered(current_round, self._running, self._node))

    async def _leave_round(self, round_: int, reason: str) -> None:
        if self._doing is None and self._wanted.notice(round_) is None:
            log.warning("leaving this world: %s", reason)
        self._wanted.leave(round_, reason)
        await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # Orders of the master

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

    async def _obey(self, what: msg.CommandKind) -> None:
        match what:
            case msg.Restart():
                self._wanted.leave(what.round, what.reason)
            case msg.Stop() | msg.Evict():
                self._wanted.end(what.message or what.reason)
            case msg.RunCheck():
                self._check_wanted = what
                self._wanted.leave(self._in_round, f"a node check is requested: {what.reason}")
            case msg.DumpStacks() if self._node:
                self._keep(self._node.dump_stacks(what.reason))
            case msg.SaveCheckpoint() if self._node:
                log.warning("saving the newest checkpoint: %s", what.reason or "requested")
                self._node.start_saving()
        await self._wake()

    async def _beat(self) -> None:
        while True:
            welcome = self._client.welcome
            await asyncio.sleep(welcome.heartbeat_s if welcome else 1.0)
            await self._send(self._heartbeat())

    @property
    def _in_round(self) -> int:
        return self._round.world.round if self._round else 0

    def _heartbeat(self) -> msg.Heartbeat:
        # A node whose workers do not run must not claim a round: the master might take a world that
        # is over for the current one.
        messages = Speaker(self._place, self._incarnation)
        if self._doing is not None:
            return messages.heartbeat(0, 0, Report(phase=self._doing))
        report = self._node.report() if self._node else Report()
        current = self._current
        if current is None or (report.round, report.attempt) != (current.round, current.attempt):
            report = Report(phase=msg.Phase.TRAINING)  # its workers are about to start
        return messages.heartbeat(self._in_round, max(self._running, 0), report)

    async def _finish(self) -> Notice | None:
        assert self._round is not None
        message = msg.Finished(
            node_id=self._place.node_id,
            incarnation=self._incarnation,
            round=self._round.world.round,
            attempt=self._round.go.attempt,
            wait_s=POLL_S,
        )
        while True:
            try:
                reply = await self._client.call(message, timeout_s=FINISH_PATIENCE_S)
            except MasterUnreachableError as error:
                log.warning("ending without confirmation of the master: %s", error)
                return None
            except RequestRefusedError as error:
                self._wanted.leave(message.round, str(error))
                return self._notice
            if not isinstance(reply, msg.Waiting):
                return None

    async def _send(self, message: msg.Message) -> None:
        with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
            await self._client.call(message, timeout_s=POLL_S)
