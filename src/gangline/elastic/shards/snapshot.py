"""The state of a data set's shards, in its serialized form."""

import msgspec

from gangline.elastic.shards.dataset import DatasetDefinition, Shard
from gangline.elastic.shards.events import DeadLetter

ShardKey = tuple[int, int]
"""Epoch and number, which identify a piece."""


class ShardRemainder(msgspec.Struct, array_like=True):
    """The unfinished part of a shard."""

    epoch: int
    number: int
    start: int
    end: int
    partition: str = ""
    failures: int = 0
    losses: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def key(self) -> ShardKey:
        return self.epoch, self.number

    def dead_letter(self) -> DeadLetter:
        return DeadLetter(
            self.epoch, self.number, self.start, self.end, self.partition, self.reasons
        )


class ShardLease(msgspec.Struct, array_like=True):
    """A piece that is leased to a worker."""

    id: int
    worker: str
    deadline: float
    piece: ShardRemainder

    def shard(self) -> Shard:
        piece = self.piece
        return Shard(self.id, piece.epoch, piece.number, piece.start, piece.end, piece.partition)


class PartitionOffsets(msgspec.Struct, array_like=True):
    """How far a partition of a stream is cut into shards, and how far it reaches."""

    next: int
    end: int


class DatasetSnapshot(msgspec.Struct, array_like=True):
    """The serializable state of a data set's shards."""

    definition: DatasetDefinition
    epoch: int = 0
    position: int = 0
    """The next position of the epoch's order (or the next number of a stream) to be leased."""
    heads: dict[str, PartitionOffsets] = {}
    closed: bool = False
    returned: list[ShardRemainder] = []
    leases: list[ShardLease] = []
    """In the order of their deadlines."""
    dead: list[DeadLetter] = []
    done_shards: int = 0
    done_records: int = 0
    next_lease: int = 1
    answers: dict[str, tuple[int, list[int]]] = {}
    """Each worker's last request, and the leases in its reply."""
    late: dict[int, ShardKey] = {}
    """Expired leases and their pieces: their workers may finish them yet."""
