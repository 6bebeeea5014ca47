"""Measures the steps of a training process and writes them to the progress file.

The processor's clock measures steps, whose mean is right although work is queued, because the queue
has a limited length. At most ten times a second a step is taken apart into computing, exchange (the
exposed part: from the last gradient of this process until backward ends) and waiting for records:
on a GPU by events, which later steps read. Nothing here waits for a device.

The noise of gradients needs no exchange. For a batch of ``B`` records the expected squared norm of
the gradient is ``|G|² + S / B``, with the true gradient ``G`` and the trace ``S`` of the covariance
of one record's gradient; a micro-batch and the global batch give two equations for both
(S. McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix A.1). Estimates
are linear, so their mean over processes is right, and ``S / |G|²`` does not depend on loss scaling.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from gangline.elastic.progress import ReportedShape, StepTimes, TrainingReport, TrainingReporter
from gangline.elastic.trainer.share import Share

EVERY_STEPS = 50
MEMORY = 20
"""Number of estimates that the running mean covers: a thousand steps."""
SAMPLE_EVERY_S = 0.1
"""Shortest time between two steps that are taken apart."""
PAUSE_S = 1.0
PAUSE_STEPS = 5
"""Time between micro-batches that is longer than both, such as an evaluation, is no step time."""
WRITE_EVERY_S = 0.5


class NoiseEstimator:
    """Estimates noise in every fiftieth step."""

    def __init__(self, every: int = EVERY_STEPS) -> None:
        self._every = every
        self.is_measuring = False
        """True in a step whose gradients are measured."""
        self._norms: list[torch.Tensor] = []
        self._small: list[torch.Tensor] = []
        self._big: torch.Tensor | None = None
        self._unread: _Pending | None = None
        self._weight = self._sqr = self._var = 0.0

    def begin_step(self, step: int, *, is_possible: bool) -> None:
        """Begin an optimizer step with this number, counted from 0."""
        self._read()
        self.is_measuring = is_possible and step % self._every == self._every - 1
        self._norms, self._small, self._big = [], [], None

    def gradient(self, gradient: torch.Tensor) -> None:
        """Add the gradient of a parameter in the present micro-batch, before it is weighted."""
        self._norms.append(_squared_norm(gradient))

    def end_micro_batch(self) -> None:
        """The gradients of the present micro-batch are complete."""
        if self._norms:
            self._small.append(_sum(self._norms))
            self._norms = []

    def global_gradients(self, gradients: Iterable[torch.Tensor]) -> None:
        """Measure the gradients of the global batch, before they are clipped."""
        norms = [_squared_norm(gradient) for gradient in gradients]
        self._big = _sum(norms) if norms else None

    def end_step(self, sizes: Sequence[int], global_batch: int) -> None:
        """End the step.

        Args:
            sizes: records of each micro-batch of this process.
            global_batch: records of all processes.
        """
        measured, self.is_measuring = self.is_measuring, False
        if not measured or self._big is None or len(self._small) != len(sizes):
            return
        inverse_small = sum(1 / size for size in sizes) / len(sizes)
        inverse_big = 1 / global_batch
        if inverse_small > inverse_big:
            squares = torch.stack([torch.stack(self._small).mean(), self._big])
            self._unread = _Pending(squares, inverse_small, inverse_big)
            self._read()

    def estimate(self) -> tuple[float, float] | None:
        """Return ``|G|²`` and ``S``; None before the first estimate, or while one is negative.

        The difference of two noisy numbers may have the wrong sign while there are few of them.
        """
        self._read()
        if not self._weight:
            return None
        sqr, var = self._sqr / self._weight, self._var / self._weight
        return (sqr, var) if sqr > 0 and var >= 0 else None

    def _read(self) -> None:
        squares = self._unread.values() if self._unread is not None else None
        if self._unread is None or squares is None:
            return
        pending, self._unread = self._unread, None
        small, big = squares
        var = (small - big) / (pending.inverse_small - pending.inverse_big)
        sqr = big - var * pending.inverse_big
        if abs(var) < float("inf") and abs(sqr) < float("inf"):  # not after an overflow
            keep = 1 - 1 / MEMORY
            self._weight = keep * self._weight + 1
            self._sqr, self._var = keep * self._sqr + sqr, keep * self._var + var


class _Pending:
    """Two numbers on their way from the device."""

    def __init__(self, squares: torch.Tensor, inverse_small: float, inverse_big: float) -> None:
        self.inverse_small, self.inverse_big = inverse_small, inverse_big
        self._event: torch.cuda.Event | None = None
        self._squares = squares
        if squares.is_cuda:
            self._squares = torch.empty(2, dtype=squares.dtype, pin_memory=True)
            self._squares.copy_(squares, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def values(self) -> list[float] | None:
        """Return the numbers; None while the device has not written them."""
        if self._event is not None and not self._event.query():  # type: ignore[no-untyped-call]
            return None
        values: list[float] = self._squares.tolist()
        return values


def _squared_norm(tensor: torch.Tensor) -> torch.Tensor:
    # Halves would overflow, and torch refuses to narrow doubles while it computes the norm.
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    norm: torch.Tensor = torch.linalg.vector_norm(tensor.detach(), dtype=dtype)
    return norm.float().square()


def _sum(numbers: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([number.to(numbers[0].device) for number in numbers]).sum()


class Clock(Protocol):
    """Sets marks in the course of the work, and returns the time between them."""

    def mark(self) -> Any:
        """Return a mark at the work that has been queued so far."""

    def seconds(self, begin: Any, end: Any) -> float | None:
        """Return the seconds between two marks; None if the work is not done yet."""


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


class TrainingObserver:
    """Measures the steps of an `ElasticTrainer`; does nothing if no agent reads the report."""

    def __init__(self, model: torch.nn.Module, environment: Mapping[str, str] = os.environ) -> None:
        self._model, self._reporter = model, TrainingReporter(environment)
        self.is_enabled = self._reporter.is_enabled
        self._device = next(
            (parameter.device for parameter in model.parameters()), torch.device("cpu")
        )
        is_gpu = self._device.type == "cuda"
        self.timer = StepTimer(CudaClock() if is_gpu else ProcessorClock())
        self._noise = NoiseEstimator()
        self._shape = ReportedShape(params=self._count_parameters())
        self._device_model = torch.cuda.get_device_name(self._device) if is_gpu else ""
        self._device_memory: int | None = None
        if is_gpu:
            self._device_memory = torch.cuda.get_device_properties(self._device).total_memory
        self._loader: DataLoader[Any] | None = None
        self._loss: float | None = None
        self._metrics: tuple[tuple[str, float], ...] = ()
        self._total_steps: int | None = None
        self._last = TrainingReport()
        self._written_at = time.monotonic()
        self.needs_gradients = False
        """True in a micro-batch whose gradients are measured."""
        self._is_callback_queued = False
        self._is_last = False

    def set_model_shape(self, shape: ReportedShape) -> None:
        """Add what the script knows of the model."""
        self._shape = replace(shape, params=shape.params or self._shape.params)

    def set_progress(
        self,
        loss: float | None,
        total_steps: int | None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Set what the next report contains of the script's numbers."""
        if total_steps is not None:
            self._total_steps = total_steps
        if loss is not None:
            self._loss = loss
        if metrics is not None:
            self._metrics = tuple(sorted((name, float(metrics[name])) for name in metrics))

    def observe_loader(self, loader: DataLoader[Any]) -> None:
        """Report the processes of this loader."""
        self._loader = loader

    def begin_micro_batch(self, step: int, *, is_first: bool, is_last: bool) -> None:
        """Begin a micro-batch of the optimizer step with this number, counted from 0."""
        if not self.is_enabled:
            return
        self.timer.begin_micro_batch(is_first=is_first)
        if is_first:
            self._noise.begin_step(step, is_possible=self._is_averaged())
        self._is_last, self._is_callback_queued = is_last, False
        times_exchange = self.timer.is_sampling and is_last
        self.needs_gradients = times_exchange or self._noise.is_measuring

    def gradient(self, gradient: torch.Tensor) -> None:
        """Add a gradient in a micro-batch that needs them."""
        if self._noise.is_measuring:
            self._noise.gradient(gradient)
        if self._is_last and self.timer.is_sampling:
            self.timer.gradient()
        if not self._is_callback_queued:
            self._is_callback_queued = True
            # DistributedDataParallel queues a callback that waits for the exchange when its last
            # gradient is computed. One that is queued by a callback runs after all of these.
            _queue_callback(lambda: _queue_callback(self._backward_ended))

    def _backward_ended(self) -> None:
        self._is_callback_queued = False
        if self._noise.is_measuring:
            self._noise.end_micro_batch()
        if not self._is_last:
            return
        if self.timer.is_sampling:
            self.timer.backward_ended()
        if self._noise.is_measuring:
            self._noise.global_gradients(_gradients(self._model.parameters()))

    def end_micro_batch(self, share: Share, sizes: tuple[int, ...], *, is_last: bool) -> None:
        """End a micro-batch; ``share`` and ``sizes`` are those of the present global batch."""
        if not self.is_enabled:
            return
        self.needs_gradients = False
        self.timer.end_micro_batch(is_last=is_last)
        if not is_last:
            return
        self._noise.end_step(sizes, share.global_batch)
        now = time.monotonic()
        if now - self._written_at >= WRITE_EVERY_S:
            self._written_at = now
            self._write(share, sizes)

    def _write(self, share: Share, sizes: tuple[int, ...]) -> None:
        shares, noise, last = self.timer.take_shares(), self._noise.estimate(), self._last
        peaks: tuple[int, ...] = ()
        if self._device.type == "cuda":
            peaks = (torch.cuda.max_memory_allocated(self._device),)
        self._last = TrainingReport(
            batch_size=max(sizes),
            accumulation=len(sizes),
            global_batch=share.global_batch,
            compute_s=last.compute_s if shares.compute_s is None else shares.compute_s,
            sync_s=last.sync_s if shares.sync_s is None else shares.sync_s,
            data_s=last.data_s if shares.data_s is None else shares.data_s,
            grad_sqr=noise[0] if noise is not None else None,
            grad_var=noise[1] if noise is not None else None,
            device_peak_bytes=peaks,
            device_model=self._device_model,
            step_times=self.timer.step_times(),
            model=self._shape if self._shape != ReportedShape() else None,
            device_memory_bytes=self._device_memory,
            loader_workers=None if self._loader is None else self._loader.num_workers,
            total_steps=self._total_steps,
            loss=self._loss,
            metrics=self._metrics,
        )
        self._reporter.report(self._last)

    def _is_averaged(self) -> bool:
        """Return whether gradients after backward are the mean over all processes.

        Other wrappers shard gradients, or leave the exchange to the script.
        """
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        return alone or isinstance(self._model, DistributedDataParallel)

    def _count_parameters(self) -> int | None:
        if not self._is_averaged():
            return None  # each process may hold a part
        return sum(parameter.numel() for parameter in self._model.parameters()) or None


def _gradients(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [
        parameter.grad
        for parameter in parameters
        if parameter.grad is not None and not parameter.grad.is_sparse
    ]


def _queue_callback(callback: Callable[[], Any]) -> None:
    """Run ``callback`` at the end of the present backward, as FSDP and DeepSpeed do.

    Without it only the exchange and the noise are not measured.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    with contextlib.suppress(RuntimeError, AttributeError):
        engine.queue_callback(callback)
