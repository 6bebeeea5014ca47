"""What a data set is: its records, how they are cut into shards, and how a shard is handed out.

Three kinds. A `Table` has records 0 to its size. A `Text` is files of known line counts; its
records are all lines, numbered through the files. A `Stream` has partitions that grow: its records
are offsets of a partition. Tables and texts have epochs and a seeded order, streams have neither.

Errors: `DatasetError`, a definition that makes no sense.
"""

from bisect import bisect_right
from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from typing import Annotated, TypeAlias

import msgspec

from gangline.elastic.data.order import permuted

MAX_RECORDS = 1 << 53
"""As many as a JSON number can count."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_RECORDS)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_RECORDS)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Path = Annotated[str, msgspec.Meta(max_length=4096)]


class DatasetError(ValueError):
    """The definition of a data set makes no sense; the message says what to change."""


class Shuffle(StrEnum):
    """What of an epoch stands in a new, seeded order."""

    NONE = "none"
    SHARDS = "shards"
    """Shards come in random order, the records of one follow each other: reading stays fast."""
    RECORDS = "records"
    """Every record is drawn from the whole data set."""


class Purpose(StrEnum):
    """What the records are read for."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


class Dataset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all kinds have in common."""

    name: Name
    shard_size: Positive
    """Records in a shard; the last one of an epoch or a file may have fewer."""
    lease_s: Annotated[float, msgspec.Meta(gt=0)] = 1800.0
    """Seconds after which a shard that was neither reported nor renewed goes to somebody else."""
    max_failures: Positive = 3
    """How often a shard may be reported as failed before it becomes a dead letter."""
    max_losses: Positive = 10
    """How often its worker may die or stay away. More, because that is rarely the data's doing."""
    purpose: Purpose = Purpose.TRAINING


class Table(Dataset, tag="table", frozen=True, kw_only=True, omit_defaults=True):
    """Records that can be read by their number."""

    size: Count
    epochs: Count = 1
    """How often all records are gone through; 0 means without end."""
    shuffle: Shuffle = Shuffle.NONE
    seed: int = 0


class TextFile(msgspec.Struct, frozen=True, array_like=True):
    """A file and how many lines it has."""

    path: Path
    lines: Count


class Text(Dataset, tag="text", frozen=True, kw_only=True, omit_defaults=True):
    """Lines of files. Unless records are shuffled, no shard reaches over the end of a file."""

    files: tuple[TextFile, ...]
    epochs: Count = 1
    """How often all lines are gone through; 0 means without end."""
    shuffle: Shuffle = Shuffle.NONE
    seed: int = 0

    @property
    def size(self) -> int:
        """All lines of all files."""
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

    partitions: dict[Name, Count]
    """The offset at which each partition starts to be read."""


Finite: TypeAlias = Table | Text
Definition: TypeAlias = Table | Text | Stream


def check(definition: Definition) -> None:
    """Find what types cannot say.

    Raises:
        DatasetError: the definition makes no sense.
    """
    if isinstance(definition, Stream):
        if not definition.partitions:
            raise DatasetError(f"{definition.name}: a stream needs at least one partition")
        return
    if isinstance(definition, Text) and not definition.files:
        raise DatasetError(f"{definition.name}: a text needs at least one file")
    if definition.size == 0 and definition.epochs == 0:
        raise DatasetError(f"{definition.name}: endless epochs of no records would never end")


class Layout:
    """How the records of a table or text are cut, and in which order an epoch takes the shards."""

    def __init__(self, definition: Finite) -> None:
        self.definition = definition

    @cached_property
    def _parts(self) -> list[int]:
        """Lengths of what shards must not reach over."""
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
        """How many shards an epoch has."""
        return self._shards_before[-1]

    def number(self, epoch: int, position: int) -> int:
        """Return which shard is handed out at ``position`` of ``epoch``."""
        if self.definition.shuffle is not Shuffle.SHARDS:
            return position
        return permuted(position, self.shards, self.definition.seed, epoch)

    def span(self, number: int) -> tuple[int, int]:
        """Return the first record of a shard and the one after its last."""
        part = bisect_right(self._shards_before, number) - 1
        size = self.definition.shard_size
        start = self._records_before[part] + (number - self._shards_before[part]) * size
        return start, min(start + size, self._records_before[part + 1])


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a data set in somebody's hands."""

    lease: int
    """Names this handing out in reports; never used twice in a data set."""
    epoch: int
    number: int
    """Which shard of the epoch, or of the stream, it is."""
    start: int
    end: int
    """Records [start, end); with shuffled records these are places in the order of the epoch."""
    partition: str = ""
    """The partition of a stream that the offsets belong to."""

    def __len__(self) -> int:
        return self.end - self.start


def records(definition: Definition, shard: Shard) -> Iterator[int]:
    """Return the records of a shard in the order in which they are to be read."""
    if isinstance(definition, Stream) or definition.shuffle is not Shuffle.RECORDS:
        return iter(range(shard.start, shard.end))
    size, seed = definition.size, definition.seed
    return (permuted(place, size, seed, shard.epoch) for place in range(shard.start, shard.end))
