"""Composes the report of a training process and writes it to the progress file."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from gangline.elastic.progress import TrainingReporter
from gangline.elastic.trainer.noise import NoiseEstimator
from gangline.elastic.trainer.share import Share
from gangline.elastic.trainer.step_timer import CudaClock, ProcessorClock, StepTimer
from gangline.elastic.training_report import ModelShape, TrainingReport

WRITE_EVERY_S = 0.5


class TrainingObserver:
    """Measures the steps of an `ElasticTrainer`; does nothing if no agent reads the report."""

    def __init__(self, model: torch.nn.Module, environment: Mapping[str, str] = os.environ) -> None:
        self._model, self._reporter = model, TrainingReporter(environment)
        self.is_enabled = self._reporter.is_enabled
        self._device = next((each.device for each in model.parameters()), torch.device("cpu"))
        is_gpu = self._device.type == "cuda"
        self.timer = StepTimer(CudaClock() if is_gpu else ProcessorClock())
        self._noise = NoiseEstimator()
        self._shape = ModelShape(params=self._count_parameters())
        self._device_model = torch.cuda.get_device_name(self._device) if is_gpu else ""
        self._device_memory: int | None = None
        if is_gpu:
            self._device_memory = torch.cuda.get_device_properties(self._device).total_memory
        self._loader: DataLoader[Any] | None = None
        self._last = TrainingReport()
        self._written_at = time.monotonic()
        self.needs_gradients = False
        """True in a micro-batch whose gradients are measured."""
        self._is_callback_queued = False
        self._is_last = False

    def set_model_shape(self, shape: ModelShape) -> None:
        """Add what the script knows of the model."""
        self._shape = replace(shape, params=shape.params or self._shape.params)

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
            model=self._shape if self._shape != ModelShape() else None,
            device_memory_bytes=self._device_memory,
            loader_workers=None if self._loader is None else self._loader.num_workers,
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
        return sum(each.numel() for each in self._model.parameters()) or None


def _gradients(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [each.grad for each in parameters if each.grad is not None and not each.grad.is_sparse]


def _queue_callback(callback: Callable[[], Any]) -> None:
    """Run ``callback`` at the end of the present backward, as FSDP and DeepSpeed do.

    Without it only the exchange and the noise are not measured.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    with contextlib.suppress(RuntimeError, AttributeError):
        engine.queue_callback(callback)
