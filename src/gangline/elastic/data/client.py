"""The data client of training scripts: takes shards, reports batches, saves the position.

    client = ShardingClient("corpus", batch_size=32, dataset_size=1_000_000, shuffle=True)
    while shard := client.fetch_shard():
        for batch in batches_of(client.records(shard)):
            train(batch)
            client.report_batch_done()

Names and parameters are those of DLRover's client where it has them. A killed script loses nothing:
shards that it did not report are leased to others, or to itself after its restart. The ledger of
shards is the master's; without a master one in the process serves a script that runs alone.
"""

import base64
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Protocol, Self, TypeVar

from gangline.elastic.protocol.channel import read_job_secret
from gangline.elastic.protocol.client import BlockingClient, ClientIdentity
from gangline.elastic.protocol.messages import (
    DatasetStateReply,
    DatasetStateRequest,
    ProtocolMessage,
    ShardCheckpointReply,
    ShardCheckpointRequest,
    ShardReply,
    ShardRequest,
)
from gangline.elastic.protocol.wire import RequestRefusedError
from gangline.elastic.shards.dataset import (
    DatasetDefinition,
    Purpose,
    Shard,
    Shuffle,
    Stream,
    Table,
    records_of,
)
from gangline.elastic.shards.events import (
    CloseStream,
    DatasetState,
    EventAccepted,
    EventRefused,
    ExtendStream,
    ForgetDataset,
    LedgerAnswer,
    LedgerEvent,
    RegisterDataset,
    ReleaseWorker,
    RestorePosition,
    RetryDeadLetters,
    ShardFailure,
    ShardProgress,
    ShardReport,
    Supply,
    TakenShards,
    TakeShards,
)
from gangline.elastic.shards.ledger import ShardLedger
from gangline.elastic.variables import (
    LOCAL_MASTER_VARIABLE,
    SLOT_VARIABLE,
    SUCCESSOR_VARIABLE,
    node_number,
)

R = TypeVar("R", bound=ProtocolMessage)
MASTER_VARIABLES = ("GANGLINE_MASTER_ADDR", "DLROVER_MASTER_ADDR", LOCAL_MASTER_VARIABLE)
"""Environment variables that may hold host:port of the master; the first that is set counts."""

MASTER_TIMEOUT_S = 600.0
"""How long a script waits for an absent master before an error. A master is restarted within
seconds; a script that gives up earlier loses more than it gains.
"""
WAIT_S = 30.0
"""Longest time that the master may delay one reply to a request for shards."""
_TEXT = "text"


class ShardSource(Protocol):
    """Access to a ledger of shards. Its calls may block while the master is absent."""

    def apply(self, event: LedgerEvent, wait_s: float = 0.0) -> LedgerAnswer:
        """Apply an event; a `Take` may wait for this time while shards may become available."""

    def checkpoint(self, dataset: str) -> bytes | None:
        """Return the position in a data set, or None if there is none of this name."""

    def state(self, dataset: str) -> DatasetState | None:
        """Return the progress of a data set, or None if there is none of this name."""

    def close(self) -> None:
        """End the connection, if there is one. The next call makes another."""


class LocalShardSource:
    """A ledger in this process, for any number of its threads."""

    def __init__(self, ledger: ShardLedger | None = None) -> None:
        self.ledger = ledger or ShardLedger()
        self._changed = threading.Condition()

    def apply(self, event: LedgerEvent, wait_s: float = 0.0) -> LedgerAnswer:
        """Apply an event; a `Take` waits for other threads to give back or add shards."""
        until = time.monotonic() + wait_s
        with self._changed:
            while True:
                outcome = self.ledger.apply(event, time.monotonic())
                if outcome.changed:
                    self._changed.notify_all()
                left = min(until, self.ledger.deadline or until) - time.monotonic()
                if outcome.answer != TakenShards(Supply.WAIT) or time.monotonic() >= until:
                    return outcome.answer
                self._changed.wait(max(left, 0.001))

    def checkpoint(self, dataset: str) -> bytes | None:
        with self._changed:
            return self.ledger.checkpoint(dataset)

    def state(self, dataset: str) -> DatasetState | None:
        with self._changed:
            return self.ledger.state(dataset)

    def close(self) -> None: ...


class MasterShardSource:
    """The ledger of the job's master.

    Calls raise ``MasterUnreachableError`` if the master is absent for too long.
    """

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def apply(self, event: LedgerEvent, wait_s: float = 0.0) -> LedgerAnswer:
        request = ShardRequest(event=event, wait_s=wait_s)
        return self._client.ask(request, ShardReply, timeout_s=MASTER_TIMEOUT_S + wait_s).answer

    def checkpoint(self, dataset: str) -> bytes | None:
        reply = self._ask_known(ShardCheckpointRequest(dataset=dataset), ShardCheckpointReply)
        return reply.content if reply else None

    def state(self, dataset: str) -> DatasetState | None:
        reply = self._ask_known(DatasetStateRequest(dataset=dataset), DatasetStateReply)
        return reply.state if reply else None

    def _ask_known(self, request: ProtocolMessage, kind: type[R]) -> R | None:
        """Return the reply; None if the master does not know the data set."""
        try:
            return self._client.ask(request, kind, timeout_s=MASTER_TIMEOUT_S)
        except RequestRefusedError as error:
            if error.reason != "UnknownDataset":
                raise
            return None

    def close(self) -> None:
        self._client.close()


def open_shard_source(environment: Mapping[str, str] = os.environ) -> ShardSource:
    """Return the master that the environment names, else a ledger of this process.

    Raises:
        LookupError: there is no master, but other processes need the same data.
    """
    address = next((environment[one] for one in MASTER_VARIABLES if environment.get(one)), "")
    if not address:
        if environment.get("WORLD_SIZE", "1") != "1":
            raise LookupError(
                "the processes of a job share its data through their master, and there is none: "
                "start them with 'gangline run'"
            )
        return LocalShardSource()
    # The launcher uses the run id as the job's name, also for the master.
    job = environment.get("TORCHELASTIC_RUN_ID") or environment.get("ELASTIC_JOB_NAME", "")
    return MasterShardSource(
        BlockingClient(address, read_job_secret(environment, job), ClientIdentity(job=job))
    )


class ShardRefusedError(Exception):
    """The master refuses the request; the message says why."""


class ShardingClient:
    """Access of one process to one data set.

    Args:
        dataset_name: name of the data set in the job; the same for all processes.
        batch_size: records of one batch; the default of `report_batch_done`.
        num_epochs: number of passes over all records; 0 without end.
        dataset_size: number of records; not needed with ``definition``.
        shuffle: shards in a new order in each epoch; records, for ``storage_type`` "text".
        task_type: "training", "evaluation" or "prediction".
        num_minibatches_per_shard: batches of one shard.
        storage_type: "text", or anything else for tables.
        seed: of the order.
        lease_s: see ``Dataset``.
        definition: the complete data set, in place of the parameters above (files, streams).
        source: where shards come from; None: as the environment says.
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
        definition: DatasetDefinition | None = None,
        source: ShardSource | None = None,
        worker: str | None = None,
    ) -> None:
        self.batch_size = batch_size
        shuffled = Shuffle.RECORDS if storage_type.lower() == _TEXT else Shuffle.SHARDS
        self.definition: DatasetDefinition = definition or Table(
            name=dataset_name,
            shard_size=batch_size * (num_minibatches_per_shard or 100),
            lease_s=lease_s,
            purpose=Purpose(task_type.lower()),
            size=dataset_size,
            epochs=max(0, num_epochs),
            shuffle=shuffled if shuffle else Shuffle.NONE,
            seed=seed,
        )
        self._source = source or open_shard_source()
        self._name = self.definition.name
        self._worker = f"{worker or worker_name(os.environ)}/{self._name}"
        self._request = 0
        self._open: deque[_HeldShard] = deque()
        self._ended = False
        self._kept: bytes | None = None
        try:
            # End the leases of an earlier process with this name.
            self._apply(ReleaseWorker(self._worker))
            self._register()
        except ShardRefusedError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection to the master. The leases of this process expire in time."""
        self._source.close()

    def release(self, worker: str = "") -> None:
        """Give all leased shards back; of this client, or of another one that has ended."""
        if not worker:
            self._open.clear()
        self._apply(ReleaseWorker(worker or self._worker))

    @property
    def worker(self) -> str:
        """The owner of this client's leases."""
        return self._worker

    @property
    def dataset_name(self) -> str:
        """Name of the data set."""
        return self._name

    @property
    def ended(self) -> bool:
        """True if all records of all epochs are done, by any process."""
        return self._ended

    def fetch_shard(self, through_epoch: int | None = None) -> Shard | None:
        """Return the next shard; wait for shards that other processes may give back.

        None if there is no more. Also None if this process has shards that it has not reported, and
        there are no others: finish these, then call again, unless `ended`.
        """
        self._request += 1
        request = TakeShards(self._name, self._worker, self._request, 1, through_epoch)
        while True:
            taken = self._source.apply(request, WAIT_S)
            if not isinstance(taken, TakenShards):
                raise ShardRefusedError(f"asked for shards, got {taken}")
            if taken.supply is Supply.GIVEN:
                self._open.append(_HeldShard(taken.shards[0], time.monotonic()))
                return taken.shards[0]
            if taken.supply is Supply.UNKNOWN:
                self._register()
            elif taken.supply is not Supply.WAIT:
                self._ended = taken.supply is Supply.END and through_epoch is None
                return None

    def records(self, shard: Shard) -> Iterator[int]:
        """Return the records of a shard in reading order."""
        return records_of(self.definition, shard)

    def report_batch_done(self, batch_size: int | None = None) -> bool:
        """Report that training has used more records, of the oldest leased shards.

        Args:
            batch_size: the number of records; None for the client's batch size.

        Returns:
            True if a shard was finished by this.
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
            self._report(ShardReport(self._name, self._worker, tuple(done), (), overdue))
        return bool(done)

    def report_shard_failed(self, reason: str = "") -> None:
        """Return the oldest leased shard: its records cannot be processed here."""
        if self._open:
            failed = ShardFailure(self._open.popleft().shard.lease, reason[:1000])
            self._report(ShardReport(self._name, self._worker, failed=(failed,)))

    def report_all_task_error(self, err_msg: str = "") -> None:
        """Return all leased shards."""
        while self._open:
            self.report_shard_failed(err_msg)

    def flush(self) -> None:
        """Report the progress in all leased shards; call it before a checkpoint."""
        progress = tuple(one.progress() for one in self._open if one.done)
        if progress:
            self._report(ShardReport(self._name, self._worker, progress=progress))

    def get_shard_checkpoint(self) -> str:
        """Return the position of all processes in the data set, to be saved with the model.

        Each process must `flush` before one of them calls this. With a barrier in between, the
        position has exactly the records that the model has seen.
        """
        self.flush()
        content = self._source.checkpoint(self._name)
        if content is None:
            raise ShardRefusedError(f"the master does not know the data set {self._name}")
        self._kept = content
        return base64.b64encode(content).decode()

    def restore_shard_from_checkpoint(self, checkpoint: str) -> bool:
        """Let all processes continue from a position. One process of a job calls this."""
        self._kept = base64.b64decode(checkpoint)
        self._apply(RestorePosition(self._kept))
        self._open.clear()
        self._ended = False
        return True

    def reset_dataset(self) -> None:
        """Restart the data set, for all processes."""
        self._apply(ForgetDataset(self._name))
        self._open.clear()
        self._ended, self._kept = False, None
        self._register()

    def state(self) -> DatasetState | None:
        """Return the progress of the data set."""
        return self._source.state(self._name)

    def extend(self, partition: str, end: int) -> None:
        """Report that a stream's partition reaches to ``end``; for the stream's producer."""
        self._apply(ExtendStream(self._name, partition, end))

    def close_stream(self) -> None:
        """Report that the stream will not grow any more: it ends when all is done."""
        self._apply(CloseStream(self._name))

    def revive(self) -> None:
        """Make dead letters available again."""
        self._apply(RetryDeadLetters(self._name))
        self._ended = False

    def get_total_sample_num(self) -> int:
        """Return the number of records of an epoch; 0 for streams."""
        return 0 if isinstance(self.definition, Stream) else self.definition.size

    def get_minibatch_count_per_epoch(self) -> int:
        """Return the number of batches of an epoch, for all processes together."""
        return -(-self.get_total_sample_num() // self.batch_size)

    def _overdue(self) -> tuple[ShardProgress, ...]:
        """Renew leases after a third of their time."""
        now = time.monotonic()
        due = [one for one in self._open if now - one.renewed > self.definition.lease_s / 3]
        for one in due:
            one.renewed = now
        return tuple(one.progress() for one in due)

    def _report(self, report: ShardReport) -> None:
        # A reply that the data set is unknown is no loss: unreported records are leased again.
        self._source.apply(report)

    def _register(self) -> None:
        """Register the data set; with a master that lost its state, at the last known position."""
        if self._kept is not None:
            self._apply(RestorePosition(self._kept))
        else:
            self._apply(RegisterDataset(self.definition))

    def _apply(self, event: LedgerEvent) -> EventAccepted:
        answer = self._source.apply(event)
        if isinstance(answer, EventRefused):
            raise ShardRefusedError(answer.message)
        assert isinstance(answer, EventAccepted)
        return answer


class IndexShardingClient(ShardingClient):
    """Yields single record numbers, for data sets that are read by number."""

    _ahead: Iterator[int] = iter(())

    def fetch_sample_index(self) -> int | None:
        """Return the next record, or None like ``fetch_shard``."""
        for record in self._ahead:
            return record
        shard = self.fetch_shard()
        if shard is None:
            return None
        self._ahead = self.records(shard)
        return next(self._ahead)

    def indices(self) -> Iterator[int]:
        """Yield records until there are no more at present (see ``fetch_shard``)."""
        while (index := self.fetch_sample_index()) is not None:
            yield index

    def clear_shard_queue(self) -> None:
        """Discard records that were not returned yet; call it after the position was reset."""
        self._ahead = iter(())

    def restore_shard_from_checkpoint(self, checkpoint: str) -> bool:
        """Let all processes continue from a position, and discard records taken before."""
        self.clear_shard_queue()
        return super().restore_shard_from_checkpoint(checkpoint)


class _HeldShard:
    def __init__(self, shard: Shard, now: float) -> None:
        self.shard, self.renewed = shard, now
        self.done = 0
        """Number of records from its start that training has used."""

    def progress(self) -> ShardProgress:
        return ShardProgress(self.shard.lease, self.shard.start + self.done)


def worker_name(environment: Mapping[str, str]) -> str:
    """Return ``NODE/LOCAL_RANK``, the owner of leases; the same after a restart in place.

    The master takes back the leases of ``NODE`` or ``NODE/LOCAL_RANK`` when it is informed of their
    end. A successor starts while another worker runs, so it has a name of its own.
    """
    node = node_number(environment) or environment.get("GROUP_RANK") or socket.gethostname()
    if SUCCESSOR_VARIABLE in environment:
        return f"{node}/slot-{environment[SLOT_VARIABLE]}"
    return f"{node}/{environment.get('LOCAL_RANK', '0')}"
