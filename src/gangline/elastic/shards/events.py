"""Events of data shards and the replies to them: the input of the ledger and of its journal.

Each event is small and self-contained, so that a journal of (event, time) pairs reproduces the
ledger. Fields are encoded as arrays: most events take a few dozen bytes.
"""

from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec

from gangline.elastic.shards.dataset import DatasetDefinition, Name, Purpose, RecordCount, Shard

FailureReason = Annotated[str, msgspec.Meta(max_length=1000)]
WorkerName = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
"""Owner of leases: ``NODE`` or ``NODE/ANYTHING``; all owners of a node die together."""


class RegisterDataset(msgspec.Struct, frozen=True, array_like=True, tag="register"):
    """Register a data set. Repeating the same definition changes nothing."""

    definition: DatasetDefinition


class TakeShards(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    dataset: Name
    worker: WorkerName
    request: RecordCount = 0
    """Increases with each request of a worker. The last number again is answered with the same
    shards, so that a lost reply loses none. 0: never the same again.
    """
    count: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    through_epoch: RecordCount | None = None
    """Return no shard of a later epoch, and report the end of this one as the end."""


class ShardFailure(msgspec.Struct, frozen=True, array_like=True):
    """A shard that could not be processed."""

    lease: int
    reason: FailureReason = ""


class ShardProgress(msgspec.Struct, frozen=True, array_like=True):
    """The position of a worker in its shard."""

    lease: int
    position: RecordCount
    """All records of the shard before this position are done. It never decreases."""


class ShardReport(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """Results of shards. Unknown leases are ignored, so repeats are harmless."""

    dataset: Name
    worker: WorkerName
    done: tuple[int, ...] = ()
    """Leases whose records are all done."""
    failed: tuple[ShardFailure, ...] = ()
    progress: tuple[ShardProgress, ...] = ()
    """It also renews the leases, even if the position is unchanged."""


class ReleaseWorker(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """A worker, or all workers of a node, are gone: their leases end."""

    owner: WorkerName


class ExpireLeases(msgspec.Struct, frozen=True, array_like=True, tag="tick"):
    """Time has passed: expired leases end."""


class RenewLeases(msgspec.Struct, frozen=True, array_like=True, tag="resume"):
    """A new process with another clock took over: the time of all leases restarts."""


class ExtendStream(msgspec.Struct, frozen=True, array_like=True, tag="extend"):
    """A partition of a stream now reaches to ``end``, which never decreases."""

    dataset: Name
    partition: Name
    end: RecordCount


class CloseStream(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """A stream will not grow any more."""

    dataset: Name


class RetryDeadLetters(msgspec.Struct, frozen=True, array_like=True, tag="revive"):
    """Make dead letters available again."""

    dataset: Name


class RestorePosition(msgspec.Struct, frozen=True, array_like=True, tag="restore"):
    """Restore a checkpoint. All leases end; later reports about them are ignored."""

    checkpoint: bytes


class ForgetDataset(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """Delete a data set: its name may be registered again."""

    dataset: Name


LedgerEvent: TypeAlias = (
    RegisterDataset
    | TakeShards
    | ShardReport
    | ReleaseWorker
    | ExpireLeases
    | RenewLeases
    | ExtendStream
    | CloseStream
    | RetryDeadLetters
    | RestorePosition
    | ForgetDataset
)


class Supply(StrEnum):
    """The result of a request for shards."""

    GIVEN = "given"
    WAIT = "wait"
    """None now; other workers may give some back, or the stream may grow."""
    REPORT_FIRST = "reportFirst"
    """None now, and the worker itself has some: it should finish these and ask again."""
    END = "end"
    """All records are done or dead letters."""
    UNKNOWN = "unknown"
    """There is no such data set. This is not an end: register it, then ask again."""


class TakenShards(msgspec.Struct, frozen=True, array_like=True, tag="taken"):
    supply: Supply
    shards: tuple[Shard, ...] = ()


class EventAccepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    definition: DatasetDefinition | None = None
    """Only for `Register`: the definition that applies."""


class EventRefused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The event is invalid; ``message`` says why."""

    message: str


LedgerAnswer: TypeAlias = TakenShards | EventAccepted | EventRefused


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """Records that were given up, and why."""

    epoch: int
    number: int
    start: int
    end: int
    partition: str = ""
    reasons: tuple[str, ...] = ()


class DatasetState(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    purpose: Purpose
    epoch: int
    """The current epoch, from 0."""
    epochs: int
    """Number of epochs; 0 without end, and for streams."""
    waiting: int
    """Shards of this epoch (or of the stream's present content) that are not leased."""
    leased: int
    done_shards: int
    """Over all epochs. A shard that two workers finished counts once."""
    done_records: int
    dead: tuple[DeadLetter, ...]
    ended: bool
    committed: dict[str, int] = {}
    """Streams only: all records of a partition before this offset are done or dead."""
