"""A data loader whose batch size can be changed from outside while the job runs.

The file has the format of DLRover's tuning: JSON of this form, in which a missing part changes
nothing::

    {"dataloader": {"version": 3, "batch_size": 64, "num_workers": 4, "pin_memory": false}}

It is read at the beginning of each pass through the data, and applied if its version is higher than
the last one. All batches of one pass have the same size.
"""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from torch.utils.data import DataLoader, Dataset

from gangline.elastic.trainer.sampler import ElasticBatchSampler, ElasticDistributedSampler
from gangline.elastic.variables import LOADER_FILE_VARIABLES, TUNING_FILE_VARIABLE

log = logging.getLogger(__name__)

T = TypeVar("T")

CONFIG_VARIABLES = LOADER_FILE_VARIABLES


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
        ...

    def waited(self, seconds: float) -> None:
        """Training has waited for a batch."""
        ...


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
        self._config_file = Path(config_file) if config_file else _config_file_from_environment()
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


def _config_file_from_environment() -> Path | None:
    named = [os.environ[one] for one in CONFIG_VARIABLES if os.environ.get(one)]
    return Path(named[0]) if named else None
