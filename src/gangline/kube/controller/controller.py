"""The reconcile loop of a controller: workers take keys from a queue and reconcile the objects.

A reconcile is level-triggered: it compares the current state with the desired one, whatever caused
it. It ends in one of three ways: ``Done()``; ``After(seconds)``, to requeue the key after a delay;
or an exception. ``TerminalError`` means that a retry cannot help; any other exception is retried
with increasing delay. No exception of a reconcile ends the loop. Every log line of a reconcile has
the fields of its controller and key.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from gangline.kube import metrics
from gangline.kube.controller.work_queue import QueueStopped, WorkQueue
from gangline.kube.errors import ApiError, Conflict, Unreachable
from gangline.kube.log_fields import log_fields

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

RECONCILE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ReconcileDone:
    """Nothing is left to do until something changes."""


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Requeue the key after a delay, even if nothing changes."""

    seconds: float


ReconcileResult = ReconcileDone | RequeueAfter


class TerminalError(Exception):
    """A retry cannot help. The reason has been reported, or is reported by ``on_terminal``."""


class Controller(Generic[K]):
    """Runs ``reconcile`` for keys of ``queue`` in ``workers`` tasks, never two for the same key."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[ReconcileResult]],
        *,
        workers: int = 4,
        queue: WorkQueue[K] | None = None,
        on_terminal: Callable[[K, TerminalError], Awaitable[None]] | None = None,
        describe: Callable[[K], Mapping[str, object]] = lambda key: {"key": str(key)},
        timeout_s: float = RECONCILE_TIMEOUT_S,
    ) -> None:
        self.name = name
        # An empty queue is false, as it has a length: compare with None.
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
        """Run until cancelled, or until the queue is stopped."""
        metrics.WORKERS.labels(self.name).set(self._workers)
        self._active.set(0)
        held = self.queue.processing_times_s
        metrics.QUEUE_UNFINISHED.labels(self.name).set_function(lambda: sum(held()))
        metrics.QUEUE_LONGEST_RUNNING.labels(self.name).set_function(
            lambda: max(held(), default=0.0)
        )
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
        outcome = await self._reconcile_safely(key)
        took = time.monotonic() - began
        self._time.observe(took)
        log.debug("reconciled", extra={"took_s": round(took, 4)})
        match outcome:
            case ReconcileDone():
                self._count("success")
                self.queue.forget(key)
            case RequeueAfter(seconds):
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

    async def _reconcile_safely(self, key: K) -> ReconcileResult | Exception:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._reconcile(key)
        except Exception as error:
            # The only broad catch: an exception of a reconcile concerns its own key only.
            return error

    async def _terminate(self, key: K, error: TerminalError) -> None:
        log.warning("reconcile failed permanently: %s", error)
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
                # Expected: the cached object was outdated, or the server is unreachable.
                log.debug("reconcile will be retried: %s", error, extra=fields)
            case ApiError():
                log.warning("reconcile refused: %s", error, extra=fields)
            case _:
                log.error("reconcile failed", exc_info=error, extra=fields)

    def _count(self, result: str) -> None:
        self._results[result].inc()
        if result == "error":
            metrics.RECONCILE_ERRORS.labels(self.name).inc()
