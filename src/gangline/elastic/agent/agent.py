"""The loop of an agent: get a world, run its workers, and handle what ends them.

An attempt ends with a worker's exit, a hang, a notice of the other agents or the master, or a
signal. The restart policy decides whether another attempt follows.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gangline.api.failure import Failure
from gangline.elastic.agent.decide import Action, Verdict, decide
from gangline.elastic.agent.diagnosis import WorkerFailure, root_cause
from gangline.elastic.agent.environment import waiting_environment, worker_arguments
from gangline.elastic.agent.group import Group
from gangline.elastic.agent.hang import hang_failure
from gangline.elastic.agent.logs import LogFolder
from gangline.elastic.agent.node import LocalNode
from gangline.elastic.agent.progress import hung
from gangline.elastic.agent.rendezvous import Notice, Rendezvous
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.agent.spare import Spare
from gangline.elastic.agent.standby import Spares
from gangline.elastic.agent.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")
_MEMORY_LOOK_S = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the agent's run ended."""

    failures: tuple[WorkerFailure, ...] = ()
    """Failed workers of the last attempt on this node."""
    failure: Failure | None = None
    """The root cause; None without a failure."""
    verdict: Verdict | None = None
    received: signal.Signals | None = None
    """The signal that ended the agent."""
    notice: Notice | None = None
    """The notice of other agents or the master that ended this agent."""
    is_success: bool = False
    """True if all workers of all nodes succeeded."""


@dataclass(frozen=True, slots=True)
class _End:
    """What ended one attempt on this node."""

    failures: tuple[WorkerFailure, ...] = ()
    failure: Failure | None = None
    notice: Notice | None = None
    hung_since: float | None = None


class _Received(Exception):
    """A signal that ends the agent was received."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class Agent:
    """Runs one node's workers of a job."""

    def __init__(
        self,
        settings: AgentSettings,
        rendezvous: Rendezvous,
        base: Mapping[str, str],
        folder: LogFolder,
        first: Mapping[int, Spare] | None = None,
    ) -> None:
        """Prepare the agent.

        Args:
            settings: how workers are run.
            rendezvous: provides worlds.
            base: environment that workers inherit.
            folder: files of the workers.
            first: spare interpreters that become the first workers, by local rank.
        """
        self._settings, self._rendezvous, self._base = settings, rendezvous, base
        self._folder = folder
        self._spares: Spares | None = None
        if settings.command.is_python and settings.standby.enabled:
            self._spares = Spares(
                settings.standby,
                lambda local_rank: worker_arguments(settings, local_rank),
                settings.local_world_size,
                settings.affinity,
                rendezvous.learned,
                first,
            )
        self._signal: asyncio.Future[signal.Signals] | None = None
        self._group: Group | None = None
        self._starts = 0
        self._node = LocalNode(settings, base)
        rendezvous.serve(self._node)

    async def run(self) -> Outcome:
        """Run until all workers succeed, no restart is allowed, or a signal is received.

        Raises:
            StartError: the command cannot be started.
            DevicesError: there are fewer devices than workers.
        """
        async with self._signals():
            watch = asyncio.create_task(self._watch_memory())
            outcome = Outcome()
            try:
                outcome = await self._attempts()
            except _Received as received:
                outcome = Outcome(received=received.number)
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
                await self._end(signal.SIGTERM)
                if self._spares:
                    await self._spares.close()
                await self._save_before_end(outcome)
                await self._rendezvous.leave(_farewell(outcome))
            return outcome

    async def _attempts(self) -> Outcome:
        world = await self._or_signal(self._first_world())
        while True:
            end = await self._attempt(world)
            if end.notice is None and end.failure is None:
                end = _End(notice=await self._or_signal(self._rendezvous.finished(world)))
                if end.notice is None:
                    return Outcome(is_success=True)
            if end.notice and end.notice.stops:
                return Outcome(notice=end.notice)
            if end.failure:
                verdict = decide(self._settings, end.failure, world.attempt)
                if verdict.action is not Action.RESTART:
                    return Outcome(end.failures, end.failure, verdict)
                self._tell(end, verdict)
                if self._settings.saves_on_failure:
                    self._node.start_saving()
            world = await self._or_signal(self._rendezvous.restart(world, end.failure))

    async def _first_world(self) -> World:
        """Join the job. If other nodes train already, warm the spares before.

        The other nodes continue training meanwhile, so they do not wait for this node's imports.
        """
        modules = await self._rendezvous.imports() if self._spares else ()
        if self._spares and modules:
            each = range(self._settings.local_world_size)
            environments = {
                rank: waiting_environment(self._settings, rank, self._base) for rank in each
            }
            await self._spares.warm(modules, environments)
            log.info("spare interpreters are warm: %d; joining", len(self._spares.ready))
        return await self._rendezvous.join()

    async def _attempt(self, world: World) -> _End:
        number, self._starts = self._starts, self._starts + 1
        self._group = group = Group(self._settings, world, self._folder, self._spares, number)
        self._node.begin(group, world)
        await group.start(self._base)
        self._rendezvous.started(world)
        log.debug("workers started", extra={"attempt": world.attempt})
        end = await self._or_signal(self._end_of(group))
        await self._end(signal.SIGTERM)
        return end

    async def _end_of(self, group: Group) -> _End:
        end = await self._first_end(group)
        if end.hung_since is None or self._settings.hang.timeout_s is None:
            return end
        log.warning("no progress for %g s: taking stacks", self._settings.hang.timeout_s)
        self._node.hangs(end.hung_since)
        # The stacks of all nodes are collected before any node ends its workers: afterwards the
        # ranks that wait and the ranks that hang would look the same.
        views = await self._rendezvous.views()
        evidence = self._node.evidence()
        return _End(failure=hang_failure(views, self._settings.hang.timeout_s, evidence))

    async def _first_end(self, group: Group) -> _End:
        ended = asyncio.ensure_future(group.ended())
        stuck = asyncio.ensure_future(hung(group, self._settings.hang))
        notice = asyncio.ensure_future(self._rendezvous.notice())
        waiting: set[asyncio.Future[Any]] = {ended, stuck, notice}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in waiting:
                if not future.done():
                    future.cancel()
        if ended.done() and not ended.cancelled():
            failures = tuple(ended.result())
            return _End(failures, root_cause(failures).failure if failures else None)
        if stuck.done() and not stuck.cancelled():
            return _End(hung_since=stuck.result())
        return _End(notice=notice.result())

    async def _end(self, number: signal.Signals) -> None:
        group, self._group = self._group, None
        if group:
            self._node.end()
            await group.stop(number)

    async def _save_before_end(self, outcome: Outcome) -> None:
        """Write checkpoints to storage before the node, and its memory, may be removed."""
        if outcome.is_success:
            return
        if self._settings.saves_on_failure:
            self._node.start_saving()
            await self._node.saved()
        elif outcome.received is signal.SIGTERM and self._node.holds_checkpoints():
            self._node.start_saving()
            await self._node.saved(self._settings.shutdown_s)

    def _tell(self, end: _End, verdict: Verdict) -> None:
        if end.failures:
            first = root_cause(end.failures)
            log.warning(
                "rank %d (pid %d) on %s ended: %s %s",
                first.rank, first.pid, self._settings.node_name, first.failure, verdict.reason,
            )  # fmt: skip
        else:
            log.warning("%s: %s %s", self._settings.node_name, end.failure, verdict.reason)

    async def _or_signal(self, work: Coroutine[Any, Any, T]) -> T:
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
        await self._end(self._signal.result())
        raise _Received(self._signal.result())

    @contextlib.asynccontextmanager
    async def _signals(self) -> AsyncIterator[None]:
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
            await asyncio.sleep(_MEMORY_LOOK_S)
            self._spares.release_if_short()


def _farewell(outcome: Outcome) -> str:
    if outcome.received:
        return f"received {outcome.received.name}"
    if outcome.notice:
        return outcome.notice.reason
    if outcome.failure:
        return str(outcome.failure)
    return "done" if outcome.is_success else "the agent failed"
