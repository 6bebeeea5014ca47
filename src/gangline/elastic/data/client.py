"""The data client of training scripts: takes shards, reports batches, keeps the position.

    client = ShardingClient("corpus", batch_size=32, dataset_size=1_000_000, shuffle=True)
    while shard := client.fetch_shard():
        for batch in batches_of(client.records(shard)):
            train(batch)
            client.report_batch_done()

Names and parameters are those of DLRover's client where it has them. A script that is killed loses
nothing: what it did not report goes to others, or to itself when it is back.
"""

import base64
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Self

from gangline.elastic.data.dataset import (
    Definition,
    Purpose,
    Shard,
    Shuffle,
    Stream,
    Table,
    records,
)
from gangline.elastic.data.events import (
    Accepted,
    Close,
    DatasetState,
    Event,
    Extend,
    Failed,
    Forget,
    Progress,
    Refused,
    Register,
    Release,
    Report,
    Restore,
    Revive,
    Supply,
    Take,
    Taken,
)
from gangline.elastic.data.source import ShardSource, source_of

WAIT_S = 30.0
"""How long the master may hold one question for shards."""

_TEXT = "text"


class ShardRefusedError(Exception):
    """The master refuses what was asked; the message says why."""


class ShardingClient:
    """One process's access to one data set.

    Args:
        dataset_name: names the data set in the job; the same for all processes.
        batch_size: records of one batch; what `report_batch_done` counts unless told otherwise.
        num_epochs: how often all records are gone through; 0 without end.
        dataset_size: how many records there are; not needed with ``definition``.
        shuffle: shards in a new order in each epoch; records, for ``storage_type`` "text".
        task_type: "training", "evaluation" or "prediction".
        num_minibatches_per_shard: batches of one shard.
        storage_type: "text", or anything else for tables.
        seed: of the order.
        lease_s: see ``Dataset``.
        definition: the data set in full, instead of the parameters above (files, streams).
        source: where shards come from; None: the environment says.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the parameters that scripts know
        self,
        dataset_name: str = "",
        batch_size: int = 1,
        num_epochs: int = 1,
        dataset_size: int = 0,
        shuffle: bool = False,
        task_type: str = "training",
        num_minibatches_per_shard: int = 10,
        storage_type: str = "",
        *,
        seed: int = 0,
        lease_s: float = 1800.0,
        definition: Definition | None = None,
        source: ShardSource | None = None,
        worker: str | None = None,
    ) -> None:
        self.batch_size = batch_size
        shuffled = Shuffle.RECORDS if storage_type.lower() == _TEXT else Shuffle.SHARDS
        self.definition: Definition = definition or Table(
            name=dataset_name,
            shard_size=batch_size * (num_minibatches_per_shard or 100),
            lease_s=lease_s,
            purpose=Purpose(task_type.lower()),
            size=dataset_size,
            epochs=max(0, num_epochs),
            shuffle=shuffled if shuffle else Shuffle.NONE,
            seed=seed,
        )
        self._source = source or source_of()
        self._name = self.definition.name
        self._worker = f"{worker or worker_name(os.environ)}/{self._name}"
        self._request = 0
        self._open: deque[_Open] = deque()
        self._ended = False
        self._kept: bytes | None = None
        try:
            # What an earlier process of this name held is not being worked on any more.
            self._tell(Release(self._worker))
            self._register()
        except ShardRefusedError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection to the master. Shards that are held go to others in time."""
        self._source.close()

    @property
    def dataset_name(self) -> str:
        """The data set's name."""
        return self._name

    @property
    def ended(self) -> bool:
        """Whether all records of all epochs are done, by whomever."""
        return self._ended

    def fetch_shard(self, through_epoch: int | None = None) -> Shard | None:
        """Return the next shard; wait for those that others may give back.

        None when there is no more. Also when this process still holds shards that it has not
        reported, and there are no others: finish these, then ask again, unless `ended`.
        """
        self._request += 1
        ask = Take(self._name, self._worker, self._request, 1, through_epoch)
        while True:
            taken = self._source.apply(ask, WAIT_S)
            if not isinstance(taken, Taken):
                raise ShardRefusedError(f"asked for shards, got {taken}")
            if taken.supply is Supply.GIVEN:
                self._open.append(_Open(taken.shards[0], time.monotonic()))
                return taken.shards[0]
            if taken.supply is Supply.UNKNOWN:
                self._register()
            elif taken.supply is not Supply.WAIT:
                self._ended = taken.supply is Supply.END and through_epoch is None
                return None

    def records(self, shard: Shard) -> Iterator[int]:
        """Return the records of a shard in the order in which they are to be read."""
        return records(self.definition, shard)

    def report_batch_done(self, batch_size: int | None = None) -> bool:
        """Say that so many more records are trained on; those of the oldest shards held.

        Returns whether a shard was finished by this.
        """
        left = self.batch_size if batch_size is None else batch_size
        done: list[int] = []
        while left > 0 and self._open:
            first = self._open[0]
            used = min(left, len(first.shard) - first.done)
            first.done += used
            left -= used
            if first.done == len(first.shard):
                done.append(self._open.popleft().shard.lease)
        overdue = self._overdue()
        if done or overdue:
            self._report(Report(self._name, self._worker, tuple(done), (), overdue))
        return bool(done)

    def report_shard_failed(self, reason: str = "") -> None:
        """Give the oldest shard held back: its records cannot be worked on here."""
        if self._open:
            failed = Failed(self._open.popleft().shard.lease, reason[:1000])
            self._report(Report(self._name, self._worker, failed=(failed,)))

    def report_all_task_error(self, err_msg: str = "") -> None:
        """Give all shards held back."""
        while self._open:
            self.report_shard_failed(err_msg)

    def flush(self) -> None:
        """Report how far into its shards this process is; before a checkpoint is taken."""
        progress = tuple(one.progress() for one in self._open if one.done)
        if progress:
            self._report(Report(self._name, self._worker, progress=progress))

    def get_shard_checkpoint(self) -> str:
        """Return the position of all processes in the data set, to be kept with the model.

        Each process shall `flush` before one of them asks; with a barrier in between, the records
        that the model has seen and those of the position are exactly the same.
        """
        self.flush()
        content = self._source.checkpoint(self._name)
        if content is None:
            raise ShardRefusedError(f"the master does not know the data set {self._name}")
        self._kept = content
        return base64.b64encode(content).decode()

    def restore_shard_from_checkpoint(self, checkpoint: str) -> bool:
        """Let all processes go on from a position. Of one job, one process shall do so."""
        self._kept = base64.b64decode(checkpoint)
        self._tell(Restore(self._kept))
        self._open.clear()
        self._ended = False
        return True

    def reset_dataset(self) -> None:
        """Begin the data set anew, for all processes."""
        self._tell(Forget(self._name))
        self._open.clear()
        self._ended, self._kept = False, None
        self._register()

    def state(self) -> DatasetState | None:
        """Say how far the data set is."""
        return self._source.state(self._name)

    def extend(self, partition: str, end: int) -> None:
        """Say that a stream's partition now reaches to ``end``; whoever fills it should."""
        self._tell(Extend(self._name, partition, end))

    def close_stream(self) -> None:
        """Say that the stream will not grow any more: it ends when all is done."""
        self._tell(Close(self._name))

    def revive(self) -> None:
        """Have the dead letters handed out once more."""
        self._tell(Revive(self._name))
        self._ended = False

    def get_total_sample_num(self) -> int:
        """Return how many records an epoch has; 0 for streams."""
        return 0 if isinstance(self.definition, Stream) else self.definition.size

    def get_minibatch_count_per_epoch(self) -> int:
        """Return how many batches an epoch has for all processes together."""
        return -(-self.get_total_sample_num() // self.batch_size)

    def _overdue(self) -> tuple[Progress, ...]:
        """Renew leases that have lived for a third of their time."""
        now = time.monotonic()
        due = [one for one in self._open if now - one.renewed > self.definition.lease_s / 3]
        for one in due:
            one.renewed = now
        return tuple(one.progress() for one in due)

    def _report(self, report: Report) -> None:
        # An answer that the data set is unknown loses nothing: what is not booked comes again.
        self._source.apply(report)

    def _register(self) -> None:
        """Make the data set known; to a master that forgot all, with the last known position."""
        if self._kept is not None:
            self._tell(Restore(self._kept))
        else:
            self._tell(Register(self.definition))

    def _tell(self, event: Event) -> Accepted:
        answer = self._source.apply(event)
        if isinstance(answer, Refused):
            raise ShardRefusedError(answer.message)
        assert isinstance(answer, Accepted)
        return answer


class IndexShardingClient(ShardingClient):
    """Gives single records, for data sets that are read by their number."""

    _ahead: Iterator[int] = iter(())

    def fetch_sample_index(self) -> int | None:
        """Return the next record, or None as ``fetch_shard`` does."""
        for record in self._ahead:
            return record
        shard = self.fetch_shard()
        if shard is None:
            return None
        self._ahead = self.records(shard)
        return next(self._ahead)

    def indices(self) -> Iterator[int]:
        """Give records until there are no more for now (see ``fetch_shard``)."""
        while (index := self.fetch_sample_index()) is not None:
            yield index

    def clear_shard_queue(self) -> None:
        """Forget records that were not given yet; after the position was set back."""
        self._ahead = iter(())

    def restore_shard_from_checkpoint(self, checkpoint: str) -> bool:
        """Let all processes go on from a position, and forget what was taken before."""
        self.clear_shard_queue()
        return super().restore_shard_from_checkpoint(checkpoint)


class _Open:
    """A shard in hand."""

    def __init__(self, shard: Shard, now: float) -> None:
        self.shard, self.renewed = shard, now
        self.done = 0
        """Records from its start that are trained on."""

    def progress(self) -> Progress:
        """Return what is reported about it."""
        return Progress(self.shard.lease, self.shard.start + self.done)


def worker_name(environment: Mapping[str, str]) -> str:
    """Return ``NODE/LOCAL_RANK``: who holds shards, the same after a restart in place.

    The master takes back what ``NODE`` or ``NODE/LOCAL_RANK`` held when it hears of their end.
    """
    node = environment.get("NODE_ID") or environment.get("GROUP_RANK") or socket.gethostname()
    return f"{node}/{environment.get('LOCAL_RANK', '0')}"
