"""Where a training script gets its shards: from the job's master, or a ledger in its own process.

Without a master in the environment the process's own ledger serves a script that runs alone; its
state does not survive the process. Several processes need a master.
"""

import os
import threading
import time
from collections.abc import Mapping
from typing import Protocol

from gangline.elastic.protocol.blocking_client import BlockingClient
from gangline.elastic.protocol.channel import read_job_secret
from gangline.elastic.protocol.client import ClientIdentity
from gangline.elastic.protocol.messages import (
    DatasetStateReply,
    DatasetStateRequest,
    ShardCheckpointReply,
    ShardCheckpointRequest,
    ShardReply,
    ShardRequest,
)
from gangline.elastic.protocol.wire import RequestRefusedError
from gangline.elastic.shards.events import (
    DatasetState,
    LedgerAnswer,
    LedgerEvent,
    Supply,
    TakenShards,
)
from gangline.elastic.shards.ledger import ShardLedger
from gangline.elastic.variables import LOCAL_MASTER_VARIABLE

MASTER_VARIABLES = ("GANGLINE_MASTER_ADDR", "DLROVER_MASTER_ADDR", LOCAL_MASTER_VARIABLE)
"""Environment variables that may hold host:port of the master; the first that is set counts."""

MASTER_TIMEOUT_S = 600.0
"""How long a script waits for an absent master before an error. A master is restarted within
seconds; a script that gives up earlier loses more than it gains.
"""


class ShardSource(Protocol):
    """Access to a ledger of shards. Its calls may block while the master is absent."""

    def apply(self, event: LedgerEvent, wait_s: float = 0.0) -> LedgerAnswer:
        """Apply an event; a `Take` may wait for this time while shards may become available."""
        ...

    def checkpoint(self, dataset: str) -> bytes | None:
        """Return the position in a data set, or None if there is none of this name."""
        ...

    def state(self, dataset: str) -> DatasetState | None:
        """Return the progress of a data set, or None if there is none of this name."""
        ...

    def close(self) -> None:
        """End the connection, if there is one. The next call makes another."""
        ...


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
        request = ShardCheckpointRequest(dataset=dataset)
        try:
            return self._client.ask(
                request, ShardCheckpointReply, timeout_s=MASTER_TIMEOUT_S
            ).content
        except RequestRefusedError as error:
            _raise_unless_unknown(error)
            return None

    def state(self, dataset: str) -> DatasetState | None:
        request = DatasetStateRequest(dataset=dataset)
        try:
            return self._client.ask(request, DatasetStateReply, timeout_s=MASTER_TIMEOUT_S).state
        except RequestRefusedError as error:
            _raise_unless_unknown(error)
            return None

    def close(self) -> None:
        self._client.close()


def _raise_unless_unknown(error: RequestRefusedError) -> None:
    if error.reason != "UnknownDataset":
        raise error


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
