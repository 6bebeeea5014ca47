"""The state of the master that survives the process, the journal's records, and the job's clock.

The clock counts the seconds during which a master has been running, whichever process that was: it
continues where the journal ends, so that a lease or a last call does not expire while there is no
master. The length of that time follows from clock readings in the journal: on one machine, without
a reboot in between, from a monotonic clock; else from wall clocks, the only time that two machines
share.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from gangline.elastic.master.state.goodput import GoodputAccount
from gangline.elastic.protocol.messages import (
    JobEvent,
    NodeCommand,
    ProtocolMessage,
    Reply,
    Request,
)
from gangline.elastic.rendezvous import RendezvousState
from gangline.elastic.shards.ledger import ShardLedger

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_encoder = msgspec.msgpack.Encoder()
VERSION: Final = 1
MAX_EVENTS = 500
MAX_REPLIES_PER_CLIENT = 64
"""For each client: the number of concurrent requests that it may repeat."""
MAX_CLIENTS = 4096
_LONGEST_MESSAGE = 4096


class ClockReading(msgspec.Struct, frozen=True):
    """A reading of all available clocks."""

    wall_s: float
    """Seconds since 1970."""
    boot: str = ""
    """Identifier of the machine's boot; empty if unknown."""
    up_s: float = 0.0
    """Seconds since that boot, including suspended time."""

    def seconds_until(self, later: "ClockReading") -> float:
        """Return the seconds until a later reading; never negative."""
        is_same = bool(self.boot) and self.boot == later.boot
        passed = later.up_s - self.up_s if is_same else later.wall_s - self.wall_s
        return max(0.0, passed)


def read_clocks() -> ClockReading:
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = ""
    return ClockReading(time.time(), boot, time.clock_gettime(time.CLOCK_BOOTTIME))


class JobClock:
    """A clock that starts at a given time of the job."""

    def __init__(self, start: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = start - monotonic()

    def now(self) -> float:
        return self._monotonic() + self._offset


class MasterStarted(ProtocolMessage, tag="Started"):
    master: str
    down_s: float = 0.0
    """Seconds without a master before it; the job's clock stood still meanwhile."""
    moment: ClockReading | None = None


class NodeLost(ProtocolMessage, tag="Lost"):
    """A node is considered dead."""

    node_id: int
    reason: str


class WorkersRestarted(ProtocolMessage, tag="RestartedInPlace"):
    """The workers of a node were restarted without a new world."""

    node_id: int
    round: int
    attempt: int


class MemberAdopted(ProtocolMessage, tag="Adopted"):
    """A node reported that it trains in a round that the master does not know."""

    node_id: int
    incarnation: str
    round: int


class TimePassed(ProtocolMessage, tag="Passed"):
    """Time has passed."""


class GoodputRecorded(ProtocolMessage, tag="Noted"):
    """The goodput account, which depends on heartbeats that are not journaled."""

    account: GoodputAccount
    moment: ClockReading | None = None


class CommandsSeen(ProtocolMessage):
    """A node has seen later commands than the master remembers."""

    node_id: int
    seen: int


RecordBody: TypeAlias = (
    Request
    | MasterStarted
    | NodeLost
    | WorkersRestarted
    | MemberAdopted
    | TimePassed
    | GoodputRecorded
    | CommandsSeen
)


class JournalRecord(msgspec.Struct, array_like=True):
    at: float
    """Time on the job's clock, which runs only while there is a master."""
    body: RecordBody
    client: str = ""
    number: int = 0
    """Client and request number, which identify a repeated request; 0 for the master's own records.
    """


_decoder = msgspec.msgpack.Decoder(JournalRecord)


def encode_record(record: JournalRecord) -> bytes:
    return _encoder.encode(record)


def decode_record(line: bytes) -> JournalRecord:
    return _decoder.decode(line)


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

        Raises ValueError: it cannot be read, or a newer version wrote it.
        """
        read = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        if read.version > VERSION:
            raise ValueError(
                f"a newer release wrote this state: version {read.version}, not {VERSION}"
            )
        return MasterState(read.kept, ShardLedger.from_snapshot(read.ledger)), read.at


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
        news, self._news = self._news, []
        return news
