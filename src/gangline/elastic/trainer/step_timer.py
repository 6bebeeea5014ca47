"""Times of a training process: steps, computing, exchanging gradients, waiting for records.

Nothing here waits for a device. The processor's clock measures steps, whose mean is right although
work is queued, because the queue has a limited length. What a step is spent on is sampled at most
ten times a second: on a GPU with events, which are read when a later step finds them complete.

The exchange is the exposed part of it: from the last gradient of this process until backward ends,
when ``DistributedDataParallel`` has all results.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist

from gangline.elastic.training_report import StepTimes

SAMPLE_EVERY_S = 0.1
"""Shortest time between two steps that are taken apart."""
PAUSE_S = 1.0
PAUSE_STEPS = 5
"""Time between micro-batches that is longer than both, such as an evaluation, is no step time."""


class Clock(Protocol):
    """Sets marks in the course of the work, and returns the time between them."""

    def mark(self) -> Any:
        """Return a mark at the work that has been queued so far."""
        ...

    def seconds(self, begin: Any, end: Any) -> float | None:
        """Return the seconds between two marks; None if the work is not done yet."""
        ...


class ProcessorClock:
    """For work on the processor, which is done when a call returns."""

    def mark(self) -> float:
        """Return the time."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float | None:
        """Return the difference."""
        return end - begin


class CudaClock:
    """For work on a GPU: events in its stream."""

    def mark(self) -> torch.cuda.Event:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        """Return the time between two events; None if the second one is not reached."""
        if not end.query():  # type: ignore[no-untyped-call]
            return None
        return float(begin.elapsed_time(end)) / 1000


@dataclass(slots=True)
class _Sample:
    """Marks of one step."""

    micro_batches: list[tuple[Any, Any]] = field(default_factory=list)
    exchange: tuple[Any, Any] | None = None
    is_alone: bool = True
    """True for a single process, which exchanges nothing."""


@dataclass(frozen=True, slots=True)
class StepShares:
    """What the steps since the last call were spent on; None if no step was taken apart."""

    compute_s: float | None
    sync_s: float | None
    data_s: float | None


class StepTimer:
    """Follows the micro-batches of one process."""

    def __init__(self, clock: Clock, now: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._now = clock, now
        self.is_sampling = False
        """True while the present step is taken apart."""
        self._count, self._mean_s, self._m2 = 0, 0.0, 0.0
        self._last_end: float | None = None
        self._data_s = self._within_s = self._began_at = 0.0
        self._data_total_s, self._data_steps = 0.0, 0
        self._sampled_at = float("-inf")
        self._sample = _Sample()
        self._unread: _Sample | None = None
        self._begin: Any = None
        self._gradients = self._gradients_expected = 0
        self._last_gradient: Any = None
        self._compute: list[float] = []
        self._sync: list[float] = []

    def waited(self, seconds: float) -> None:
        """Add time of waiting for records."""
        self._data_s += seconds

    def begin_pass(self) -> None:
        """The next step follows no other one: its time from the last one is no step time."""
        self._last_end = None

    def begin_micro_batch(self, *, is_first: bool) -> None:
        """Begin a micro-batch, the first one of a step or a later one."""
        now = self._began_at = self._now()
        if is_first:
            self._within_s = 0.0
            is_due = now - self._sampled_at >= SAMPLE_EVERY_S and self._unread is None
            self.is_sampling = is_due
            if is_due:
                self._sampled_at = now
                self._sample = _Sample(
                    is_alone=not dist.is_initialized() or dist.get_world_size() == 1
                )
        if self.is_sampling:
            self._gradients, self._last_gradient = 0, None
            self._begin = self._clock.mark()

    def gradient(self) -> None:
        """Call it for each gradient of a sampled micro-batch, when it is computed."""
        self._gradients += 1
        if self._gradients >= self._gradients_expected:
            # Only the last one counts. Events cost time, so their number is learned before.
            self._last_gradient = self._clock.mark()

    def backward_ended(self) -> None:
        """Call it when backward, and the exchange with it, has ended in a sampled micro-batch."""
        if self._last_gradient is not None and self._gradients_expected == self._gradients:
            self._sample.exchange = (self._last_gradient, self._clock.mark())
        self._gradients_expected, self._gradients = self._gradients, 0

    def end_micro_batch(self, *, is_last: bool) -> None:
        """End a micro-batch, the last one of a step or an earlier one."""
        now = self._now()
        self._within_s += now - self._began_at
        if self.is_sampling:
            self._sample.micro_batches.append((self._begin, self._clock.mark()))
        if not is_last:
            return
        if self.is_sampling:
            self.is_sampling, self._unread = False, self._sample
        if self._unread is not None:
            self._read(self._unread)
        if self._last_end is not None:
            self._add_step(now - self._last_end)
            self._data_total_s += self._data_s
            self._data_steps += 1
        self._last_end, self._data_s = now, 0.0

    def _add_step(self, seconds: float) -> None:
        outside_s = seconds - self._within_s - self._data_s
        if self._count and outside_s > max(PAUSE_S, PAUSE_STEPS * self._mean_s):
            seconds -= outside_s
        self._count += 1
        difference = seconds - self._mean_s
        self._mean_s += difference / self._count
        self._m2 += difference * (seconds - self._mean_s)

    def _read(self, sample: _Sample) -> None:
        """Add up a step, if the device has finished it."""
        spans = [self._clock.seconds(*span) for span in sample.micro_batches]
        sync_s = self._clock.seconds(*sample.exchange) if sample.exchange is not None else None
        if any(span is None for span in spans) or (sample.exchange is not None and sync_s is None):
            return
        self._unread = None
        total = sum(span for span in spans if span is not None)
        if sample.is_alone:
            self._compute.append(total)
        elif sync_s is not None:
            self._compute.append(max(0.0, total - sync_s))
            self._sync.append(sync_s)

    def step_times(self) -> StepTimes | None:
        """Return the times of all steps; None before the second one."""
        return StepTimes(self._count, self._mean_s, self._m2) if self._count else None

    def take_shares(self) -> StepShares:
        """Return what the steps since the last call were spent on."""
        data_s = self._data_total_s / self._data_steps if self._data_steps else None
        shares = StepShares(_mean(self._compute), _mean(self._sync), data_s)
        self._compute, self._sync = [], []
        self._data_total_s, self._data_steps = 0.0, 0
        return shares


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
