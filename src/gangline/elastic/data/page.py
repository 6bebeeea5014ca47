"""What a data set's book remembers, in the form in which it is written down."""

import msgspec

from gangline.elastic.data.dataset import Definition, Shard
from gangline.elastic.data.events import DeadLetter

Key = tuple[int, int]
"""Epoch and number: what a piece stays the same by."""


class Piece(msgspec.Struct, array_like=True):
    """What is left to do of a shard."""

    epoch: int
    number: int
    start: int
    end: int
    partition: str = ""
    failures: int = 0
    losses: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """What it stays the same by."""
        return self.epoch, self.number

    def letter(self) -> DeadLetter:
        """Return what is written down when it is given up."""
        return DeadLetter(
            self.epoch, self.number, self.start, self.end, self.partition, self.reasons
        )


class Lease(msgspec.Struct, array_like=True):
    """A piece in a worker's hands."""

    id: int
    worker: str
    deadline: float
    piece: Piece

    def shard(self) -> Shard:
        """Return what its worker gets to see."""
        piece = self.piece
        return Shard(self.id, piece.epoch, piece.number, piece.start, piece.end, piece.partition)


class Heads(msgspec.Struct, array_like=True):
    """How far a stream's partition is cut, and how far it reaches."""

    next: int
    end: int


class Page(msgspec.Struct, array_like=True):
    """All that a book must remember, as it is written down."""

    definition: Definition
    epoch: int = 0
    position: int = 0
    """The next place of the epoch's order (or the next number of a stream) to be handed out."""
    heads: dict[str, Heads] = {}
    closed: bool = False
    returned: list[Piece] = []
    leases: list[Lease] = []
    """In the order of their deadlines."""
    dead: list[DeadLetter] = []
    done_shards: int = 0
    done_records: int = 0
    next_lease: int = 1
    answers: dict[str, tuple[int, list[int]]] = {}
    """Each worker's last request, and the leases that it was answered with."""
    late: dict[int, Key] = {}
    """Leases that ran out, and the pieces they were for: their workers may finish them yet."""
