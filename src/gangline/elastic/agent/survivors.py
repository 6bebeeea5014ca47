"""The agent's part in surviving workers: reports of exits, successors, and orders.

The agent of rank 0's node has the coordinator beside the store of the attempt; the agents of other
nodes reach it through that store. Without a worker that uses the protocol nothing happens here, and
an exit ends the attempt.
"""

import asyncio
import logging
import secrets
import signal
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from gangline.api.failure import Remedy
from gangline.elastic.agent.failures import CONSEQUENCE_CAUSE, WorkerFailure
from gangline.elastic.agent.process import StartError, end_processes, is_killed
from gangline.elastic.agent.rendezvous import WorldSpec
from gangline.elastic.agent.replace_rank import ReplaceServer
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.agent.store import AgentStore, StoreConnection, probe_silence
from gangline.elastic.agent.worker_group import WorkerGroup
from gangline.elastic.survivors.coordinator import EpochCoordinator, Replacement
from gangline.elastic.survivors.messages import (
    Alive,
    Arrived,
    Ended,
    Fallback,
    Form,
    Hold,
    KillRank,
    Look,
    Lost,
    LostNode,
    Message,
    Order,
    Place,
    Refused,
    Replace,
    Start,
    Train,
    Warm,
)
from gangline.elastic.survivors.orders import (
    GROUPS_PREFIX,
    LENGTH_BYTES,
    MESSAGES_KEY,
    decode_length,
    decode_message,
    decode_order,
    encode_follow,
    encode_push,
)
from gangline.elastic.variables import FOLDER_VARIABLE, SLOT_VARIABLE, SUCCESSOR_VARIABLE

log = logging.getLogger(__name__)

_DECISION_S = 90.0
"""Longer than the coordinator takes for any decision."""
_CONNECT_S = 60.0
_RETRY_S = 0.2


class CoordinatorService:
    """Runs the coordinator beside the store of the attempt."""

    agent = ""

    def __init__(
        self,
        store: AgentStore,
        coordinator: EpochCoordinator,
        on_replacement: Callable[[Replacement], None],
    ) -> None:
        """Serve the workers of one attempt."""
        self._store, self._coordinator = store, coordinator
        self._on_replacement = on_replacement
        self._places: dict[str, int] = {}
        """The node of each agent."""
        self._timer: asyncio.TimerHandle | None = None
        self.listeners: list[Callable[[Order], None]] = []
        store.listeners[MESSAGES_KEY] = self._receive

    @property
    def order_count(self) -> int:
        return self._store.order_count

    @property
    def is_active(self) -> bool:
        """True if losses are got over here now."""
        return self._coordinator.is_active

    def send(self, message: Message) -> None:
        """Take a message of this node or of another one."""
        now = time.monotonic()
        self._write(self._coordinator.handle(message, now))
        for replacement in self._coordinator.replacements:
            self._on_replacement(replacement)
        self._coordinator.replacements.clear()

    def close(self) -> None:
        self._coordinator.is_over = True
        self._store.listeners.pop(MESSAGES_KEY, None)
        self.listeners.clear()
        if self._timer:
            self._timer.cancel()

    def _receive(self, data: bytes, peer: StoreConnection) -> None:
        try:
            message = decode_message(data)
        except msgspec.DecodeError as error:
            log.warning("a message of a worker is ignored: %s", error)
            return
        if isinstance(message, Warm):
            log.info("a successor is warm")
        if isinstance(message, Alive):
            peer.watch(partial(self._look, message.slot))
        if isinstance(message, Arrived):
            if message.node is not None:
                self._places[message.agent] = message.node
            peer.watch(partial(self._lose_agent, message.agent))
        self.send(message)

    def _look(self, slot: int) -> None:
        if not self._coordinator.is_over:
            self._write([Look(slot)])

    def _lose_agent(self, agent: str) -> None:
        if (node := self._places.pop(agent, None)) is not None and not self._coordinator.is_over:
            log.warning("the agent of node %d is gone", node)
            self.send(LostNode(node))

    def _write(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if isinstance(order, Form | Hold):
                # Members that form the group before wait for one that is lost.
                self._store.refuse_waits(GROUPS_PREFIX)
            if isinstance(order, Place):
                self._places[order.agent] = order.node
            self._store.append_order(msgspec.json.encode(order))
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if (deadline := self._coordinator.deadline) is not None:
            delay = max(deadline - time.monotonic(), 0.0) + 0.01
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)
        for order in orders:
            for listener in self.listeners:
                listener(order)

    def _tick(self) -> None:
        self._write(self._coordinator.tick(time.monotonic()))


class RemoteCoordinator:
    """The coordinator on another node, reached through the store of the attempt."""

    def __init__(self, host: str, port: int, node: int | None) -> None:
        """Connect in the background.

        Args:
            node: number of this node; None if the workers of the others run already.
        """
        self._address = host, port
        self.agent, self._node = secrets.token_hex(8), node
        self._writer: asyncio.StreamWriter | None = None
        self.order_count = 0
        self.listeners: list[Callable[[Order], None]] = []
        self._task = asyncio.ensure_future(self._follow())

    def send(self, message: Message) -> None:
        if self._writer and not self._writer.is_closing():
            self._writer.write(encode_push(message))

    def close(self) -> None:
        self.listeners.clear()
        self._task.cancel()
        if self._writer:
            self._writer.close()

    async def _follow(self) -> None:
        try:
            reader, self._writer = await self._connect()
            probe_silence(self._writer.transport)
            self._writer.write(encode_follow(0))
            self.send(Arrived(self.agent, self._node))
            while True:
                length = decode_length(await reader.readexactly(LENGTH_BYTES))
                order = decode_order(await reader.readexactly(length))
                self.order_count += 1
                for listener in self.listeners:
                    listener(order)
        except (OSError, EOFError, msgspec.DecodeError) as error:
            log.debug("orders about workers end: %s", error)
            for listener in self.listeners:
                listener(Fallback("the node of rank 0 cannot be reached"))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        end = time.monotonic() + _CONNECT_S
        while True:
            try:
                return await asyncio.open_connection(*self._address)
            except OSError:  # rank 0's node may open the store later
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(_RETRY_S)


class NodeSurvivors:
    """The workers of this node in one attempt, some of which may be replaced."""

    def __init__(
        self,
        settings: AgentSettings,
        world: WorldSpec,
        group: WorkerGroup,
        coordinator: CoordinatorService | RemoteCoordinator,
        base: Mapping[str, str],
    ) -> None:
        """Follow the orders of a coordinator for a group that is about to start."""
        self._settings, self._group, self._base = settings, group, base
        self._node = None if world.is_running else world.group_rank
        """Number of this node; None until it has a place beside workers that run."""
        self._are_first = True
        """True while the processes that start are the first workers."""
        self._coordinator = coordinator
        self._order: Form | None = None
        """The present group; None while the script has not formed one."""
        self._changed = asyncio.Event()
        self._is_over = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._reported: set[int] = set()
        self._asked_epoch = 0
        self._server = ReplaceServer(settings.run_id, self._replace_on_request)
        coordinator.listeners.append(self._follow)
        group.variables = self._variables

    @property
    def are_kept(self) -> bool:
        """True if the workers keep running when nodes leave or join."""
        if isinstance(self._coordinator, CoordinatorService) and not self._coordinator.is_active:
            return False
        return self._order is not None and not self._is_over

    async def wait_for_end(self) -> list[WorkerFailure]:
        """Wait until all workers have succeeded, or one has failed that is not replaced."""
        while True:
            failures = self._group.failures()
            self._changed.clear()
            if failures and not self._can_wait(failures):
                return failures
            ended = [worker.process.ended for worker in self._group.workers]
            living = {future for future in ended if not future.done()}
            is_vacant = not self._group.workers and not self._is_over
            if not living and not failures and not is_vacant:
                return []
            if len(living) + len(failures) < len(ended):
                self._report_success()
            timeout_s = _DECISION_S if failures else None
            changed: asyncio.Future[Any] = asyncio.ensure_future(self._changed.wait())
            try:
                done, _ = await asyncio.wait(
                    {*living, changed}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                changed.cancel()
            if not done:
                return failures

    def replace(self, ranks: Collection[int], reason: str, *, is_urgent: bool) -> bool:
        """Ask for other processes in place of ranks. Returns False if that is impossible.

        Args:
            is_urgent: True if they are of no use any more.
        """
        if self._is_over or self._order is None:
            return False
        if is_urgent:
            if self._asked_epoch == self._order.epoch:
                return False
            self._asked_epoch = self._order.epoch  # a second request means that it has not helped
        for rank in ranks:
            self._coordinator.send(Replace(rank, reason, is_urgent, self._order.epoch))
        return bool(ranks) and not self._is_over

    def _replace_on_request(self, rank: int, reason: str) -> str:
        world = len(self._order.members) if self._order else 0
        if not 0 <= rank < world:
            return f"there is no rank {rank}: the ranks are 0 to {world - 1}"
        if not self.replace([rank], reason, is_urgent=False):
            return "ranks cannot be replaced now: the training ends, or is being restarted"
        return f"rank {rank} is replaced as soon as a successor is warm"

    async def close(self) -> None:
        """End the successors; the workers are the group's."""
        self._coordinator.close()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        workers = [*self._group.workers]
        idle = [one.process for one in self._group.slots.values() if one not in workers]
        await end_processes(idle, signal.SIGKILL, 0)

    def _variables(self, slot: int) -> dict[str, str]:
        variables = {SLOT_VARIABLE: str(slot), FOLDER_VARIABLE: str(self._group.folder)}
        if not self._are_first:
            variables[SUCCESSOR_VARIABLE] = str(self._coordinator.order_count)
        return variables

    def _can_wait(self, failures: Sequence[WorkerFailure]) -> bool:
        """Report losses to the coordinator. Returns False if the attempt ends by one of them."""
        if self._order is None or self._is_over:
            return False
        remedies = {failure.failure.remedy for failure in failures}
        if Remedy.MOVE in remedies and self._settings.has_other_nodes:
            return False  # this agent gives up its node, and the others go on without it
        slots = {worker.process.pid: slot for slot, worker in self._group.slots.items()}
        for failure in failures:
            slot, cause = slots[failure.pid], failure.failure
            if cause.remedy is Remedy.RETRY and cause.cause != CONSEQUENCE_CAUSE:
                self._report_end(slot, Lost(slot, cause.cause))
            else:
                self._report_end(slot, Refused(slot, cause.cause))
        return not self._is_over

    def _report_success(self) -> None:
        for slot, worker in self._group.slots.items():
            is_member = worker in self._group.workers
            if is_member and worker.process.ended.done() and not worker.process.ended.result():
                self._report_end(slot, Ended(slot))

    def _report_end(self, slot: int, message: Message) -> None:
        if slot not in self._reported:
            self._reported.add(slot)
            self._coordinator.send(message)

    # Orders.

    def _follow(self, order: Order) -> None:
        match order:
            case Place(agent, node) if self._node is None and agent == self._coordinator.agent:
                self._node = node
            case Form():
                if self._order is None:
                    self._run(self._server.listen())
                self._order, self._group.is_held = order, True
                self._seat_members()
            case Hold():
                self._group.is_held = True
            case Train():
                self._group.is_held = False
            case Start(slot, node, seat) if node == self._node:
                self._run(self._start(slot, seat))
            case KillRank(slot, reason):
                self._kill([slot], reason)
            case Look(slot) if worker := self._group.slots.get(slot):
                is_known = self._order is None or worker.process.ended.done()
                if not is_known and is_killed(worker.process.pid):
                    self._report_end(slot, Lost(slot, "Killed"))
            case Fallback(reason, blamed, is_end) if not self._is_over:
                level = logging.DEBUG if is_end else logging.INFO
                log.log(level, "ranks are not replaced any more: %s", reason)
                self._is_over, self._group.is_held = True, False
                self._kill(blamed, reason)
        self._changed.set()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _kill(self, slots: Sequence[int], reason: str) -> None:
        for slot in slots:
            if worker := self._group.slots.get(slot):
                pid = worker.process.pid
                log.warning("rank %d (pid %d) is ended: %s", worker.rank, pid, reason)
                worker.process.signal_group(signal.SIGKILL)

    def _seat_members(self) -> None:
        """Number the workers of this node as in the present group."""
        order, slots = self._order, self._group.slots
        if order is None or order.epoch == 1:
            return
        self._group.epoch = order.epoch
        for rank, (slot, seat) in enumerate(zip(order.members, order.seats, strict=True)):
            if slot in slots:
                local_rank = seat % self._settings.local_world_size
                slots[slot] = replace(slots[slot], rank=rank, local_rank=local_rank)
        for slot in order.leaves:
            slots.pop(slot, None)
        # The hang detector may be reading the list before.
        self._group.workers = [slots[slot] for slot in order.members if slot in slots]

    async def _start(self, slot: int, seat: int | None) -> None:
        self._are_first = False
        local_rank = (slot if seat is None else seat) % self._settings.local_world_size
        try:
            worker = await self._group.start_successor(slot, local_rank, self._base)
        except (StartError, OSError) as error:
            log.warning("a successor cannot be started: %s", error)
            self._coordinator.send(Lost(slot, "StartError"))
            return
        self._seat_members()
        await asyncio.wait({worker.process.ended})
        if self._order is None or slot not in self._order.members:
            if self._group.slots.pop(slot, None) is None:
                return  # it had a rank, which another one has by now
            if code := worker.process.ended.result():
                log.warning("a successor ended with code %d before it had a rank", code)
            self._coordinator.send(Lost(slot))
