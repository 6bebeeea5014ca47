"""The ledger of all data sets of a job: a state machine of events and times, without I/O.

The master passes events to it and journals those that changed something, with their times::

    outcome = ledger.apply(Take("corpus", "node-1/0", request=7, count=4), now)
    if outcome.changed:
        journal.append(msgspec.msgpack.encode((event, now)))
    reply(outcome.answer)

The same events at the same times give the same ledger, so a journal is replayed by `apply` and
compacted by `snapshot`. After a replay apply `Resume()` (and journal it): the new process has
another clock. Apply `Tick()` when `deadline` has passed. Every event may safely be applied twice,
if takes have request numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec

from gangline.elastic.shards import events as ev
from gangline.elastic.shards.dataset import (
    DatasetDefinition,
    DatasetError,
    Stream,
    check_definition,
)
from gangline.elastic.shards.dataset_shards import DatasetShards, DatasetSnapshot

VERSION: Final = 1
"""Version of snapshots and checkpoints. A reader refuses a newer one."""


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    pages: list[DatasetSnapshot]


class _Checkpoint(msgspec.Struct, array_like=True):
    version: int
    page: DatasetSnapshot


@dataclass(frozen=True, slots=True)
class LedgerOutcome:
    answer: ev.LedgerAnswer
    changed: bool
    """True if the ledger has changed: only then is the event worth journaling."""


class ShardLedger:
    """The shards of all data sets by name."""

    def __init__(self) -> None:
        self._datasets: dict[str, DatasetShards] = {}

    @classmethod
    def from_snapshot(cls, snapshot: bytes) -> Self:
        """Create a ledger from a snapshot.

        Raises ValueError: it cannot be read, or a newer version wrote it.
        """
        read = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        _refuse_newer(read.version)
        ledger = cls()
        ledger._datasets = {
            snapshot.definition.name: DatasetShards(snapshot) for snapshot in read.pages
        }
        return ledger

    def snapshot(self) -> bytes:
        pages = [shards.snapshot() for shards in self._datasets.values()]
        return msgspec.msgpack.encode(_Snapshot(VERSION, pages))

    def apply(self, event: ev.LedgerEvent, now: float) -> LedgerOutcome:
        """Apply an event; ``now`` is in seconds of a clock that does not go back."""
        return _APPLIERS[type(event)](self, event, now)

    @property
    def deadline(self) -> float | None:
        """The next time at which a lease expires."""
        deadlines = (shards.deadline for shards in self._datasets.values())
        return min((one for one in deadlines if one is not None), default=None)

    @property
    def ended(self) -> bool:
        """True if there are data sets, and all have ended."""
        return bool(self._datasets) and all(
            shards.state().ended for shards in self._datasets.values()
        )

    def states(self) -> list[ev.DatasetState]:
        """Return the progress of each data set."""
        return [shards.state() for shards in self._datasets.values()]

    def state(self, dataset: str) -> ev.DatasetState | None:
        """Return the progress of a data set; None if there is none of this name."""
        shards = self._datasets.get(dataset)
        return shards.state() if shards else None

    def checkpoint(self, dataset: str) -> bytes | None:
        """Return the position for a training checkpoint; None for an unknown data set.

        Everything that is not reported as done at this moment is leased again after a restore:
        report progress first, then the records of the checkpoint are counted exactly once.
        """
        shards = self._datasets.get(dataset)
        if shards is None:
            return None
        return msgspec.msgpack.encode(_Checkpoint(VERSION, shards.checkpoint()))

    def _register(self, event: ev.RegisterDataset, now: float) -> LedgerOutcome:
        definition = event.definition
        shards = self._datasets.get(definition.name)
        if shards is not None:
            return _compare(shards.definition, definition)
        try:
            check_definition(definition)
        except DatasetError as error:
            return _refused(str(error))
        self._datasets[definition.name] = DatasetShards(DatasetSnapshot(definition))
        return LedgerOutcome(ev.EventAccepted(definition), changed=True)

    def _take(self, event: ev.TakeShards, now: float) -> LedgerOutcome:
        shards = self._datasets.get(event.dataset)
        if shards is None:
            return LedgerOutcome(ev.TakenShards(ev.Supply.UNKNOWN), changed=False)
        overdue = shards.expire(now)
        taken = shards.take(event, now)
        return LedgerOutcome(taken, changed=overdue or bool(taken.shards))

    def _report(self, event: ev.ShardReport, now: float) -> LedgerOutcome:
        shards = self._datasets.get(event.dataset)
        if shards is None:
            return _unknown_dataset(event.dataset)
        return LedgerOutcome(ev.EventAccepted(), changed=shards.report(event, now))

    def _release(self, event: ev.ReleaseWorker, now: float) -> LedgerOutcome:
        released = [shards.release(event.owner) for shards in self._datasets.values()]
        return LedgerOutcome(ev.EventAccepted(), changed=any(released))

    def _tick(self, event: ev.ExpireLeases, now: float) -> LedgerOutcome:
        expired = [shards.expire(now) for shards in self._datasets.values()]
        return LedgerOutcome(ev.EventAccepted(), changed=any(expired))

    def _resume(self, event: ev.RenewLeases, now: float) -> LedgerOutcome:
        for shards in self._datasets.values():
            shards.resume(now)
        return LedgerOutcome(ev.EventAccepted(), changed=True)

    def _extend(self, event: ev.ExtendStream, now: float) -> LedgerOutcome:
        shards = self._stream(event.dataset)
        if not isinstance(shards, DatasetShards):
            return shards
        if shards.is_closed:
            return _refused(f"the stream {event.dataset} is closed and cannot be extended")
        return LedgerOutcome(ev.EventAccepted(), changed=shards.extend(event.partition, event.end))

    def _close(self, event: ev.CloseStream, now: float) -> LedgerOutcome:
        shards = self._stream(event.dataset)
        if not isinstance(shards, DatasetShards):
            return shards
        return LedgerOutcome(ev.EventAccepted(), changed=shards.close())

    def _stream(self, name: str) -> DatasetShards | LedgerOutcome:
        shards = self._datasets.get(name)
        if shards is None:
            return _unknown_dataset(name)
        if not isinstance(shards.definition, Stream):
            return _refused(f"the data set {name} is no stream: its definition fixes its end")
        return shards

    def _revive(self, event: ev.RetryDeadLetters, now: float) -> LedgerOutcome:
        shards = self._datasets.get(event.dataset)
        if shards is None:
            return _unknown_dataset(event.dataset)
        return LedgerOutcome(ev.EventAccepted(), changed=shards.revive())

    def _restore(self, event: ev.RestorePosition, now: float) -> LedgerOutcome:
        try:
            saved = msgspec.msgpack.decode(event.checkpoint, type=_Checkpoint)
            _refuse_newer(saved.version)
            check_definition(saved.page.definition)
        except ValueError as error:
            return _refused(f"the checkpoint of a data set cannot be read: {error}")
        snapshot = saved.page
        before = self._datasets.get(snapshot.definition.name)
        if before is not None:
            compared = _compare(before.definition, snapshot.definition)
            if isinstance(compared.answer, ev.EventRefused):
                return compared
            snapshot.next_lease = max(snapshot.next_lease, before.next_lease)
        self._datasets[snapshot.definition.name] = DatasetShards(snapshot)
        return LedgerOutcome(ev.EventAccepted(snapshot.definition), changed=True)

    def _forget(self, event: ev.ForgetDataset, now: float) -> LedgerOutcome:
        return LedgerOutcome(
            ev.EventAccepted(), changed=self._datasets.pop(event.dataset, None) is not None
        )


_APPLIERS: Mapping[type, Callable[[ShardLedger, Any, float], LedgerOutcome]] = {
    ev.RegisterDataset: ShardLedger._register,
    ev.TakeShards: ShardLedger._take,
    ev.ShardReport: ShardLedger._report,
    ev.ReleaseWorker: ShardLedger._release,
    ev.ExpireLeases: ShardLedger._tick,
    ev.RenewLeases: ShardLedger._resume,
    ev.ExtendStream: ShardLedger._extend,
    ev.CloseStream: ShardLedger._close,
    ev.RetryDeadLetters: ShardLedger._revive,
    ev.RestorePosition: ShardLedger._restore,
    ev.ForgetDataset: ShardLedger._forget,
}


def _refused(message: str) -> LedgerOutcome:
    return LedgerOutcome(ev.EventRefused(message), changed=False)


def _unknown_dataset(dataset: str) -> LedgerOutcome:
    return _refused(f"there is no data set {dataset}; register it first")


def _compare(in_force: DatasetDefinition, definition: DatasetDefinition) -> LedgerOutcome:
    """Accept an equal definition; refuse another one and name the differences."""
    if definition == in_force:
        return LedgerOutcome(ev.EventAccepted(in_force), changed=False)
    if type(definition) is not type(in_force):
        return _refused(
            f"the data set {in_force.name} is registered as {type(in_force).__name__.lower()}, "
            f"not as {type(definition).__name__.lower()}"
        )
    differing = [
        f"{field}={getattr(in_force, field)!r}, not {getattr(definition, field)!r}"
        for field in in_force.__struct_fields__
        if getattr(in_force, field) != getattr(definition, field)
    ]
    return _refused(f"the data set {in_force.name} is registered with {'; '.join(differing)}")


def _refuse_newer(version: int) -> None:
    if version > VERSION:
        raise ValueError(f"it has version {version}, this release reads up to {VERSION}")
