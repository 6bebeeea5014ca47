"""The state of the master that must survive the process, in a serializable form.

It includes the job's timeline; events that have not been published yet are held beside the state.
"""

from typing import Final

import msgspec

from gangline.elastic.master.state.clock import ClockReading
from gangline.elastic.master.state.goodput import GoodputAccount
from gangline.elastic.protocol.messages import JobEvent, NodeCommand, Reply
from gangline.elastic.rendezvous.rendezvous import RendezvousState
from gangline.elastic.shards.ledger import ShardLedger

VERSION: Final = 1
MAX_EVENTS = 500
MAX_REPLIES_PER_CLIENT = 64
"""For each client: the number of concurrent requests that it may repeat."""
MAX_CLIENTS = 4096


class PersistentState(msgspec.Struct):
    """The state beside the ledger of shards."""

    job: str = ""
    rendezvous: RendezvousState = msgspec.field(default_factory=RendezvousState)
    values: dict[str, bytes] = {}
    commands: dict[int, list[NodeCommand]] = {}
    """Commands that nodes have not confirmed yet."""
    next_command: int = 1
    attempts: dict[int, tuple[int, int]] = {}
    """Round and attempt of the running workers, by node."""
    events: list[JobEvent] = []
    first_event: int = 1
    """Number of the oldest event in the list."""
    account: GoodputAccount = msgspec.field(default_factory=GoodputAccount)
    down_s: float = 0.0
    """Total seconds without a master."""
    moment: ClockReading | None = None
    """The last clock reading in the journal."""
    moment_at: float = 0.0
    """The time of that reading on the job's clock."""
    replies: dict[str, dict[int, Reply]] = {}
    """Replies by client and request number, for requests that must not be applied twice."""


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    at: float
    kept: PersistentState
    ledger: bytes


class MasterState:
    """The persistent state and the ledger."""

    def __init__(
        self, persistent: PersistentState | None = None, ledger: ShardLedger | None = None
    ) -> None:
        self.persistent = persistent or PersistentState()
        self.ledger = ledger or ShardLedger()

    def snapshot(self, at: float) -> bytes:
        return msgspec.msgpack.encode(
            _Snapshot(VERSION, at, self.persistent, self.ledger.snapshot())
        )

    @staticmethod
    def from_snapshot(snapshot: bytes) -> "tuple[MasterState, float]":
        """Read a snapshot; return the state and the time at which it was written.

        Raises:
            ValueError: it cannot be read, or a newer version wrote it.
        """
        read = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        if read.version > VERSION:
            raise ValueError(
                f"a newer release wrote this state: version {read.version}, not {VERSION}"
            )
        return MasterState(read.kept, ShardLedger.from_snapshot(read.ledger)), read.at


_LONGEST_MESSAGE = 4096


class Timeline:
    """Appends events to the state."""

    def __init__(self, persistent: PersistentState) -> None:
        self._kept = persistent
        self._news: list[JobEvent] = []

    def add(self, reason: str, message: str, now: float, node: int | None = None) -> None:
        """Append an event; beyond the limit the oldest ones are dropped."""
        persistent = self._kept
        event = JobEvent(reason=reason, message=message[:_LONGEST_MESSAGE], node_id=node, at=now)
        persistent.events.append(event)
        self._news.append(event)
        surplus = len(persistent.events) - MAX_EVENTS
        if surplus > MAX_EVENTS // 4:
            del persistent.events[:surplus]
            persistent.first_event += surplus

    def take_new(self) -> list[JobEvent]:
        """Return the events that were added since the last call."""
        news, self._news = self._news, []
        return news
