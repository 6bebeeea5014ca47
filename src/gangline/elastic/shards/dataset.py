"""Definitions of data sets: their records, how they are cut into shards, and the order of shards.

There are three kinds. A `Table` has records from 0 to its size. A `Text` is a list of files with
known line counts; its records are all lines, numbered through the files. A `Stream` has partitions
that grow: its records are offsets of a partition. Tables and texts have epochs and a seeded order,
streams have neither.

The order is computed, not stored: a Feistel network over the smallest even power of two that holds
all positions, applied repeatedly until the result is in range, is a permutation without memory or
preparation. Master and workers compute the same one from seed and epoch, on every Python version.

Errors: `DatasetError`, an invalid definition.
"""

from bisect import bisect_right
from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import accumulate
from typing import Annotated, TypeAlias

import msgspec

_ROUNDS = 6
_MASK_64 = (1 << 64) - 1
_MULTIPLIER = 0xD6E8FEB86659FD93
"""An odd number whose product spreads every input bit over the upper half of the result."""


def permuted_position(position: int, size: int, seed: int, epoch: int) -> int:
    """Return the element at ``position`` in the order of ``epoch``; both lie in [0, ``size``)."""
    if size < 2:
        return position
    half = ((size - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    keys = _round_keys(seed, epoch)
    value = position
    while True:
        left, right = value >> half, value & mask
        for key in keys:
            mixed = ((right ^ key) * _MULTIPLIER) & _MASK_64
            mixed = ((mixed ^ (mixed >> 32)) * _MULTIPLIER) & _MASK_64
            left, right = right, left ^ (mixed >> 32 & mask)
        value = left << half | right
        if value < size:
            return value


@lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    digest = blake2b(f"{seed}:{epoch}".encode(), digest_size=8 * _ROUNDS).digest()
    return tuple(int.from_bytes(digest[i : i + 8], "big") for i in range(0, len(digest), 8))


MAX_RECORDS = 1 << 53
"""The largest integer that a JSON number represents exactly."""

RecordCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_RECORDS)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_RECORDS)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
FilePath = Annotated[str, msgspec.Meta(max_length=4096)]


class DatasetError(ValueError):
    """The definition of a data set is invalid; the message says what to change."""


class Shuffle(StrEnum):
    """What is reordered in each epoch, with a seed."""

    NONE = "none"
    SHARDS = "shards"
    """Shards are in random order, the records of one in sequence: reading stays fast."""
    RECORDS = "records"
    """Every record is drawn from the complete data set."""


class Purpose(StrEnum):
    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


class Dataset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Common fields of all kinds."""

    name: Name
    shard_size: Positive
    """Records of a shard; the last one of an epoch or a file may have fewer."""
    lease_s: Annotated[float, msgspec.Meta(gt=0)] = 1800.0
    """Seconds after which a shard without a report or renewal is leased to another worker."""
    max_failures: Positive = 3
    """Number of reported failures after which a shard becomes a dead letter."""
    max_losses: Positive = 10
    """Number of lost workers after which a shard becomes a dead letter. It is larger than
    ``max_failures``, because data is rarely the cause.
    """
    purpose: Purpose = Purpose.TRAINING


class Table(Dataset, tag="table", frozen=True, kw_only=True, omit_defaults=True):
    """Records that can be read by number."""

    size: RecordCount
    epochs: RecordCount = 1
    """Number of passes over all records; 0 means without end."""
    shuffle: Shuffle = Shuffle.NONE
    seed: int = 0


class TextFile(msgspec.Struct, frozen=True, array_like=True):
    """A file and how many lines it has."""

    path: FilePath
    lines: RecordCount


class Text(Dataset, tag="text", frozen=True, kw_only=True, omit_defaults=True):
    """Lines of files. Unless records are shuffled, no shard crosses the end of a file."""

    files: tuple[TextFile, ...]
    epochs: RecordCount = 1
    """Number of passes over all lines; 0 means without end."""
    shuffle: Shuffle = Shuffle.NONE
    seed: int = 0

    @property
    def size(self) -> int:
        return sum(file.lines for file in self.files)

    def locate(self, record: int) -> tuple[str, int]:
        """Return the path and the line (counted from 0) of a record."""
        before = 0
        for file in self.files:
            if record < before + file.lines:
                return file.path, record - before
            before += file.lines
        raise IndexError(f"{self.name} has {before} lines, record {record} is not one of them")


class Stream(Dataset, tag="stream", frozen=True, kw_only=True, omit_defaults=True):
    """Partitions that grow while they are read, such as those of a message queue."""

    partitions: dict[Name, RecordCount]


FiniteDataset: TypeAlias = Table | Text
DatasetDefinition: TypeAlias = Table | Text | Stream


def check_definition(definition: DatasetDefinition) -> None:
    """Check what the types of the fields cannot express.

    Raises DatasetError: the definition is invalid.
    """
    if isinstance(definition, Stream):
        if not definition.partitions:
            raise DatasetError(f"{definition.name}: a stream needs at least one partition")
        return
    if isinstance(definition, Text) and not definition.files:
        raise DatasetError(f"{definition.name}: a text needs at least one file")
    if definition.size == 0 and definition.epochs == 0:
        raise DatasetError(f"{definition.name}: endless epochs need at least one record")


class ShardLayout:
    """How the records of a table or text are cut, and the order of shards in an epoch."""

    def __init__(self, definition: FiniteDataset) -> None:
        self.definition = definition

    @cached_property
    def _parts(self) -> list[int]:
        """Lengths of the parts that a shard must not cross."""
        definition = self.definition
        if isinstance(definition, Text) and definition.shuffle is not Shuffle.RECORDS:
            return [file.lines for file in definition.files if file.lines]
        return [definition.size] if definition.size else []

    @cached_property
    def _records_before(self) -> list[int]:
        return [0, *accumulate(self._parts)]

    @cached_property
    def _shards_before(self) -> list[int]:
        size = self.definition.shard_size
        return [0, *accumulate(-(-length // size) for length in self._parts)]

    @property
    def shards(self) -> int:
        """Number of shards of an epoch."""
        return self._shards_before[-1]

    def shard_number(self, epoch: int, position: int) -> int:
        """Return the shard at ``position`` of ``epoch``."""
        if self.definition.shuffle is not Shuffle.SHARDS:
            return position
        return permuted_position(position, self.shards, self.definition.seed, epoch)

    def shard_span(self, number: int) -> tuple[int, int]:
        """Return the first record of a shard and the one after its last."""
        part = bisect_right(self._shards_before, number) - 1
        size = self.definition.shard_size
        start = self._records_before[part] + (number - self._shards_before[part]) * size
        return start, min(start + size, self._records_before[part + 1])


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """A leased shard."""

    lease: int
    """Identifies this lease in reports; never reused in a data set."""
    epoch: int
    number: int
    """Index of the shard in the epoch or stream."""
    start: int
    end: int
    """Records [start, end); with shuffled records these are positions in the order of the epoch."""
    partition: str = ""
    """The partition of a stream that the offsets belong to."""

    def __len__(self) -> int:
        return self.end - self.start


def records_of(definition: DatasetDefinition, shard: Shard) -> Iterator[int]:
    """Return the records of a shard in reading order."""
    if isinstance(definition, Stream) or definition.shuffle is not Shuffle.RECORDS:
        return iter(range(shard.start, shard.end))
    size, seed = definition.size, definition.seed
    return (
        permuted_position(place, size, seed, shard.epoch) for place in range(shard.start, shard.end)
    )
