"""The loop of a controller: workers take keys from a queue and reconcile what each names.

A reconcile looks at the state of the world, not at what changed, and ends in one of three ways:
``Done()``; ``After(seconds)``, to be looked at again though nothing may change; or an exception:
``TerminalError`` when trying again cannot help, any other to be tried again, later each time.
Nothing that a reconcile raises ends the loop. Every log line of a reconcile says which controller
it belongs to and what it looks at.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from gangline.kube import metrics
from gangline.kube.errors import ApiError, Conflict, Unreachable
from gangline.kube.log_fields import log_fields
from gangline.kube.workqueue import QueueStopped, WorkQueue

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

RECONCILE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Done:
    """All is as it should be, until something changes."""


@dataclass(frozen=True, slots=True)
class After:
    """Look again after so many seconds, even if nothing changes."""

    seconds: float


Result = Done | After


class TerminalError(Exception):
    """Trying again cannot help: the reason has been told, or is told by ``on_terminal``."""


class Controller(Generic[K]):
    """Runs ``reconcile`` for keys of ``queue``, on so many workers, one at a time for each key."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[Result]],
        *,
        workers: int = 4,
        queue: WorkQueue[K] | None = None,
        on_terminal: Callable[[K, TerminalError], Awaitable[None]] | None = None,
        describe: Callable[[K], Mapping[str, object]] = lambda key: {"key": str(key)},
        timeout_s: float = RECONCILE_TIMEOUT_S,
    ) -> None:
        self.name = name
        # An empty queue is false, as every empty collection is: ask for None.
        made = WorkQueue[K](observer=metrics.QueueMetrics(name)) if queue is None else queue
        self.queue: WorkQueue[K] = made
        self._reconcile = reconcile
        self._workers = workers
        self._on_terminal = on_terminal
        self._describe = describe
        self._timeout_s = timeout_s
        self._time = metrics.RECONCILE_TIME.labels(name)
        self._active = metrics.ACTIVE_WORKERS.labels(name)
        self._results = {
            result: metrics.RECONCILES.labels(name, result)
            for result in ("success", "requeue_after", "error")
        }

    async def run(self) -> None:
        """Work until cancelled, or until the queue is stopped."""
        metrics.WORKERS.labels(self.name).set(self._workers)
        self._active.set(0)
        held = self.queue.held_s
        metrics.QUEUE_UNFINISHED.labels(self.name).set_function(lambda: sum(held()))
        metrics.QUEUE_LONGEST.labels(self.name).set_function(lambda: max(held(), default=0.0))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._workers):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except QueueStopped:
                return
            try:
                fields = {"controller": self.name, **self._describe(key)}
                with self._active.track_inprogress(), log_fields(fields):
                    await self._handle(key)
            finally:
                self.queue.done(key)

    async def _handle(self, key: K) -> None:
        began = time.monotonic()
        outcome = await self._outcome(key)
        took = time.monotonic() - began
        self._time.observe(took)
        log.debug("reconciled", extra={"took_s": round(took, 4)})
        match outcome:
            case Done():
                self._count("success")
                self.queue.forget(key)
            case After(seconds):
                self._count("requeue_after")
                self.queue.forget(key)
                self.queue.add_after(key, seconds)
            case TerminalError() as error:
                self._count("error")
                metrics.TERMINAL_ERRORS.labels(self.name).inc()
                self.queue.forget(key)
                await self._terminate(key, error)
            case Exception() as error:
                self._count("error")
                self._log_failure(error, self.queue.add_rate_limited(key))

    async def _outcome(self, key: K) -> Result | Exception:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._reconcile(key)
        except Exception as error:
            # The one broad catch: whatever a reconcile raises concerns its own key only.
            return error

    async def _terminate(self, key: K, error: TerminalError) -> None:
        log.warning("given up: %s", error)
        if self._on_terminal is None:
            return
        try:
            await self._on_terminal(key, error)
        except Exception as failure:
            self._log_failure(failure, self.queue.add_rate_limited(key))

    def _log_failure(self, error: Exception, wait_s: float) -> None:
        fields = {"again_in_s": round(wait_s, 2)}
        match error:
            case Conflict() | Unreachable():
                # Part of life: the copy was older than the object, or the server is away.
                log.debug("reconcile to be repeated: %s", error, extra=fields)
            case ApiError():
                log.warning("reconcile refused: %s", error, extra=fields)
            case _:
                log.error("reconcile failed", exc_info=error, extra=fields)

    def _count(self, result: str) -> None:
        self._results[result].inc()
        if result == "error":
            metrics.RECONCILE_ERRORS.labels(self.name).inc()
