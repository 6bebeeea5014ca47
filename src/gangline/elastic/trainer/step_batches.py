"""Batches for steps that may be interrupted, in groups that may change.

With an elastic loader the position is that of the sampler: records of the epoch on which all ranks
together have trained. After an interrupted step, and in another group, the batches begin again at
that position.
"""

from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

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


class StepRecords:
    """The records of one rank's shards; a batch comes again until a step with it counts.

    The owner of the leases of each seat is in a file of its node, so that those of a lost rank are
    given back as soon as the next group has formed. The client is a ``ShardingClient``.
    """

    def __init__(self, client: Any, folder: Path | None) -> None:
        self._client, self._folder = client, folder
        self._rest: Iterator[int] = iter(())
        self._batch: list[int] = []

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        """Return the batch of this step: records of one shard, at most ``client.batch_size``."""
        while not self._batch:
            self._batch = [*islice(self._rest, self._client.batch_size)]
            if not self._batch:
                shard = self._client.fetch_shard()
                if shard is None:
                    raise StopIteration
                self._rest = iter(self._client.records(shard))
        return self._batch

    def advance(self) -> None:
        """Report that the batch was trained on."""
        if self._batch:
            self._client.report_batch_done(len(self._batch))
            self._batch = []

    def give_back(self) -> None:
        """Let other ranks have the shards."""
        self._batch, self._rest = [], iter(())
        self._client.release()

    def take_over(self, seats: Collection[int], own: int) -> None:
        """Give back the leases of those whose seats on this node are free, or this rank's now."""
        if self._folder is None:
            return
        folder = self._folder / f"leases-{quote(self._client.dataset_name, safe='')}"
        folder.mkdir(exist_ok=True)
        for file in folder.iterdir():
            seat, owner = int(file.name), file.read_text()
            is_free = seat == own or seat not in seats
            if is_free and owner not in ("", self._client.worker):  # it is empty while written
                self._client.release(owner)
        (folder / str(own)).write_text(self._client.worker)
