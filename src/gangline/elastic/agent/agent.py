"""The loop of an agent: get a world, run its workers, and handle what ends them.

An attempt ends with a worker's exit, a hang, a notice of the other agents or the master, or a
signal. The restart policy decides whether another attempt follows.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gangline.api.failure import Failure
from gangline.elastic.agent.failures import (
    CONSEQUENCE_CAUSE,
    AgentAction,
    RestartBudget,
    RestartDecision,
    WorkerFailure,
    decide_restart,
    early_exit_failure,
    root_cause,
)
from gangline.elastic.agent.hang_detector import (
    STOPPED,
    LearnedTimeout,
    RankStack,
    blamed_ranks,
    hang_failure,
    working_ranks,
)
from gangline.elastic.agent.hang_stacks import DetectedHang, wait_for_hang
from gangline.elastic.agent.learned_modules import LearnedFile
from gangline.elastic.agent.local_workers import LocalWorkers
from gangline.elastic.agent.logs import LogFolder
from gangline.elastic.agent.process import end_leftovers, is_stopped
from gangline.elastic.agent.rendezvous import RendezvousHandler, StopNotice, WorldSpec
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.agent.spare_interpreter import SpareInterpreter, first_imports
from gangline.elastic.agent.spare_pool import SparePool
from gangline.elastic.agent.store import AgentStore
from gangline.elastic.agent.survivors import (
    CoordinatorService,
    NodeSurvivors,
    RemoteCoordinator,
)
from gangline.elastic.agent.worker_group import WorkerGroup, spare_environment, worker_arguments
from gangline.elastic.progress import PROGRESS_VARIABLE
from gangline.elastic.survivors.coordinator import EpochCoordinator

log = logging.getLogger(__name__)

T = TypeVar("T")
_MEMORY_CHECK_S = 10.0
_DISK_CHECK_S = 2.0
_STOP_CHECK_S = 2.0


@dataclass(frozen=True, slots=True)
class AgentResult:
    failures: tuple[WorkerFailure, ...] = ()
    """Failed workers of the last attempt on this node."""
    failure: Failure | None = None
    """The root cause; None without a failure."""
    decision: RestartDecision | None = None
    received_signal: signal.Signals | None = None
    notice: StopNotice | None = None
    is_success: bool = False
    """True if all workers of all nodes succeeded."""


@dataclass(frozen=True, slots=True)
class _AttemptEnd:
    """What ended one attempt on this node."""

    failures: tuple[WorkerFailure, ...] = ()
    failure: Failure | None = None
    notice: StopNotice | None = None
    hang: DetectedHang | None = None
    hung_ranks: frozenset[int] = frozenset()
    decision: RestartDecision | None = None

    @property
    def is_restarted(self) -> bool:
        """True if another attempt follows."""
        if self.failure:
            return self.decision is not None and self.decision.action is AgentAction.RESTART
        return self.notice is not None and not self.notice.stops


class _SignalReceived(Exception):
    """A signal that ends the agent was received."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class ElasticAgent:
    """Runs one node's workers of a job."""

    def __init__(
        self,
        settings: AgentSettings,
        rendezvous: RendezvousHandler,
        base: Mapping[str, str],
        folder: LogFolder,
        first_spares: Mapping[int, SpareInterpreter] | None = None,
    ) -> None:
        """Prepare the agent.

        Args:
            first_spares: spare interpreters that become the first workers, by local rank.
        """
        self._settings, self._rendezvous, self._base = settings, rendezvous, base
        self._folder = folder
        self._spares: SparePool | None = None
        if settings.command.is_python and settings.spares.enabled:
            self._spares = SparePool(
                settings.spares,
                lambda local_rank: worker_arguments(settings, local_rank),
                settings.local_world_size,
                settings.affinity,
                rendezvous.share_imports,
                first_spares,
                LearnedFile(settings.command.arguments, base),
            )
        self._signal: asyncio.Future[signal.Signals] | None = None
        self._group: WorkerGroup | None = None
        self._attempts_started = 0
        self._budget = RestartBudget(settings.restart_window_s)
        self._store: AgentStore | None = None
        self._step_times = LearnedTimeout()
        self._survivors: NodeSurvivors | None = None
        self._sessions: set[int] = set()
        """Sessions of the last workers: each leads one."""
        self._workers = LocalWorkers(settings, base)
        self._workers.is_warm = lambda: self._spares.is_warm if self._spares else None
        self._workers.are_kept = lambda: self._survivors is not None and self._survivors.are_kept
        rendezvous.attach_workers(self._workers)

    async def run(self) -> AgentResult:
        """Run until all workers succeed, no restart is allowed, or a signal is received.

        Raises:
            StartError: the command cannot be started.
            DevicesError: there are fewer devices than workers.
        """
        async with self._handle_signals():
            watches = [
                asyncio.create_task(self._watch_memory()),
                asyncio.create_task(self._watch_disk()),
                asyncio.create_task(self._watch_stops()),
            ]
            result = AgentResult()
            try:
                result = await self._run_attempts()
            except _SignalReceived as received:
                result = AgentResult(received_signal=received.number)
            finally:
                for watch in watches:
                    watch.cancel()
                await asyncio.gather(*watches, return_exceptions=True)
                await self._stop_group(signal.SIGTERM)
                if self._spares:  # before the search for leftovers, which would find the server
                    await self._spares.close()
                await end_leftovers(self._folder.name, self._sessions, self._settings.shutdown_s)
                await self._save_before_end(result)
                await self._rendezvous.leave(_leave_reason(result))
                self._close_store()
            return result

    async def _run_attempts(self) -> AgentResult:
        world = await self._unless_signal(self._join_first_world())
        while True:
            end = await self._run_attempt(world)
            # 1. All workers here succeeded. The attempt is over when those of all nodes have; until
            #    then a failure elsewhere may restart it, and these workers start again too.
            if end.notice is None and end.failure is None:
                end = _AttemptEnd(notice=await self._unless_signal(self._rendezvous.finish(world)))
                if end.notice is None:
                    return AgentResult(is_success=True)
                log.warning(
                    "all workers on %s had ended with exit code 0 before this attempt ended: %s",
                    self._settings.node_name, end.notice.reason,
                )  # fmt: skip
            # 2. An order to stop: no other node waits for this one.
            if end.notice and end.notice.stops:
                return AgentResult(notice=end.notice)
            # 3. A failure here: stop, or save what is in memory before the next attempt.
            if end.failure and end.decision:
                if not end.is_restarted:
                    return AgentResult(end.failures, end.failure, end.decision)
                self._log_restart(end, end.decision)
                if self._settings.saves_on_failure:
                    self._workers.start_saving()
            # 4. Agree on the next attempt. The work since the last checkpoint is lost.
            world = await self._unless_signal(self._rendezvous.restart(world, end.failure))

    async def _join_first_world(self) -> WorldSpec:
        """Join the job. If other nodes train already, warm the spares before.

        The other nodes continue training meanwhile, so they do not wait for this node's imports.
        """
        self._begin_first_imports()
        modules = await self._rendezvous.known_imports() if self._spares else ()
        if self._spares and modules:
            await self._spares.warm(modules, spare_environment(self._settings, 0, self._base))
            if self._spares.is_warm:
                size = self._settings.local_world_size
                log.info("spare interpreters are warm: %d; joining", size)
        return await self._rendezvous.join()

    def _begin_first_imports(self) -> None:
        """Do the first imports of the script in the fork server while the world is formed."""
        if self._spares and not self._spares.ready:
            modules = first_imports(self._settings.command.arguments)
            if modules or self._spares.knows_modules:
                environment = spare_environment(self._settings, 0, self._base)
                # By this variable leftovers of the run are found, among them forks of its forks.
                environment[PROGRESS_VARIABLE] = str(self._folder.path / "progress")
                self._spares.begin(modules, environment)

    async def _run_attempt(self, world: WorldSpec) -> _AttemptEnd:
        number, self._attempts_started = self._attempts_started, self._attempts_started + 1
        has_store = await self._open_store(world)
        if has_store:
            self._rendezvous.announce_start(world)
        self._group = group = WorkerGroup(
            self._settings,
            world,
            self._folder,
            self._spares,
            number,
            has_agent_store=self._settings.serves_store and (has_store or world.first_rank > 0),
        )
        self._survivors = self._follow_survivors(world, group)
        self._workers.begin_attempt(group, world)
        self._budget.record_start(world.attempt, time.monotonic())
        if not world.is_running:
            await self._unless_signal(group.start(self._base))
        self._sessions = group.sessions
        if not has_store:
            self._rendezvous.announce_start(world)
        log.debug("workers started", extra={"attempt": world.attempt})
        end = self._decide(await self._unless_signal(self._wait_for_end(group)))
        return await self._stop_after(end)

    def _follow_survivors(self, world: WorldSpec, group: WorkerGroup) -> NodeSurvivors | None:
        """Let workers that can go on without a lost one find the agents of this attempt."""
        settings, size = self._settings, self._settings.local_world_size
        if not settings.serves_store or world.world_size != size * world.group_world_size:
            return None
        coordinator: CoordinatorService | RemoteCoordinator
        if self._store:
            nodes = [rank // size for rank in range(world.world_size)]
            decider = EpochCoordinator(
                nodes, settings.min_workers, settings.min_nodes, settings.successors
            )
            coordinator = CoordinatorService(self._store, decider, self._workers.record_replacement)
        elif world.first_rank:
            node = None if world.is_running else world.group_rank
            coordinator = RemoteCoordinator(world.store_host, world.store_port, node)
        else:
            return None
        return NodeSurvivors(settings, world, group, coordinator, self._base)

    async def _open_store(self, world: WorldSpec) -> bool:
        """Open the store of an attempt on rank 0's node. Returns False if this node has none."""
        self._close_store()
        if world.first_rank > 0 or not self._settings.serves_store:
            return False
        try:
            self._store = await AgentStore.listen(world.store_port)
        except OSError as error:  # rank 0 reports it, if the port remains taken
            log.warning("rank 0 opens the store of the workers: %s", error)
        return self._store is not None

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store:
            store.close()

    def _decide(self, end: _AttemptEnd) -> _AttemptEnd:
        """Add the decision about a failure.

        Called before the workers are stopped: their last step is read from files of this attempt.
        Progress is recorded also if another node failed, since the budget counts for the job; the
        restarts are counted after it, because progress renews the budget.
        """
        if end.failure is None and end.notice is None:
            return end
        self._budget.record_end(self._workers.farthest_step())
        if end.failure is None:
            return end
        restarts = self._budget.restarts(time.monotonic())
        return replace(end, decision=decide_restart(self._settings, end.failure, restarts))

    async def _wait_for_end(self, group: WorkerGroup) -> _AttemptEnd:
        while True:
            end = await self._wait_for_first_event(group)
            if end.hang is None:
                return end
            log.warning("no progress for %g s: taking stacks", end.hang.limit_s)
            # The stacks of all nodes are collected before any node ends its workers: afterwards
            # the ranks that wait and the ranks that hang would look the same.
            views = await self._rendezvous.rank_stacks()
            if not (working := working_ranks(views)):
                if self._replace_hung(views, end.hang):
                    continue
                break
            log.warning(
                "no hang: rank %s waits for data loaders or other processes, which work",
                ", ".join(map(str, working)),
            )
        self._workers.record_hang(end.hang.since)
        evidence = self._workers.describe_evidence()
        failure = hang_failure(views, end.hang.limit_s, evidence, end.hang.phase)
        return _AttemptEnd(failure=failure, hung_ranks=blamed_ranks(views))

    def _replace_hung(self, views: Sequence[RankStack], hang: DetectedHang) -> bool:
        """Replace the ranks that block the others. Returns False if all must be restarted."""
        if self._survivors is None:
            return False
        survivors, reason = self._survivors, f"no progress for {hang.limit_s:g} s"
        return survivors.replace(blamed_ranks(views), reason, is_urgent=True)

    async def _wait_for_first_event(self, group: WorkerGroup) -> _AttemptEnd:
        ended = asyncio.ensure_future((self._survivors or group).wait_for_end())
        stuck = asyncio.ensure_future(wait_for_hang(group, self._settings.hang, self._step_times))
        notice = asyncio.ensure_future(self._rendezvous.wait_for_notice())
        waiting: set[asyncio.Future[Any]] = {ended, stuck, notice}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in waiting:
                if not future.done():
                    future.cancel()
        if ended.done() and not ended.cancelled():
            failures = tuple(ended.result())
            return _AttemptEnd(failures, root_cause(failures).failure if failures else None)
        if stuck.done() and not stuck.cancelled():
            return _AttemptEnd(hang=stuck.result())
        return _AttemptEnd(notice=notice.result())

    async def _stop_after(self, end: _AttemptEnd) -> _AttemptEnd:
        """End the workers; meanwhile find which rank left if one here has lost another."""
        grace_s = self._settings.restart_stop_s if end.is_restarted else None
        stop = self._stop_group(signal.SIGTERM, grace_s, end.hung_ranks)
        first = root_cause(end.failures) if end.failures else None
        if first is None or first.failure.cause != CONSEQUENCE_CAUSE:
            await stop
            return end
        exits, _ = await asyncio.gather(self._rendezvous.rank_exits(), stop)
        return replace(end, failure=early_exit_failure(exits, first) or end.failure)

    async def _stop_group(
        self,
        number: signal.Signals,
        grace_s: float | None = None,
        hung_ranks: Collection[int] = (),
    ) -> None:
        """End the workers; without ``grace_s`` they may take the time of the end of a run."""
        group, self._group = self._group, None
        survivors, self._survivors = self._survivors, None
        if survivors:
            await survivors.close()
        if group:
            self._workers.end_attempt()
            grace_s = self._settings.shutdown_s if grace_s is None else grace_s
            await group.stop(number, grace_s, hung_ranks)

    async def _save_before_end(self, result: AgentResult) -> None:
        """Write checkpoints to storage before the node, and its memory, may be removed."""
        if result.is_success:
            return
        if self._settings.saves_on_failure:
            self._workers.start_saving()
            await self._workers.wait_for_save()
        elif result.received_signal is signal.SIGTERM and self._workers.has_checkpoints_in_memory():
            self._workers.start_saving()
            await self._workers.wait_for_save(self._settings.shutdown_s)

    def _log_restart(self, end: _AttemptEnd, verdict: RestartDecision) -> None:
        if end.failures:
            first = root_cause(end.failures)
            log.warning(
                "rank %d (pid %d) on %s ended: %s %s",
                first.rank, first.pid, self._settings.node_name, end.failure, verdict.reason,
            )  # fmt: skip
        else:
            log.warning("%s: %s %s", self._settings.node_name, end.failure, verdict.reason)

    async def _unless_signal(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` unless a signal comes first; then forward it to the workers and raise."""
        task = asyncio.ensure_future(work)
        assert self._signal is not None
        waiting: set[asyncio.Future[Any]] = {task, self._signal}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not self._signal.done():
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        log.warning("%s received: ending the workers", self._signal.result().name)
        await self._stop_group(self._signal.result())
        raise _SignalReceived(self._signal.result())

    @contextlib.asynccontextmanager
    async def _handle_signals(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        self._signal = received = loop.create_future()

        def receive(number: signal.Signals) -> None:
            if not received.done():
                received.set_result(number)

        for number in self._settings.signals:
            loop.add_signal_handler(number, receive, number)
        try:
            yield
        finally:
            for number in self._settings.signals:
                loop.remove_signal_handler(number)

    async def _watch_memory(self) -> None:
        while self._spares:
            await asyncio.sleep(_MEMORY_CHECK_S)
            self._spares.release_if_short()

    async def _watch_stops(self) -> None:
        """Log workers that are stopped: the others wait for them, also without a hang time-out."""
        before: frozenset[int] = frozenset()
        while True:
            await asyncio.sleep(_STOP_CHECK_S)
            workers = self._group.workers if self._group else ()
            stopped = {
                worker.process.pid: worker.rank
                for worker in workers
                if not worker.process.ended.done() and is_stopped(worker.process.pid)
            }
            for pid in stopped.keys() - before:
                log.warning(
                    "rank %d (pid %d) on %s is %s; other ranks may wait for it",
                    stopped[pid], pid, self._settings.node_name, STOPPED,
                )  # fmt: skip
            if self._group and self._group.is_held:  # no hang is looked for: the ranks form a group
                for worker in workers:
                    if worker.process.pid in stopped.keys() & before:
                        log.warning("rank %d is ended: the others wait for it", worker.rank)
                        worker.process.signal_group(signal.SIGKILL)
            before = frozenset(stopped)

    async def _watch_disk(self) -> None:
        was_full = False
        while True:
            is_full = self._folder.is_full
            if is_full and not was_full:
                log.warning(
                    "the disk of %s is full: output and reports of workers are lost",
                    self._folder.path,
                )
            was_full = is_full
            await asyncio.sleep(_DISK_CHECK_S)


def _leave_reason(result: AgentResult) -> str:
    if result.received_signal:
        return f"received {result.received_signal.name}"
    if result.notice:
        return result.notice.reason
    if result.failure:
        return str(result.failure)
    return "done" if result.is_success else "the agent failed"
