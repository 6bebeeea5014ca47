"""Batches of an elastic loader for steps that may be interrupted, in groups that may change.

The position is that of the sampler: records of the epoch on which all ranks together have trained.
After an interrupted step, and in another group, the batches begin again at that position.
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from gangline.elastic.trainer.loader import ElasticDataLoader

T = TypeVar("T")


class StepBatches(Generic[T]):
    """Iterates over this rank's micro-batches of one global batch; ``next`` returns one batch.

    Epochs follow each other without end.
    """

    def __init__(self, loader: ElasticDataLoader[T]) -> None:
        self._loader, self._sampler = loader, loader.batches.sampler
        self._sampler.share(loader.batches.batch_size)
        self._batches: Iterator[T] | None = None
        self._position = self._sampler.state_dict()

    def __iter__(self) -> Iterator[T]:
        for _ in self._sampler.share(self._loader.batches.batch_size).micro_batches:
            yield next(self)

    def __next__(self) -> T:
        for _ in range(2):
            if self._batches is None:
                self._batches = self._begin()
            batch = next(self._batches, None)
            if batch is not None:
                return batch
            self._batches = None
            self._sampler.set_epoch(self._sampler.epoch + 1)
            self._position = self._sampler.state_dict()
        raise RuntimeError("the data set has no batch")

    def rewind(self) -> None:
        """Begin again at the sampler's position, as the present rank of the present world."""
        self._batches = None
        if dist.is_initialized():
            self._sampler.num_replicas, self._sampler.rank = dist.get_world_size(), dist.get_rank()

    def advance(self) -> None:
        """Record that a global batch was trained on, unless an ``ElasticTrainer`` has done so."""
        if self._sampler.state_dict() == self._position:
            self._sampler.advance(self._sampler.chunk)
        self._position = self._sampler.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's position."""
        return dict(self._sampler.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a position of any world size."""
        self._sampler.load_state_dict(state_dict)
        self._position = self._sampler.state_dict()
        self._batches = None

    def _begin(self) -> Iterator[T]:
        # A loader draws a seed when it begins. Inside of an epoch an undisturbed training does not.
        if self._sampler.completed_num == 0:
            return iter(self._loader)
        with torch.random.fork_rng(devices=[]):
            return iter(self._loader)
