"""What may happen to data shards, and what is answered: the words of the ledger and its journal.

Each event is small and self-contained, so that a journal of (event, time) pairs makes the same
ledger again. Fields are sent as arrays: most events are a few dozen bytes.
"""

from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec

from gangline.elastic.data.dataset import Count, Definition, Name, Purpose, Shard

Reason = Annotated[str, msgspec.Meta(max_length=1000)]
Worker = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
"""Who holds shards: ``NODE`` or ``NODE/ANYTHING``; what is before the slash dies together."""


class Register(msgspec.Struct, frozen=True, array_like=True, tag="register"):
    """Make a data set known. The same definition again changes nothing."""

    definition: Definition


class Take(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    """Ask for shards."""

    dataset: Name
    worker: Worker
    request: Count = 0
    """Counts up for each worker. The last number again is answered with the same shards, so that
    a lost reply loses none. 0: never the same again."""
    count: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    """How many shards at most."""
    through_epoch: Count | None = None
    """Give none of a later epoch, and call the end of this one the end."""


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """A shard that could not be worked on."""

    lease: int
    reason: Reason = ""


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """How far into a shard its worker is."""

    lease: int
    position: Count
    """Records before this place of the shard's range are done. Never goes back."""


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """What became of shards. What is not held any more is passed over, so repeats are harmless."""

    dataset: Name
    worker: Worker
    done: tuple[int, ...] = ()
    """Leases whose records are all done."""
    failed: tuple[Failed, ...] = ()
    progress: tuple[Progress, ...] = ()
    """Also renews the leases, as a position equal to the old one does."""


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """A worker, or all workers of a node, are gone: what they held goes to others."""

    owner: Worker


class Tick(msgspec.Struct, frozen=True, array_like=True, tag="tick"):
    """Time has passed: overdue shards go to others."""


class Resume(msgspec.Struct, frozen=True, array_like=True, tag="resume"):
    """A new process with a clock of its own took over: all leases begin anew."""


class Extend(msgspec.Struct, frozen=True, array_like=True, tag="extend"):
    """A partition of a stream now reaches to ``end`` (never back)."""

    dataset: Name
    partition: Name
    end: Count


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """A stream will not grow any more."""

    dataset: Name


class Revive(msgspec.Struct, frozen=True, array_like=True, tag="revive"):
    """Hand out the dead letters once more."""

    dataset: Name


class Restore(msgspec.Struct, frozen=True, array_like=True, tag="restore"):
    """Go back to a checkpoint. All leases end; reports about them are passed over from then on."""

    checkpoint: bytes


class Forget(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """Drop a data set: its name may be defined anew."""

    dataset: Name


Event: TypeAlias = (
    Register | Take | Report | Release | Tick | Resume | Extend | Close | Revive | Restore | Forget
)


class Supply(StrEnum):
    """What a worker that asked for shards is told."""

    GIVEN = "given"
    """Here they are."""
    WAIT = "wait"
    """None now; others hold some that may come back, or the stream may grow."""
    REPORT_FIRST = "reportFirst"
    """None now, and the worker itself holds some: it should finish these and ask again."""
    END = "end"
    """All records are done, or lie among the dead letters."""
    UNKNOWN = "unknown"
    """No such data set. Not the end of anything: register it, then ask again."""


class Taken(msgspec.Struct, frozen=True, array_like=True, tag="taken"):
    """The answer to `Take`."""

    supply: Supply
    shards: tuple[Shard, ...] = ()


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """The event was understood."""

    definition: Definition | None = None
    """The answer to `Register`: what is in force."""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The event makes no sense; ``message`` says why."""

    message: str


Answer: TypeAlias = Taken | Accepted | Refused


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """Records that were given up, and why."""

    epoch: int
    number: int
    start: int
    end: int
    partition: str = ""
    reasons: tuple[str, ...] = ()


class DatasetState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a data set is."""

    name: str
    purpose: Purpose
    epoch: int
    """The epoch that shards are taken from at present, counted from 0."""
    epochs: int
    """How many there are; 0 without end, and for streams."""
    waiting: int
    """Shards of this epoch (or of what a stream holds now) in nobody's hands."""
    leased: int
    """Shards in somebody's hands."""
    done_shards: int
    """Over all epochs. A shard that two workers finished counts once."""
    done_records: int
    dead: tuple[DeadLetter, ...]
    ended: bool
    committed: dict[str, int] = {}
    """Streams: all records of a partition before this offset are done or dead."""
