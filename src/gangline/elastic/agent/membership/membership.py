"""Membership of a job of several nodes: joins at the master, restarts in place among the agents.

The master is asked only when members change. While it is unreachable the workers continue, and
failures are handled with the peers of the round. Three sources can interrupt an attempt: an order
of the leader, a command of the master, and partition detection. None of them acts by itself: each
changes the state and notifies ``_changed``; ``wait_for_notice`` evaluates the state. So orders that
arrive together, or twice, interrupt an attempt once.

State: ``_round`` is the last world and the latest attempt that was ordered in it;
``_running_attempt`` the attempt whose workers run here; ``_pending_orders`` what the master or a
partition requires. The workers are behind while the ordered attempt is the higher one.

Workers that survive a change of members keep running while this node joins the next world
(``_rejoin``). All members adopt that world if the workers of its first node run on, otherwise none.

Invariant: an order is never discarded. Commands and worlds arrive on separate ways, so an order to
leave a round may arrive before the world of that round; it also covers all earlier rounds.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gangline.api.failure import Failure
from gangline.elastic.agent.failures import RankExit
from gangline.elastic.agent.hang_detector import RankStack
from gangline.elastic.agent.membership.master_messages import (
    LONG_POLL_S,
    WAIT_MESSAGE_INTERVAL_S,
    EvictionSave,
    MasterMessages,
    PreloadList,
    failure_message,
    node_report,
    wait_for_master,
)
from gangline.elastic.agent.membership.partition import PartitionDetector
from gangline.elastic.agent.membership.restart_consensus import (
    LEFT_ROUND,
    TEXT_LIMIT,
    Ack,
    ExitRequest,
    HangDiagnosis,
    HangReport,
    PeerMessage,
    PeerTransport,
    RankExits,
    Round,
    StackRequest,
    WorkersStarted,
)
from gangline.elastic.agent.progress_report import NodeProgress
from gangline.elastic.agent.rendezvous import (
    PartitionedError,
    RendezvousError,
    StopNotice,
    WorkerControl,
    WorldSpec,
)
from gangline.elastic.agent.settings import NodeIdentity
from gangline.elastic.agent.tuning_file import TuningFile
from gangline.elastic.progress import NodePhase
from gangline.elastic.protocol import messages as msg
from gangline.elastic.protocol.channel import JobSecret
from gangline.elastic.protocol.client import ClientIdentity, MasterClient
from gangline.elastic.protocol.wire import MasterUnreachableError, RequestRefusedError

_MEMBERS_CHANGED = "the members have changed"


log = logging.getLogger(__name__)

FIRST_NODE_WAIT_S = 1.0
"""Maximum time for which workers wait until the leader's workers have started."""
LEAVE_TIMEOUT_S = 2.0
FINISH_TIMEOUT_S = 60.0
"""Maximum absence of the master at the end, after which this node ends without its confirmation."""


NodeCheck: TypeAlias = Callable[[MasterClient, msg.RunCheck], Awaitable[None]]
"""Checks this node, over the connection to the master, with all nodes that got the same order."""


@dataclass(slots=True)
class PendingOrders:
    stop: StopNotice | None = None
    """The first order to stop."""
    left_round: int = -1
    """The last round that must be left."""
    reason: str = ""

    def order_stop(self, reason: str) -> None:
        self.stop = self.stop or StopNotice(reason, stops=True)

    def order_leave(self, round_: int, reason: str) -> None:
        if round_ > self.left_round:
            self.left_round, self.reason = round_, reason or _MEMBERS_CHANGED

    def notice(self, round_: int | None) -> StopNotice | None:
        """Return the order that applies to a round; None is before the first one."""
        if self.stop is not None:
            return self.stop
        if round_ is not None and round_ <= self.left_round:
            return StopNotice(self.reason)
        return None


class Membership:
    """One node's membership of a job; implements ``RendezvousHandler``."""

    def __init__(
        self,
        identity: NodeIdentity,
        secret: JobSecret,
        check: NodeCheck | None = None,
        tuning_file: TuningFile | None = None,
    ) -> None:
        self._identity, self._check = identity, check
        self._tuning_file = tuning_file
        self._pending_check: msg.RunCheck | None = None
        self._workers: WorkerControl | None = None
        self._current_world: WorldSpec | None = None
        self._idle_phase: str | None = NodePhase.WAITING
        """Phase while no workers run; None while they do."""
        self._incarnation = secrets.token_hex(8)
        name = ClientIdentity(identity.job, identity.node_id, self._incarnation)
        self._client = MasterClient(identity.master_address, secret, name)
        self._messages = MasterMessages(identity, self._incarnation)
        self._preload_list = PreloadList(self._client)
        self._eviction_save = EvictionSave(
            self._client, identity.node_id, self._incarnation, self._run_in_background
        )
        self._peers = PeerTransport(secret, self._answer_peer)
        self._hang_diagnosis = HangDiagnosis(self._peers)
        self._rank_exits = RankExits(self._peers)
        self._peer_port = 0
        self._joins = 0
        self._restarts_before = 0
        self._round: Round | None = None
        self._changed = asyncio.Condition()
        self._pending_orders = PendingOrders()
        self._running_attempt = -1
        self._rejoining: asyncio.Task[None] | None = None
        self._broken_round = -1
        """The last round that broke while the workers kept running."""
        self._background: set[asyncio.Task[object]] = set()
        self._latest_start = (0, -1)
        """Latest (round, attempt) whose first workers are known to have started."""
        self._partition_detector = PartitionDetector(
            self._client, self._peers, identity.witness_address
        )

    def attach_workers(self, workers: WorkerControl) -> None:
        self._workers = workers

    async def known_imports(self) -> Sequence[str]:
        await self._connect()
        return await self._preload_list.fetch()

    def share_imports(self, modules: Sequence[str]) -> None:
        self._preload_list.modules = tuple(modules)
        self._publish_preload_list()

    async def join(self) -> WorldSpec:
        await self._connect()
        if self._pending_check and self._check:
            order, self._pending_check = self._pending_check, None
            self._idle_phase = NodePhase.CHECKING
            await self._check(self._client, order)
        self._idle_phase = NodePhase.WAITING
        if self._rejoining:
            self._rejoining.cancel()
        world = await self._request_world_or_stop()
        if self._round:
            self._restarts_before += self._round.order.attempt - self._round.world.attempt
        self._round = Round(world, self._identity.node_id, self._peers)
        self._publish_preload_list()
        first = self._start_attempt(self._round)
        if not first.is_running:
            await self._wait_for_first_node(self._round)
        return first

    async def restart(self, world: WorldSpec, failure: Failure | None) -> WorldSpec:
        """Agree with the peers on the next attempt. Ask the master if one of them is lost.

        Heartbeats with the last steps go out in the background: the master counts lost work from
        them, and the restart does not wait for it.
        """
        current_round, attempt = self._round, self._running_attempt
        # 1. The members have changed: only the master can form the next world.
        if current_round is None or self._pending_notice:
            self._run_in_background(self._send(self._heartbeat()))
            return await self.join()
        # 2. This node saw the failure first: ask for the next attempt. If an order is there
        #    already, the failure may be a consequence of the restart of another node.
        if failure and current_round.order.attempt <= attempt:
            self._run_in_background(self._send_last_heartbeat())
            report = failure_message(self._identity, self._round_number, attempt, failure)
            self._run_in_background(self._send(report))
            agreed = await current_round.agree_on_restart(attempt, str(failure))
        else:
            self._run_in_background(self._send(self._heartbeat()))
            agreed = await current_round.wait_for_acks()
        if agreed:
            await self._wait_for_first_node(current_round)
        # 3. An order of the master may have arrived during either wait, and it comes first.
        if agreed and self._pending_notice is None and self._round is current_round:
            return self._start_attempt(current_round)
        return await self.join()

    def announce_start(self, world: WorldSpec) -> None:
        if self._round and self._round.is_leader and world is self._current_world:
            self._run_in_background(self._round.announce_start(self._running_attempt))

    async def wait_for_notice(self) -> StopNotice:
        async with self._changed:
            await self._changed.wait_for(lambda: self._pending_notice or self._is_behind())
        return self._pending_notice or StopNotice(self._round.order.reason if self._round else "")

    async def rank_stacks(self) -> Sequence[RankStack]:
        if self._round is None or self._workers is None:
            return ()
        return await self._hang_diagnosis.rank_stacks(
            self._round, self._running_attempt, self._workers
        )

    async def rank_exits(self) -> Sequence[RankExit]:
        if self._round is None or self._workers is None:
            return ()
        return await self._rank_exits.find(self._round, self._running_attempt, self._workers)

    async def finish(self, world: WorldSpec) -> StopNotice | None:
        """Report the end to the master; wait for the other nodes, or for the cause of a restart."""
        if self._rejoining:
            await asyncio.wait({self._rejoining})
        self._run_in_background(self._send(self._heartbeat()))  # with the last steps
        done, notice = await _first_of(self._report_finished(), self.wait_for_notice())
        if not done.cancelled() and done.exception() is None and done.result() is None:
            return None
        ending: StopNotice | None = (
            done if notice.cancelled() or notice.exception() else notice
        ).result()
        return ending

    async def leave(self, reason: str) -> None:
        succeeded = reason == "done"
        farewell = msg.Leave(
            node_id=self._identity.node_id,
            incarnation=self._incarnation,
            reason=reason[:TEXT_LIMIT],
            succeeded=succeeded,
        )
        if self._client.is_connected:
            with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
                await self._client.call(farewell, timeout_s=LEAVE_TIMEOUT_S)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._client.close()
        await self._peers.close()

    # Joining

    async def _connect(self) -> None:
        if self._peer_port:
            return
        self._peer_port = await self._peers.listen()
        await self._client.__aenter__()
        await wait_for_master(self._client, self._identity.connect_timeout_s)
        self._run_in_background(self._follow_commands())
        self._run_in_background(self._send_heartbeats())
        self._run_in_background(
            self._partition_detector.watch(lambda: self._round, self._leave_round)
        )

    def _publish_preload_list(self) -> None:
        if self._round and self._round.is_leader:
            self._run_in_background(self._preload_list.publish())

    @property
    def _pending_notice(self) -> StopNotice | None:
        return self._pending_orders.notice(self._round.world.round if self._round else None)

    async def _request_world_or_stop(self) -> msg.WorldInfo:
        """Request a world; raise when an order to stop comes first, or this node is partitioned."""
        world, stopped, cut_off = await _first_of(
            self._request_world(),
            self._wait_for_stop(),
            self._partition_detector.wait_until_partitioned(),
        )
        if not stopped.cancelled():
            raise RendezvousError(f"stopped: {stopped.result().reason}")
        if not cut_off.cancelled():
            raise PartitionedError(cut_off.result())
        info: msg.WorldInfo = world.result()
        return info

    async def _wait_for_stop(self) -> StopNotice:
        async with self._changed:
            await self._changed.wait_for(lambda: self._pending_orders.stop)
        assert self._pending_orders.stop is not None
        return self._pending_orders.stop

    async def _request_world(self, running_store_port: int | None = None) -> msg.WorldInfo:
        logged_at = time.monotonic()
        self._joins += 1
        message = self._messages.join(self._joins, self._peer_port, self._round, running_store_port)
        while True:
            try:
                reply = await self._client.call(message, timeout_s=None)
            except RequestRefusedError as error:
                raise RendezvousError(str(error)) from error
            if isinstance(reply, msg.WorldInfo):
                return reply
            waiting = reply.message if isinstance(reply, msg.JoinPending) else ""
            if waiting and time.monotonic() - logged_at >= WAIT_MESSAGE_INTERVAL_S:
                logged_at = time.monotonic()
                log.warning("waiting: %s", waiting)

    def _keeps_workers(self, round_: int) -> bool:
        """Join again while the workers keep running. Returns False if they must be ended."""
        current, workers = self._round, self._workers
        if current is None or workers is None or round_ < current.world.round:
            return False
        is_same = self._identity.node_unit == 1 and not self._is_behind()
        if not (is_same and workers.survives and self._idle_phase is None):
            return False
        if self._pending_notice is not None:
            return False
        self._broken_round = round_
        if self._rejoining is None or self._rejoining.done():
            self._rejoining = asyncio.create_task(self._rejoin(current, workers))
            self._background.add(self._rejoining)
            self._rejoining.add_done_callback(self._background.discard)
        return True

    async def _rejoin(self, current: Round, workers: WorkerControl) -> None:
        while current.world.round <= self._broken_round:
            world = self._current_world
            assert world is not None
            try:
                joined = await self._request_world(world.store_port)
            except RendezvousError as error:
                await self._leave_round(self._broken_round, str(error))
                return
            if not joined.continues:
                await self._leave_round(joined.round, _MEMBERS_CHANGED)
                return
            self._restarts_before += current.order.attempt - current.world.attempt
            self._round = current = Round(joined, self._identity.node_id, self._peers)
            workers.continue_in(self._start_attempt(current))
            log.info("nodes that train now: %d", len(joined.members))

    async def _wait_for_first_node(self, current_round: Round) -> None:
        """Wait until the leader has started its workers, another order comes, or the timeout."""
        attempt = current_round.order.attempt

        def is_time() -> bool:
            is_over = self._pending_notice is not None or current_round.order.attempt > attempt
            return is_over or self._latest_start >= (current_round.world.round, attempt)

        if not current_round.is_leader:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_NODE_WAIT_S), self._changed:
                    await self._changed.wait_for(is_time)

    def _start_attempt(self, current_round: Round) -> WorldSpec:
        self._running_attempt, self._idle_phase = current_round.order.attempt, None
        self._current_world = current_round.world_spec(self._restarts_before)
        return self._current_world

    # Restarts in place

    def _is_behind(self) -> bool:
        return self._round is not None and self._round.order.attempt > self._running_attempt

    async def _answer_peer(self, message: PeerMessage) -> PeerMessage:
        current_round = self._round
        if isinstance(message, WorkersStarted):
            # The announcement may arrive before the world does.
            self._latest_start = max(self._latest_start, (message.round, message.attempt))
        if current_round is None:
            return Ack(0, 0)
        if isinstance(message, HangReport | StackRequest):
            return await self._hang_diagnosis.answer(
                message, current_round, self._running_attempt, self._workers
            )
        if isinstance(message, ExitRequest):
            return await self._rank_exits.answer(
                message, current_round, self._running_attempt, self._workers
            )
        if self._pending_orders.notice(current_round.world.round):
            return Ack(current_round.world.round, LEFT_ROUND)
        reply = current_round.apply(message)
        await self._notify_waiters()
        return reply

    async def _leave_round(self, round_: int, reason: str) -> None:
        if self._idle_phase is None and self._pending_orders.notice(round_) is None:
            log.warning("leaving this world: %s", reason)
        self._pending_orders.order_leave(round_, reason)
        await self._notify_waiters()

    async def _notify_waiters(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # Orders of the master

    def _run_in_background(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _follow_commands(self) -> None:
        try:
            async for command in self._client.commands():
                await self._handle_command(command.what)
        except RequestRefusedError as error:
            self._pending_orders.order_stop(str(error))
            await self._notify_waiters()

    async def _handle_command(self, what: msg.CommandBody) -> None:
        match what:
            case msg.RestartCommand() if self._keeps_workers(what.round):
                log.info("the workers keep running: %s", what.reason)
            case msg.RestartCommand():
                self._pending_orders.order_leave(what.round, what.reason)
            case msg.StopCommand() | msg.Evict():
                self._pending_orders.order_stop(what.message or what.reason)
            case msg.RunCheck():
                self._pending_check = what
                self._pending_orders.order_leave(
                    self._round_number, f"a node check is requested: {what.reason}"
                )
            case msg.DumpStacks() if self._workers:
                self._run_in_background(self._workers.dump_stacks(what.reason))
            case msg.SaveCheckpoint() if self._workers and what.request:
                self._eviction_save.handle(self._workers, what)
            case msg.SaveCheckpoint() if self._workers:
                log.warning("saving the newest checkpoint: %s", what.reason or "requested")
                self._workers.start_saving()
        await self._notify_waiters()

    async def _send_heartbeats(self) -> None:
        while True:
            welcome = self._client.welcome
            await asyncio.sleep(welcome.heartbeat_s if welcome else 1.0)
            await self._send_heartbeat()

    async def _send_heartbeat(self) -> None:
        reply = await self._send(self._heartbeat())
        if isinstance(reply, msg.Commands) and reply.tuning is not None and self._tuning_file:
            self._tuning_file.apply(reply.tuning)

    @property
    def _round_number(self) -> int:
        return self._round.world.round if self._round else 0

    async def _send_last_heartbeat(self) -> None:
        """Report the last steps of the ended attempt: lost work is counted from them."""
        await asyncio.sleep(0)  # the order to restart, which is created meanwhile, goes out first
        await self._send(self._heartbeat())

    def _heartbeat(self) -> msg.Heartbeat:
        # A node whose workers do not run must not claim a round: the master might take a world that
        # is over for the current one.
        if self._idle_phase is not None:
            return self._messages.heartbeat(0, 0, NodeProgress(phase=self._idle_phase))
        report = self._workers.report() if self._workers else NodeProgress()
        current = self._current_world
        if current is None or (report.round, report.attempt) != (current.round, current.attempt):
            report = NodeProgress(phase=NodePhase.TRAINING)  # its workers are about to start
        details = self._node_report(report) if report.is_detailed else None
        return self._messages.heartbeat(
            self._round_number, max(self._running_attempt, 0), report, details
        )

    def _node_report(self, report: NodeProgress) -> msg.NodeReport:
        file = self._tuning_file
        if file is not None and report.training is not None:
            file.set_device_model(report.training.device_model)
        return node_report(
            report,
            self._identity.pod,
            None if file is None else file.version,
            file is not None and file.tunes_batch,
        )

    async def _report_finished(self) -> StopNotice | None:
        assert self._round is not None
        message = msg.WorkersFinished(
            node_id=self._identity.node_id,
            incarnation=self._incarnation,
            round=self._round.world.round,
            attempt=self._round.order.attempt,
            wait_s=LONG_POLL_S,
        )
        while True:
            try:
                reply = await self._client.call(message, timeout_s=FINISH_TIMEOUT_S)
            except MasterUnreachableError as error:
                log.warning("ending without confirmation of the master: %s", error)
                return None
            except RequestRefusedError as error:
                self._pending_orders.order_leave(message.round, str(error))
                return self._pending_notice
            if not isinstance(reply, msg.JoinPending):
                return None

    async def _send(self, message: msg.ProtocolMessage) -> msg.Reply | None:
        with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
            return await self._client.call(message, timeout_s=LONG_POLL_S)
        return None


async def _first_of(*work: Coroutine[Any, Any, Any]) -> list[asyncio.Future[Any]]:
    """Run until one has ended; cancel the others, and wait until those have ended too."""
    futures: list[asyncio.Future[Any]] = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)
    return futures
