"""A distributed sampler whose order does not depend on the number of processes.

All processes walk through one seeded order of the epoch. What was trained on is always a prefix of
it, so a job that goes on with another world size continues at the same record: nothing is skipped,
nothing repeated (but the padding at the very end of an epoch, as in torch's own sampler).
"""

import math
from collections.abc import Iterator, Sized
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from gangline.elastic.trainer.share import Share, ShareError


class ElasticDistributedSampler(Sampler[int]):
    """Drop-in for ``DistributedSampler`` that can be stopped and continued by another world size.

    Args:
        dataset: whatever has a length.
        num_replicas: the world size; None: of the process group, 1 without one.
        rank: of this process; None: of the process group.
        shuffle: a new order in each epoch, from ``seed`` and epoch.
        seed: equal in all processes.
        drop_last: leave the incomplete end of an epoch out instead of filling it up from its start.
        global_batch_size: give each process its run of every global batch (see ``share``) instead
            of every n-th record; needed for accumulation that is the same at any world size.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        global_batch_size: int | None = None,
    ) -> None:
        grouped = dist.is_available() and dist.is_initialized()
        self.dataset = dataset
        self.num_replicas = num_replicas or (dist.get_world_size() if grouped else 1)
        self.rank = rank if rank is not None else (dist.get_rank() if grouped else 0)
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.global_batch_size = global_batch_size
        self.epoch = 0
        self.completed_num = 0
        """Records of the epoch that are trained on, by all processes together."""
        if global_batch_size is not None:
            self.share(1)
        elif not 0 <= self.rank < self.num_replicas:
            raise ShareError(f"rank {self.rank} is not one of {self.num_replicas}")

    @property
    def chunk(self) -> int:
        """Records that all processes take together at once: what an epoch must be a multiple of."""
        return self.global_batch_size or self.num_replicas

    def share(self, micro_batch: int) -> Share:
        """Return this process's part of a global batch."""
        if self.global_batch_size is None:
            raise ShareError("the sampler was made without global_batch_size")
        return Share(self.global_batch_size, self.num_replicas, self.rank, micro_batch)

    def _chunks(self) -> int:
        left = max(0, len(self.dataset) - self.completed_num)
        return left // self.chunk if self.drop_last else math.ceil(left / self.chunk)

    def __len__(self) -> int:
        """Return how many records of this process are left in the epoch."""
        own = 1 if self.global_batch_size is None else self.share(1).records
        return self._chunks() * own

    def order(self) -> list[int]:
        """Return all records of the epoch in their order."""
        size = len(self.dataset)
        if not self.shuffle:
            return list(range(size))
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        order: list[int] = torch.randperm(size, generator=generator).tolist()
        return order

    def __iter__(self) -> Iterator[int]:
        """Give this process's records from where the epoch stands."""
        order = self.order()
        start = self.completed_num
        end = start + self._chunks() * self.chunk
        if self.global_batch_size is None:
            places = range(start + self.rank, end, self.num_replicas)
            return (order[place % len(order)] for place in places)
        share = self.share(1)
        return (
            order[place % len(order)]
            for chunk in range(start + share.start, end, self.chunk)
            for place in range(chunk, chunk + share.records)
        )

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch; its beginning, unless it is the one that is under way."""
        if epoch != self.epoch:
            self.epoch, self.completed_num = epoch, 0

    def advance(self, records: int) -> None:
        """Note that all processes together have trained on so many more records."""
        self.completed_num += records

    def state_dict(
        self, iteration: int | None = None, micro_batch_size: int | None = None
    ) -> dict[str, int]:
        """Return where the epoch stands.

        Without arguments: at what `advance` was told (``ElasticTrainer`` does). With them: after
        ``iteration`` batches of ``micro_batch_size`` of every process from the epoch's beginning.
        """
        completed = self.completed_num
        if iteration is not None and micro_batch_size is not None:
            completed = iteration * micro_batch_size * self.num_replicas
        return {"epoch": self.epoch, "completed_num": completed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a `state_dict` of any world size was taken."""
        self.epoch = int(state["epoch"])
        self.completed_num = int(state["completed_num"])


class ElasticBatchSampler(Sampler[list[int]]):
    """Cuts what a sampler gives into micro-batches that do not reach over a global batch."""

    def __init__(self, sampler: ElasticDistributedSampler, batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        """Micro-batches have so many records at most. May be changed between two epochs."""
        self.drop_last = sampler.drop_last

    def sizes(self) -> tuple[int, ...]:
        """Return the micro-batches of one global batch, or of all that is left without one."""
        if self.sampler.global_batch_size is not None:
            return self.sampler.share(self.batch_size).micro_batches
        count, rest = divmod(len(self.sampler), self.batch_size)
        return (self.batch_size,) * count + ((rest,) if rest and not self.drop_last else ())

    def __iter__(self) -> Iterator[list[int]]:
        """Give the micro-batches of this process."""
        records, sizes = iter(self.sampler), self.sizes()
        while sizes:
            for size in sizes:
                batch = [record for _, record in zip(range(size), records, strict=False)]
                if not batch:
                    return
                yield batch
            if self.sampler.global_batch_size is None:
                return

    def __len__(self) -> int:
        """Return how many micro-batches are left in the epoch."""
        if self.sampler.global_batch_size is None:
            return len(self.sizes())
        share = self.sampler.share(self.batch_size)
        return len(self.sampler) // share.records * len(share.micro_batches)
