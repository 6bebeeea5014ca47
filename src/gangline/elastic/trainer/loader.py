"""A sampler and a data loader for jobs whose number of processes and batch size may change.

All processes follow one seeded order of the epoch. The records trained so far are always a prefix
of it, so a job that continues with another world size starts at the next record. Nothing is skipped
or repeated, except for the padding at the end of an epoch, as in torch's own sampler.

The loader reads a file in the format of DLRover's tuning at the beginning of each pass through the
data, and applies it if its version is higher than the last one; a missing part changes nothing::

    {"dataloader": {"version": 3, "batch_size": 64, "num_workers": 4, "pin_memory": false}}
"""

import logging
import math
import os
import time
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Sampler

from gangline.elastic.trainer.share import Share, ShareError
from gangline.elastic.variables import LOADER_FILE_VARIABLES, TUNING_FILE_VARIABLE

log = logging.getLogger(__name__)
T = TypeVar("T")


class ElasticDistributedSampler(Sampler[int]):
    """Drop-in for ``DistributedSampler`` that another world size can continue.

    Args:
        dataset: any object with a length.
        num_replicas: the world size; None for that of the process group, 1 without one.
        rank: rank of this process; None for that of the process group.
        shuffle: True for a new order in each epoch, from ``seed`` and epoch.
        seed: must be equal in all processes.
        drop_last: True to leave out the incomplete end of an epoch instead of padding it.
        global_batch_size: give each process a contiguous part of every global batch (see ``share``)
            instead of every n-th record; needed for equal accumulation at any world size.
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
        """Records of the epoch that all processes together have trained on."""
        if global_batch_size is not None:
            self.share(1)
        elif not 0 <= self.rank < self.num_replicas:
            raise ShareError(f"rank {self.rank} is not one of {self.num_replicas}")

    @property
    def chunk(self) -> int:
        """Records that all processes take in one turn; an epoch's length is a multiple of it."""
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
        """Return the number of records of this process that are left in the epoch."""
        own = 1 if self.global_batch_size is None else self.share(1).records
        return self._chunks() * own

    def order(self) -> list[int]:
        """Return the indices of all records of the epoch in their order."""
        size = len(self.dataset)
        if not self.shuffle:
            return list(range(size))
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        order: list[int] = torch.randperm(size, generator=generator).tolist()
        return order

    def __iter__(self) -> Iterator[int]:
        """Iterate over this process's records that are left in the epoch."""
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
        """Start an epoch, unless it is the current one."""
        if epoch != self.epoch:
            self.epoch, self.completed_num = epoch, 0

    def advance(self, records: int) -> None:
        """Add records that all processes together have trained on."""
        self.completed_num += records

    def state_dict(
        self, iteration: int | None = None, micro_batch_size: int | None = None
    ) -> dict[str, int]:
        """Return the position in the epoch.

        Without arguments it is the position set by `advance` (``ElasticTrainer`` does that). With
        arguments it is the position after ``iteration`` batches of ``micro_batch_size`` in every
        process.
        """
        completed = self.completed_num
        if iteration is not None and micro_batch_size is not None:
            completed = iteration * micro_batch_size * self.num_replicas
        return {"epoch": self.epoch, "completed_num": completed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of any world size."""
        self.epoch = int(state["epoch"])
        self.completed_num = int(state["completed_num"])


class ElasticBatchSampler(Sampler[list[int]]):
    """Splits the records of a sampler into micro-batches that never span two global batches."""

    def __init__(self, sampler: ElasticDistributedSampler, batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        """Maximum number of records in a micro-batch. It may be changed between two epochs."""
        self.drop_last = sampler.drop_last

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of a global batch's micro-batches; without one, of all that are left."""
        if self.sampler.global_batch_size is not None:
            return self.sampler.share(self.batch_size).micro_batches
        count, rest = divmod(len(self.sampler), self.batch_size)
        return (self.batch_size,) * count + ((rest,) if rest and not self.drop_last else ())

    def __iter__(self) -> Iterator[list[int]]:
        """Iterate over the micro-batches of this process."""
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
        """Return the number of micro-batches left in the epoch."""
        if self.sampler.global_batch_size is None:
            return len(self.sizes())
        share = self.sampler.share(self.batch_size)
        return len(self.sampler) // share.records * len(share.micro_batches)


class LoaderConfig(msgspec.Struct, frozen=True):
    """Settings from the file. Zero and None keep the present value."""

    version: int = 0
    batch_size: int = 0
    num_workers: int | None = None
    pin_memory: bool | None = None


class _File(msgspec.Struct):
    dataloader: LoaderConfig = LoaderConfig()


class WaitObserver(Protocol):
    """Receives the times for which training waits for records."""

    def begin_pass(self) -> None:
        """A pass through the data begins."""

    def waited(self, seconds: float) -> None:
        """Training has waited for a batch."""


class _TimedIterator(Iterator[T]):
    """Measures the time for which each batch is waited for; everything else is delegated."""

    def __init__(self, batches: Iterator[T], observer: WaitObserver) -> None:
        self._batches, self._observer = batches, observer

    def __next__(self) -> T:
        begin = time.perf_counter()
        batch = next(self._batches)
        self._observer.waited(time.perf_counter() - begin)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class ElasticDataLoader(DataLoader[T]):
    """A ``DataLoader`` over an elastic sampler, with its batch size from a file."""

    def __init__(
        self,
        dataset: Dataset[T],
        batch_size: int = 1,
        sampler: ElasticDistributedSampler | None = None,
        config_file: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        """Take settings of ``DataLoader``, except ``batch_sampler``.

        ``drop_last`` and ``shuffle`` belong to the sampler: without one, an
        `ElasticDistributedSampler` is created with them.
        """
        shuffle = bool(settings.pop("shuffle", False))
        if sampler is None:
            drop_last = bool(settings.pop("drop_last", False))
            sized: Any = dataset
            sampler = ElasticDistributedSampler(sized, shuffle=shuffle, drop_last=drop_last)
        batches = ElasticBatchSampler(sampler, batch_size)
        super().__init__(dataset, batch_sampler=batches, **settings)
        self.batches = batches
        self._config_file = Path(config_file) if config_file else find_tuning_file()
        self._version = 0
        self._observer: WaitObserver | None = None
        self.load_config()

    def __iter__(self) -> Iterator[T]:  # type: ignore[override] # torch names a private class
        """Iterate over the rest of the epoch."""
        self.load_config()
        batches = super().__iter__()
        if self._observer is None:
            return batches
        self._observer.begin_pass()
        return _TimedIterator(batches, self._observer)

    def observe(self, observer: WaitObserver) -> None:
        """Report waiting times of later passes to ``observer``."""
        self._observer = observer

    def load_config(self) -> None:
        """Apply the file's values if its version is new."""
        config = self._read()
        if config is None or config.version <= self._version:
            return
        self._version = config.version
        if config.batch_size > 0 and self._may_change_batch():
            self.update_batch_size(config.batch_size)
        if config.num_workers is not None and not self.persistent_workers:
            self.num_workers = config.num_workers
        if config.pin_memory is not None:
            self.pin_memory = config.pin_memory

    def _may_change_batch(self) -> bool:
        """Return whether ranks may use batches of different sizes for a moment.

        Agents write a tuning at slightly different times. With a fixed global batch each rank may
        split its share as it likes; without one, ranks would have different numbers of batches.
        """
        sampler = self.batches.sampler
        is_fixed = sampler.global_batch_size is not None or sampler.num_replicas == 1
        if is_fixed or str(self._config_file) != os.environ.get(TUNING_FILE_VARIABLE):
            return True
        log.warning("a batch size for this job is ignored: its sampler has no global_batch_size")
        return False

    def update_batch_size(self, batch_size: int) -> None:
        """Use batches of this size from the next pass through the data on."""
        if batch_size < 1:
            raise ValueError(f"a batch needs at least one record, not {batch_size}")
        self.batches.batch_size = batch_size

    def _read(self) -> LoaderConfig | None:
        if self._config_file is None:
            return None
        try:
            return msgspec.json.decode(self._config_file.read_bytes(), type=_File).dataloader
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            log.warning(
                f"cannot read the loader's settings in {self._config_file}: {error}; keeping the "
                "present ones",
                extra={"file": str(self._config_file), "error": str(error)},
            )
            return None


def find_tuning_file() -> Path | None:
    """Return the file of the job's tuning; None without one."""
    paths = [os.environ[name] for name in LOADER_FILE_VARIABLES if os.environ.get(name)]
    return Path(paths[0]) if paths else None
