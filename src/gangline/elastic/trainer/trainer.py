"""Keeps the global batch, and with it the training, the same for any number of processes.

A script wraps its optimizer and each micro-batch, and otherwise stays as it is::

    sampler = ElasticDistributedSampler(data, global_batch_size=512)
    loader = ElasticDataLoader(data, batch_size=32, sampler=sampler)
    trainer = ElasticTrainer(DistributedDataParallel(model), loader)
    optimizer, scheduler = trainer.prepare(optimizer, scheduler)
    for inputs, targets in loader:
        with trainer.step():
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()

Within a global batch only the first ``zero_grad`` and the last ``step`` have an effect, and
gradients are exchanged once. Every gradient is weighted when it is computed, so that clipping sees
the final values. The loss must be a mean over the records of its micro-batch.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LRScheduler

from gangline.elastic.progress import ReportedShape, StepReporter
from gangline.elastic.trainer.loader import ElasticDataLoader, find_tuning_file
from gangline.elastic.trainer.share import Share, ShareError
from gangline.elastic.trainer.training_reporter import TrainingObserver

log = logging.getLogger(__name__)
T = TypeVar("T")


class OptimizerConfig(msgspec.Struct, frozen=True):
    """Settings of the optimizer; None keeps the present value."""

    version: int = 0
    learning_rate: float | None = None
    weight_decay: float | None = None


class _File(msgspec.Struct):
    optimizer: OptimizerConfig = OptimizerConfig()


def agree_on_optimizer_config() -> OptimizerConfig:
    """Return what rank 0 reads; all ranks call this together.

    Agents write the file at slightly different times, and ranks with different learning rates would
    train different models.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return _read()
    shared: list[OptimizerConfig | None] = [_read() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    return shared[0] or OptimizerConfig()


def _read() -> OptimizerConfig:
    if (path := find_tuning_file()) is None:
        return OptimizerConfig()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).optimizer
    except FileNotFoundError:
        return OptimizerConfig()
    except (OSError, msgspec.DecodeError) as error:
        log.warning(f"cannot read the optimizer's settings: {error}", extra={"error": str(error)})
        return OptimizerConfig()


class ElasticTrainer:
    """Counts micro-batches, and decides which calls have an effect.

    Raises:
        ShareError: the loader's sampler has no ``global_batch_size``.
    """

    def __init__(self, model: torch.nn.Module, dataloader: ElasticDataLoader[T]) -> None:
        self.model = model
        self._batches = dataloader.batches
        self._sampler = dataloader.batches.sampler
        self._share: Share = self._sampler.share(self._batches.batch_size)
        self._sizes: tuple[int, ...] = ()
        self._micro_batch = 0
        """Index of the present micro-batch in the global batch."""
        self._weight = 1.0
        self._is_within = False
        self._reporter = StepReporter()
        self._optimizer_version = 0
        self._observer = TrainingObserver(model)
        if self._observer.is_enabled:
            dataloader.observe(self._observer.timer)
            self._observer.observe_loader(dataloader)
        self.num_steps = 0
        """Number of finished global batches."""
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._weighted)  # type: ignore[no-untyped-call]

    def _weighted(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Weight a gradient before it is accumulated and exchanged."""
        if self._observer.needs_gradients:
            self._observer.gradient(gradient)
        if not self._is_within or self._weight == 1.0:
            return None
        return gradient * self._weight

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of this process in a global batch."""
        return len(self._sampler.share(self._batches.batch_size).micro_batches)

    @property
    def is_first(self) -> bool:
        """True if the present micro-batch begins a global batch."""
        return self._micro_batch == 0

    @property
    def is_last(self) -> bool:
        """True if the present micro-batch ends a global batch."""
        return self._micro_batch == len(self._sizes) - 1

    def prepare(
        self, optimizer: torch.optim.Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> Any:
        """Return the wrapped optimizer, or a pair of wrapped optimizer and scheduler."""
        wrapped = ElasticOptimizer(optimizer, self)
        if lr_scheduler is None:
            return wrapped
        return wrapped, ElasticScheduler(lr_scheduler, self)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Context of the work on one micro-batch."""
        if self._is_within:
            raise RuntimeError("the steps of a trainer do not nest")
        if self.is_first:
            self._share = self._sampler.share(self._batches.batch_size)
            self._sizes = self._share.micro_batches
        self._weight = self._share.weight(self._sizes[self._micro_batch])
        self._is_within = True
        self._observer.begin_micro_batch(
            self.num_steps, is_first=self.is_first, is_last=self.is_last
        )
        try:
            with self._synchronization():
                yield
        finally:
            self._is_within = False
        self._observer.end_micro_batch(self._share, self._sizes, is_last=self.is_last)
        self._finish_micro_batch()

    def _synchronization(self) -> contextlib.AbstractContextManager[None]:
        no_sync: Any = getattr(self.model, "no_sync", contextlib.nullcontext)
        context: contextlib.AbstractContextManager[None]
        context = contextlib.nullcontext() if self.is_last else no_sync()
        return context

    def _finish_micro_batch(self) -> None:
        if not self.is_last:
            self._micro_batch += 1
            return
        self._micro_batch = 0
        self.num_steps += 1
        self._reporter.report_step(self.num_steps)
        self._sampler.advance(self._share.global_batch)

    def report_model(
        self,
        *,
        params: int | None = None,
        layers: int | None = None,
        hidden: int | None = None,
        heads: int | None = None,
        vocab: int | None = None,
        sequence: int | None = None,
    ) -> None:
        """Report the shape of the model, from which its need of memory and time can be estimated.

        Args:
            params: number of parameters; None for those that the model has.
            layers: number of transformer layers.
            hidden: size of the hidden state.
            heads: number of attention heads.
            vocab: size of the vocabulary.
            sequence: tokens of one record.
        """
        self._observer.set_model_shape(
            ReportedShape(params, layers, hidden, heads, vocab, sequence)
        )

    def report_progress(
        self,
        *,
        loss: float | None = None,
        total_steps: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Report what ``gangline get`` and the views of a followed job show beside the step.

        Args:
            loss: the loss of the present step, as a number of Python. ``loss.item()`` waits for the
                device, so report it every few steps only.
            total_steps: the step with which the training ends, for the progress bar and the time
                that is left. It is remembered.
            metrics: further numbers for the curves of the job, by name, such as ``{"accuracy":
                0.9}``; a few, with short names. The last ones are remembered.
        """
        self._observer.set_progress(loss, total_steps, metrics)

    def new_optimizer_config(self) -> OptimizerConfig | None:
        """Return the settings of the optimizer that the job's tuning has changed; None without any.

        All ranks call it together, for instance at the beginning of an epoch. The script applies
        them, because only it knows its schedule of learning rates.
        """
        config = agree_on_optimizer_config()
        if config.version <= self._optimizer_version:
            return None
        self._optimizer_version = config.version
        return config

    @contextlib.contextmanager
    def epoch(self, epoch: int) -> Iterator[None]:
        """Context of one epoch; continues the current epoch after a restart."""
        self._sampler.set_epoch(epoch)
        self.reset()
        yield

    def reset(self) -> None:
        """Discard a begun global batch: the next micro-batch is a first one."""
        self._micro_batch = 0
        self._observer.timer.begin_pass()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training; store it with the model's state."""
        return {"num_steps": self.num_steps, "sampler": self._sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of any world size."""
        self.num_steps = int(state["num_steps"])
        self._sampler.load_state_dict(state["sampler"])
        self.reset()

    @property
    def is_quiet(self) -> bool:
        """True if steps of optimizer and scheduler have no effect now."""
        return self._is_within and not self.is_last

    @property
    def keeps_gradients(self) -> bool:
        """True if gradients of this global batch are present already."""
        return self._is_within and not self.is_first


class ElasticOptimizer:
    """An optimizer that steps once for each global batch; everything else is delegated."""

    def __init__(self, optimizer: torch.optim.Optimizer, trainer: ElasticTrainer) -> None:
        self.optimizer, self._trainer = optimizer, trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step at the end of a global batch."""
        if self._trainer.is_quiet:
            return None
        if closure is not None:
            raise ShareError("optimizers that call back for a loss cannot accumulate gradients")
        self.optimizer.step()
        return None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients at the beginning of a global batch."""
        if not self._trainer.keeps_gradients:
            self.optimizer.zero_grad(set_to_none)


class ElasticScheduler:
    """A learning rate scheduler that steps once for each global batch."""

    def __init__(self, scheduler: LRScheduler, trainer: ElasticTrainer) -> None:
        self.scheduler, self._trainer = scheduler, trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scheduler, name)

    def step(self) -> None:
        """Step at the end of a global batch, and at each call outside of ``step()``."""
        if not self._trainer.is_quiet:
            self.scheduler.step()
