"""The reconcile loop of a controller: workers take keys from a queue and reconcile the objects.

A reconcile is level-triggered: it compares the current state with the desired one, whatever caused
it. It ends in one of three ways: ``Done()``; ``After(seconds)``, to requeue the key after a delay;
or an exception. ``TerminalError`` means that a retry cannot help; any other exception is retried
with increasing delay. No exception of a reconcile ends the loop. ``on_error`` reports those that a
user must see: all but expected ones, and errors of the API server once they have lasted.

Rules of the queue, as in client-go. All delays use the clock of the event loop.

1. A key that is added while it waits is not added twice.
2. A key that is added while a worker processes it is queued again after ``done``, so that never two
   workers have the same key.
3. Keys leave in the order of arrival, higher priorities first.
"""

import asyncio
import heapq
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gangline.kube import metrics
from gangline.kube.errors import ApiError, Conflict, Unreachable
from gangline.kube.log_fields import log_fields
from gangline.kube.turns import Turns

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

RECONCILE_TIMEOUT_S = 120.0
REPORTED_API_FAILURES = 5
"""Failed passes after which errors of the API server are reported: after 1.5 s."""


class QueueObserver(Protocol):
    """Callbacks for metrics of a queue."""

    def added(self, depth: int) -> None:
        """Called after a key was added; ``depth`` keys wait now."""

    def taken(self, depth: int, waited_s: float) -> None:
        """Called when a worker takes a key that waited for ``waited_s``."""

    def finished(self, held_s: float) -> None:
        """Called when a worker has processed a key for ``held_s``."""

    def retried(self) -> None:
        """Called when a key is requeued after a failure."""


class QueueStopped(Exception):
    """The queue was stopped."""


@dataclass(slots=True)
class _Waiting:
    priority: int
    order: int
    since: float


@dataclass(slots=True)
class _Timer:
    due: float
    handle: asyncio.TimerHandle
    priority: int


class WorkQueue(Generic[K]):
    """A queue of keys for workers. Use it within one event loop."""

    def __init__(
        self,
        base_delay: float = 0.05,
        max_delay: float = 60.0,
        *,
        jitter: float = 0.25,
        observer: QueueObserver | None = None,
    ) -> None:
        self._base_delay, self._max_delay, self._jitter = base_delay, max_delay, jitter
        self._observer = observer
        self._heap: list[tuple[int, int, K]] = []
        self._waiting: dict[K, _Waiting] = {}
        self._processing: dict[K, float] = {}
        self._requeue_after_done: dict[K, int] = {}
        self._timers: dict[K, _Timer] = {}
        self._failures: dict[K, int] = {}
        self._order = itertools.count()
        self._wakeups: list[asyncio.Future[None]] = []
        self._stopped = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no key waits, is processed, or is scheduled for later."""
        return not (self._waiting or self._processing or self._requeue_after_done or self._timers)

    def processing_times_s(self) -> list[float]:
        """Return how long each worker has processed its current key, in seconds."""
        now = time.monotonic()
        return [now - since for since in self._processing.values()]

    def add(self, key: K, priority: int = 0) -> None:
        """Queue a key; the highest of several priorities counts."""
        if self._stopped:
            return
        self._cancel_timer(key)
        if key in self._processing:
            self._requeue_after_done[key] = max(
                priority, self._requeue_after_done.get(key, priority)
            )
            return
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.priority >= priority:
            return
        # A higher priority leaves the old entry in the heap; ``_take`` skips it.
        since = waiting.since if waiting else _now()
        self._waiting[key] = entry = _Waiting(priority, next(self._order), since)
        heapq.heappush(self._heap, (-priority, entry.order, key))
        if self._observer is not None:
            self._observer.added(len(self._waiting))
        self._wake_one()

    def add_after(self, key: K, delay_s: float, priority: int = 0) -> None:
        """Queue a key after a delay; the earliest of several times counts."""
        if self._stopped:
            return
        if delay_s <= 0:
            return self.add(key, priority)
        due = _now() + delay_s
        timer = self._timers.get(key)
        if timer is not None and timer.due <= due:
            return
        self._cancel_timer(key)
        handle = asyncio.get_running_loop().call_at(due, self._due, key)
        self._timers[key] = _Timer(due, handle, priority)

    def add_rate_limited(self, key: K) -> float:
        """Queue a key again after a failure; returns the delay, which increases each time."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        exponent = min(failures - 1, 60)
        delay = min(self._max_delay, self._base_delay * (1 << exponent))
        delay *= 1 + random.uniform(0, self._jitter)
        if self._observer is not None:
            self._observer.retried()
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """Return how often a key has failed since its last success."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Reset the failure count of a key after a success."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for a key; the caller must call ``done`` with it.

        Raises:
            QueueStopped: the queue was stopped.
        """
        while True:
            if self._stopped:
                raise QueueStopped
            key = self._take()
            if key is not None:
                return key[0]
            wakeup = asyncio.get_running_loop().create_future()
            self._wakeups.append(wakeup)
            try:
                await wakeup
            except asyncio.CancelledError:
                if wakeup.done() and not wakeup.cancelled():
                    self._wake_one()
                raise
            finally:
                if wakeup in self._wakeups:
                    self._wakeups.remove(wakeup)

    def done(self, key: K) -> None:
        """Report that a key was processed; if it was added meanwhile, it is queued again."""
        since = self._processing.pop(key, None)
        if since is not None and self._observer is not None:
            self._observer.finished(time.monotonic() - since)
        if (priority := self._requeue_after_done.pop(key, None)) is not None:
            self.add(key, priority)

    def stop(self) -> None:
        """Stop the queue and wake all waiting workers."""
        self._stopped = True
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()
        while self._wakeups:
            self._wake_one()

    def _take(self) -> tuple[K] | None:
        while self._heap:
            _, order, key = heapq.heappop(self._heap)
            waiting = self._waiting.get(key)
            if waiting is None or waiting.order != order:
                continue
            del self._waiting[key]
            self._processing[key] = time.monotonic()
            if self._observer is not None:
                self._observer.taken(len(self._waiting), _now() - waiting.since)
            return (key,)
        return None

    def _due(self, key: K) -> None:
        timer = self._timers.pop(key)
        self.add(key, timer.priority)

    def _cancel_timer(self, key: K) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.handle.cancel()

    def _wake_one(self) -> None:
        while self._wakeups:
            wakeup = self._wakeups.pop(0)
            if not wakeup.done():
                wakeup.set_result(None)
                return


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class ReconcileDone:
    """Nothing is left to do until something changes."""


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Requeue the key after a delay, even if nothing changes."""

    seconds: float


ReconcileResult = ReconcileDone | RequeueAfter


class TerminalError(Exception):
    """A retry cannot help."""


class Controller(Generic[K]):
    """Runs ``reconcile`` for keys of ``queue`` in ``workers`` tasks, never two for the same key."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[ReconcileResult]],
        *,
        workers: int = 4,
        queue: WorkQueue[K] | None = None,
        on_error: Callable[[K, Exception], Awaitable[None]] | None = None,
        describe: Callable[[K], Mapping[str, object]] = lambda key: {"key": str(key)},
        timeout_s: float = RECONCILE_TIMEOUT_S,
    ) -> None:
        self.name = name
        # An empty queue is false, as it has a length: compare with None.
        made = WorkQueue[K](observer=metrics.QueueMetrics(name)) if queue is None else queue
        self.queue: WorkQueue[K] = made
        self._reconcile = reconcile
        self._workers = workers
        self._on_error = on_error
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
            turns = Turns()
            for _ in range(self._workers):
                tasks.create_task(self._work(turns))

    async def _work(self, turns: Turns) -> None:
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
            # Neither the queue nor a pass that finds nothing to do waits for anything.
            await turns.give_way()

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
                log.warning("reconcile failed permanently: %s", error)
                await self._report(key, error)
            case Exception() as error:
                self._count("error")
                self._log_failure(error, self.queue.add_rate_limited(key))
                is_passing = self.queue.failures(key) < REPORTED_API_FAILURES
                if not isinstance(error, ApiError) or not (_is_expected(error) or is_passing):
                    await self._report(key, error)

    async def _reconcile_safely(self, key: K) -> ReconcileResult | Exception:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._reconcile(key)
        except Exception as error:
            # The only broad catch: an exception of a reconcile concerns its own key only.
            return error

    async def _report(self, key: K, error: Exception) -> None:
        if self._on_error is None:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._on_error(key, error)
        except Exception as failure:
            self._log_failure(failure, self.queue.add_rate_limited(key))

    def _log_failure(self, error: Exception, wait_s: float) -> None:
        fields = {"again_in_s": round(wait_s, 2)}
        match error:
            case _ if _is_expected(error):
                log.debug("reconcile will be retried: %s", error, extra=fields)
            case ApiError():
                log.warning("reconcile refused: %s", error, extra=fields)
            case _:
                log.error("reconcile failed", exc_info=error, extra=fields)

    def _count(self, result: str) -> None:
        self._results[result].inc()
        if result == "error":
            metrics.RECONCILE_ERRORS.labels(self.name).inc()


def _is_expected(error: Exception) -> bool:
    """Return whether the cached object was outdated, or the server is unreachable."""
    return isinstance(error, Conflict | Unreachable)
