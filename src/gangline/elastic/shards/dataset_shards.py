"""The shards of one data set: which wait, which are leased to whom, which are done or given up.

A *piece* is what is left of a shard. It waits (new ones in the order of the epoch, returned ones
before them), is leased, and ends done or dead. The first worker that finishes a piece counts, also
after its lease expired; a second report is ignored.

Invariant: each record is counted exactly once, and processed at least once.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from gangline.elastic.shards.dataset import Shard, ShardLayout, Stream
from gangline.elastic.shards.events import (
    DatasetState,
    ShardReport,
    Supply,
    TakenShards,
    TakeShards,
)
from gangline.elastic.shards.snapshot import (
    DatasetSnapshot,
    PartitionOffsets,
    ShardLease,
    ShardRemainder,
)

MAX_REASONS = 5
"""Number of a piece's newest failure reasons that are stored."""

TIMED_OUT = "not reported in time"
WORKER_GONE = "its worker was lost"


class DatasetShards:
    """One data set. All methods are deterministic; ``now`` is any clock that does not go back."""

    def __init__(self, page: DatasetSnapshot) -> None:
        self.definition = page.definition
        self._page = page
        self._returned = OrderedDict((piece.key, piece) for piece in page.returned)
        self._leases = OrderedDict((lease.id, lease) for lease in page.leases)
        self._lease_of = {lease.piece.key: lease.id for lease in page.leases}
        self._held: dict[str, set[int]] = {}
        for lease in page.leases:
            self._held.setdefault(lease.worker, set()).add(lease.id)
        self._open = Counter(
            [epoch for epoch, _ in self._returned] + [epoch for epoch, _ in self._lease_of]
        )
        self._layout = None if isinstance(page.definition, Stream) else ShardLayout(page.definition)
        if isinstance(page.definition, Stream) and not page.heads:
            page.heads = {
                name: PartitionOffsets(start, start)
                for name, start in page.definition.partitions.items()
            }

    def snapshot(self) -> DatasetSnapshot:
        """Return the serializable state. It shares pieces with this object: encode it before the
        next call.
        """
        self._page.returned = list(self._returned.values())
        self._page.leases = list(self._leases.values())
        return self._page

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
            self._page.answers[request.worker] = (
                request.request,
                [shard.lease for shard in shards],
            )
        return TakenShards(Supply.GIVEN, tuple(shards))

    def _repeated(self, event: TakeShards) -> TakenShards | None:
        request, leases = self._page.answers.get(event.worker, (0, []))
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
        page = self._page
        if self._layout is None:
            return self._cut_stream()
        if page.position >= self._layout.shards:
            if not self._has_next_epoch():
                return None
            if through_epoch is not None and page.epoch >= through_epoch:
                return None
            page.epoch, page.position = page.epoch + 1, 0
        elif through_epoch is not None and page.epoch > through_epoch:
            return None
        number = self._layout.shard_number(page.epoch, page.position)
        page.position += 1
        return ShardRemainder(page.epoch, number, *self._layout.shard_span(number))

    def _has_next_epoch(self) -> bool:
        layout = self._layout
        if layout is None or not layout.shards:
            return False
        return layout.definition.epochs == 0 or self._page.epoch + 1 < layout.definition.epochs

    def _cut_stream(self) -> ShardRemainder | None:
        heads = self._page.heads
        if not heads:
            return None
        name = max(heads, key=lambda one: heads[one].end - heads[one].next)
        head = heads[name]
        if head.next >= head.end:
            return None
        start, head.next = head.next, min(head.end, head.next + self.definition.shard_size)
        self._page.position += 1
        return ShardRemainder(0, self._page.position - 1, start, head.next, name)

    def _lease(self, piece: ShardRemainder, worker: str, now: float) -> Shard:
        identity = self._page.next_lease
        self._page.next_lease += 1
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
        page = self._page
        if self._layout is None:
            read = all(head.next >= head.end for head in page.heads.values())
            return page.closed and read and not self._open
        if through_epoch is not None and page.epoch > through_epoch:
            return all(epoch > through_epoch for epoch in self._open)
        cut = page.position >= self._layout.shards
        last = not self._has_next_epoch()
        if through_epoch is not None:
            last = last or page.epoch >= through_epoch
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
        self._page.done_records += reached - piece.start
        piece.start = reached
        return True

    def _finish(self, worker: str, identity: int) -> bool:
        lease = self._of(worker, identity)
        if lease is not None:
            self._drop(lease)
            self._count_done(lease.piece)
            return True
        key = self._page.late.pop(identity, None)
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
        self._page.done_shards += 1
        self._page.done_records += piece.end - piece.start
        self._close(piece)

    def _close(self, piece: ShardRemainder) -> None:
        self._open[piece.epoch] -= 1
        if not self._open[piece.epoch]:
            del self._open[piece.epoch]
        if piece.losses and self._page.late:
            late = self._page.late
            for identity in [one for one, key in late.items() if key == piece.key]:
                del late[identity]

    def _drop(self, lease: ShardLease) -> None:
        del self._leases[lease.id]
        del self._lease_of[lease.piece.key]
        held = self._held[lease.worker]
        held.discard(lease.id)
        if not held:
            del self._held[lease.worker]

    def _give_back(self, lease: ShardLease, reason: str, *, is_loss: bool) -> None:
        self._drop(lease)
        piece = lease.piece
        if is_loss:
            piece.losses += 1
            self._page.late[lease.id] = piece.key
        else:
            piece.failures += 1
        piece.reasons = (*piece.reasons, f"{lease.worker}: {reason}")[-MAX_REASONS:]
        if piece.start >= piece.end:
            self._count_done(piece)
        elif (
            piece.failures >= self.definition.max_failures
            or piece.losses >= self.definition.max_losses
        ):
            self._page.dead.append(piece.dead_letter())
            self._close(piece)
        else:
            self._returned[piece.key] = piece

    def release(self, owner: str) -> bool:
        """Take back the leases of a worker, or of all workers of a node. Returns whether there were
        any.
        """
        prefix = owner + "/"
        gone = [worker for worker in self._held if worker == owner or worker.startswith(prefix)]
        for worker in gone:
            for identity in sorted(self._held[worker]):
                self._give_back(self._leases[identity], WORKER_GONE, is_loss=True)
        for worker in [one for one in self._page.answers if one == owner or one.startswith(prefix)]:
            del self._page.answers[worker]
        return bool(gone)

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
        return self._page.next_lease

    # Streams, dead letters, checkpoints

    def extend(self, partition: str, end: int) -> bool:
        """Extend a partition; a new one starts at 0. Returns whether it changed."""
        head = self._page.heads.setdefault(partition, PartitionOffsets(0, 0))
        changed = end > head.end
        head.end = max(head.end, end)
        return changed

    def close(self) -> bool:
        """End a stream. Returns whether it was open."""
        changed = not self._page.closed
        self._page.closed = True
        return changed

    @property
    def is_closed(self) -> bool:
        return self._page.closed

    def revive(self) -> bool:
        """Make dead letters available again. Returns whether there were any."""
        letters, self._page.dead = self._page.dead, []
        for one in letters:
            piece = ShardRemainder(one.epoch, one.number, one.start, one.end, one.partition)
            self._returned[piece.key] = piece
            self._open[piece.epoch] += 1
        return bool(letters)

    def checkpoint(self) -> DatasetSnapshot:
        """Return what a training checkpoint must contain: all pieces that are not done, leased or
        not.
        """
        page = self._page
        waiting = [*(lease.piece for lease in self._leases.values()), *self._returned.values()]
        return DatasetSnapshot(
            definition=page.definition,
            epoch=page.epoch,
            position=page.position,
            heads=page.heads,
            closed=page.closed,
            returned=[piece for piece in waiting if piece.start < piece.end],
            dead=page.dead,
            done_shards=page.done_shards,
            done_records=page.done_records,
            next_lease=page.next_lease,
        )

    def state(self) -> DatasetState:
        """Return the progress of the data set."""
        page, layout = self._page, self._layout
        fresh = (
            sum(-(-(h.end - h.next) // self.definition.shard_size) for h in page.heads.values())
            if layout is None
            else layout.shards - page.position
        )
        return DatasetState(
            name=self.definition.name,
            purpose=self.definition.purpose,
            epoch=page.epoch,
            epochs=0 if layout is None else layout.definition.epochs,
            waiting=fresh + len(self._returned),
            leased=len(self._leases),
            done_shards=page.done_shards,
            done_records=page.done_records,
            dead=tuple(page.dead),
            ended=self._ended(None),
            committed=self._committed(),
        )

    def _committed(self) -> dict[str, int]:
        committed = {name: head.next for name, head in self._page.heads.items()}
        for piece in self._pieces() if committed else ():
            committed[piece.partition] = min(committed[piece.partition], piece.start)
        return committed

    def _pieces(self) -> Iterable[ShardRemainder]:
        yield from self._returned.values()
        yield from (lease.piece for lease in self._leases.values())
