"""The shards of one data set: which wait, which are leased to whom, which are done or given up.

A *piece* is what is left of a shard. It waits (new ones in the order of the epoch, returned ones
before them), is leased, and ends done or dead. The first worker that finishes a piece counts, also
after its lease expired; a second report is ignored. ``DatasetSnapshot`` is the serialized form.

Invariant: each record is counted exactly once, and processed at least once.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

import msgspec

from gangline.elastic.shards.dataset import DatasetDefinition, Shard, ShardLayout, Stream
from gangline.elastic.shards.events import (
    DatasetState,
    DeadLetter,
    ShardReport,
    Supply,
    TakenShards,
    TakeShards,
)

ShardKey = tuple[int, int]
"""Epoch and number, which identify a piece."""
MAX_REASONS = 5
"""Number of a piece's newest failure reasons that are stored."""
TIMED_OUT = "not reported in time"
WORKER_GONE = "its worker was lost"


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


class DatasetShards:
    """One data set. All methods are deterministic; ``now`` is any clock that does not go back."""

    def __init__(self, snapshot: DatasetSnapshot) -> None:
        self.definition = snapshot.definition
        self._snapshot = snapshot
        self._returned = OrderedDict((piece.key, piece) for piece in snapshot.returned)
        self._leases = OrderedDict((lease.id, lease) for lease in snapshot.leases)
        self._lease_of = {lease.piece.key: lease.id for lease in snapshot.leases}
        self._held: dict[str, set[int]] = {}
        for lease in snapshot.leases:
            self._held.setdefault(lease.worker, set()).add(lease.id)
        self._open = Counter(
            [epoch for epoch, _ in self._returned] + [epoch for epoch, _ in self._lease_of]
        )
        self._layout = (
            None if isinstance(snapshot.definition, Stream) else ShardLayout(snapshot.definition)
        )
        if isinstance(snapshot.definition, Stream) and not snapshot.heads:
            snapshot.heads = {
                name: PartitionOffsets(start, start)
                for name, start in snapshot.definition.partitions.items()
            }

    def snapshot(self) -> DatasetSnapshot:
        """Return the serializable state. It shares pieces with this object: encode it first."""
        self._snapshot.returned = list(self._returned.values())
        self._snapshot.leases = list(self._leases.values())
        return self._snapshot

    # Leasing

    def take(self, request: TakeShards, now: float) -> TakenShards:
        """Lease shards, returned ones first."""
        if request.request and (again := self._repeated(request)):
            return again
        shards: list[Shard] = []
        while len(shards) < request.count:
            piece = self._next_piece(request.through_epoch)
            if piece is None:
                break
            shards.append(self._lease(piece, request.worker, now))
        if not shards:
            return TakenShards(self._why_none(request.worker, request.through_epoch))
        if request.request:
            self._snapshot.answers[request.worker] = (
                request.request,
                [shard.lease for shard in shards],
            )
        return TakenShards(Supply.GIVEN, tuple(shards))

    def _repeated(self, event: TakeShards) -> TakenShards | None:
        request, leases = self._snapshot.answers.get(event.worker, (0, []))
        if request != event.request:
            return None
        shards = [self._leases[one].shard() for one in leases if one in self._leases]
        return TakenShards(Supply.GIVEN, tuple(shards)) if shards else None

    def _next_piece(self, through_epoch: int | None) -> ShardRemainder | None:
        for key in self._returned:
            if through_epoch is None or key[0] <= through_epoch:
                return self._returned.pop(key)
        piece = self._cut(through_epoch)
        if piece is not None:
            self._open[piece.epoch] += 1
        return piece

    def _cut(self, through_epoch: int | None) -> ShardRemainder | None:
        snapshot = self._snapshot
        if self._layout is None:
            return self._cut_stream()
        if snapshot.position >= self._layout.shards:
            if not self._has_next_epoch():
                return None
            if through_epoch is not None and snapshot.epoch >= through_epoch:
                return None
            snapshot.epoch, snapshot.position = snapshot.epoch + 1, 0
        elif through_epoch is not None and snapshot.epoch > through_epoch:
            return None
        number = self._layout.shard_number(snapshot.epoch, snapshot.position)
        snapshot.position += 1
        return ShardRemainder(snapshot.epoch, number, *self._layout.shard_span(number))

    def _has_next_epoch(self) -> bool:
        layout = self._layout
        if layout is None or not layout.shards:
            return False
        return layout.definition.epochs == 0 or self._snapshot.epoch + 1 < layout.definition.epochs

    def _cut_stream(self) -> ShardRemainder | None:
        offsets = self._snapshot.heads
        if not offsets:
            return None
        name = max(offsets, key=lambda one: offsets[one].end - offsets[one].next)
        head = offsets[name]
        if head.next >= head.end:
            return None
        start, head.next = head.next, min(head.end, head.next + self.definition.shard_size)
        self._snapshot.position += 1
        return ShardRemainder(0, self._snapshot.position - 1, start, head.next, name)

    def _lease(self, piece: ShardRemainder, worker: str, now: float) -> Shard:
        identity = self._snapshot.next_lease
        self._snapshot.next_lease += 1
        lease = ShardLease(identity, worker, now + self.definition.lease_s, piece)
        self._leases[identity] = lease
        self._lease_of[piece.key] = identity
        self._held.setdefault(worker, set()).add(identity)
        return lease.shard()

    def _why_none(self, worker: str, through_epoch: int | None) -> Supply:
        if self._held.get(worker):
            return Supply.REPORT_FIRST
        return Supply.END if self._ended(through_epoch) else Supply.WAIT

    def _ended(self, through_epoch: int | None) -> bool:
        snapshot = self._snapshot
        if self._layout is None:
            read = all(head.next >= head.end for head in snapshot.heads.values())
            return snapshot.closed and read and not self._open
        if through_epoch is not None and snapshot.epoch > through_epoch:
            return all(epoch > through_epoch for epoch in self._open)
        cut = snapshot.position >= self._layout.shards
        last = not self._has_next_epoch()
        if through_epoch is not None:
            last = last or snapshot.epoch >= through_epoch
            return cut and last and all(epoch > through_epoch for epoch in self._open)
        return cut and last and not self._open

    # Results and lost leases

    def report(self, report: ShardReport, now: float) -> bool:
        """Record the results of a worker. Returns whether anything changed."""
        changed = False
        for progress in report.progress:
            changed |= self._advance(report.worker, progress.lease, progress.position, now)
        for identity in report.done:
            changed |= self._finish(report.worker, identity)
        for failed in report.failed:
            lease = self._of(report.worker, failed.lease)
            if lease is not None:
                self._give_back(lease, failed.reason or "failed", is_loss=False)
                changed = True
        return changed

    def _of(self, worker: str, identity: int) -> ShardLease | None:
        lease = self._leases.get(identity)
        return lease if lease is not None and lease.worker == worker else None

    def _advance(self, worker: str, identity: int, position: int, now: float) -> bool:
        lease = self._of(worker, identity)
        if lease is None:
            return False
        piece = lease.piece
        lease.deadline = now + self.definition.lease_s
        self._leases.move_to_end(identity)
        reached = max(piece.start, min(position, piece.end))
        self._snapshot.done_records += reached - piece.start
        piece.start = reached
        return True

    def _finish(self, worker: str, identity: int) -> bool:
        lease = self._of(worker, identity)
        if lease is not None:
            self._drop(lease)
            self._count_done(lease.piece)
            return True
        key = self._snapshot.late.pop(identity, None)
        if key is None:
            return False
        piece = self._returned.pop(key, None)
        if piece is None and key in self._lease_of:
            other = self._leases[self._lease_of[key]]
            self._drop(other)
            piece = other.piece
        if piece is not None:
            self._count_done(piece)
        return piece is not None

    def _count_done(self, piece: ShardRemainder) -> None:
        self._snapshot.done_shards += 1
        self._snapshot.done_records += piece.end - piece.start
        self._close(piece)

    def _close(self, piece: ShardRemainder) -> None:
        self._open[piece.epoch] -= 1
        if not self._open[piece.epoch]:
            del self._open[piece.epoch]
        if piece.losses and self._snapshot.late:
            late = self._snapshot.late
            for identity in [one for one, key in late.items() if key == piece.key]:
                del late[identity]

    def _drop(self, lease: ShardLease) -> None:
        del self._leases[lease.id]
        del self._lease_of[lease.piece.key]
        leases = self._held[lease.worker]
        leases.discard(lease.id)
        if not leases:
            del self._held[lease.worker]

    def _give_back(self, lease: ShardLease, reason: str, *, is_loss: bool) -> None:
        self._drop(lease)
        piece = lease.piece
        if is_loss:
            piece.losses += 1
            self._snapshot.late[lease.id] = piece.key
        else:
            piece.failures += 1
        piece.reasons = (*piece.reasons, f"{lease.worker}: {reason}")[-MAX_REASONS:]
        if piece.start >= piece.end:
            self._count_done(piece)
        elif (
            piece.failures >= self.definition.max_failures
            or piece.losses >= self.definition.max_losses
        ):
            self._snapshot.dead.append(piece.dead_letter())
            self._close(piece)
        else:
            self._returned[piece.key] = piece

    def release(self, owner: str) -> bool:
        """Take back the leases of a worker or node. Returns whether there were any."""
        prefix = owner + "/"
        owners = [worker for worker in self._held if worker == owner or worker.startswith(prefix)]
        for worker in owners:
            for identity in sorted(self._held[worker]):
                self._give_back(self._leases[identity], WORKER_GONE, is_loss=True)
        for worker in [
            one for one in self._snapshot.answers if one == owner or one.startswith(prefix)
        ]:
            del self._snapshot.answers[worker]
        return bool(owners)

    def expire(self, now: float) -> bool:
        """Take back expired leases. Returns whether there were any."""
        overdue = False
        while self._leases:
            lease = next(iter(self._leases.values()))
            if lease.deadline > now:
                break
            self._give_back(lease, TIMED_OUT, is_loss=True)
            overdue = True
        return overdue

    def resume(self, now: float) -> None:
        """Restart the time of all leases."""
        for lease in self._leases.values():
            lease.deadline = now + self.definition.lease_s

    @property
    def deadline(self) -> float | None:
        """The next time at which a lease expires."""
        return next(iter(self._leases.values())).deadline if self._leases else None

    @property
    def next_lease(self) -> int:
        return self._snapshot.next_lease

    # Streams, dead letters, checkpoints

    def extend(self, partition: str, end: int) -> bool:
        """Extend a partition; a new one starts at 0. Returns whether it changed."""
        head = self._snapshot.heads.setdefault(partition, PartitionOffsets(0, 0))
        changed = end > head.end
        head.end = max(head.end, end)
        return changed

    def close(self) -> bool:
        """End a stream. Returns whether it was open."""
        changed = not self._snapshot.closed
        self._snapshot.closed = True
        return changed

    @property
    def is_closed(self) -> bool:
        return self._snapshot.closed

    def revive(self) -> bool:
        """Make dead letters available again. Returns whether there were any."""
        dead, self._snapshot.dead = self._snapshot.dead, []
        for one in dead:
            piece = ShardRemainder(one.epoch, one.number, one.start, one.end, one.partition)
            self._returned[piece.key] = piece
            self._open[piece.epoch] += 1
        return bool(dead)

    def checkpoint(self) -> DatasetSnapshot:
        """Return what a training checkpoint must contain: all pieces that are not done."""
        snapshot = self._snapshot
        waiting = [*(lease.piece for lease in self._leases.values()), *self._returned.values()]
        return DatasetSnapshot(
            definition=snapshot.definition,
            epoch=snapshot.epoch,
            position=snapshot.position,
            heads=snapshot.heads,
            closed=snapshot.closed,
            returned=[piece for piece in waiting if piece.start < piece.end],
            dead=snapshot.dead,
            done_shards=snapshot.done_shards,
            done_records=snapshot.done_records,
            next_lease=snapshot.next_lease,
        )

    def state(self) -> DatasetState:
        snapshot, layout = self._snapshot, self._layout
        fresh = (
            sum(-(-(h.end - h.next) // self.definition.shard_size) for h in snapshot.heads.values())
            if layout is None
            else layout.shards - snapshot.position
        )
        return DatasetState(
            name=self.definition.name,
            purpose=self.definition.purpose,
            epoch=snapshot.epoch,
            epochs=0 if layout is None else layout.definition.epochs,
            waiting=fresh + len(self._returned),
            leased=len(self._leases),
            done_shards=snapshot.done_shards,
            done_records=snapshot.done_records,
            dead=tuple(snapshot.dead),
            ended=self._ended(None),
            committed=self._committed(),
        )

    def _committed(self) -> dict[str, int]:
        committed = {name: head.next for name, head in self._snapshot.heads.items()}
        for piece in self._pieces() if committed else ():
            committed[piece.partition] = min(committed[piece.partition], piece.start)
        return committed

    def _pieces(self) -> Iterable[ShardRemainder]:
        yield from self._returned.values()
        yield from (lease.piece for lease in self._leases.values())
