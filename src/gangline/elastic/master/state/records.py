"""Records of the journal: requests as they came, and events that the master found out by itself."""

from typing import TypeAlias

import msgspec

from gangline.elastic.master.state.clock import ClockReading
from gangline.elastic.master.state.goodput import GoodputAccount
from gangline.elastic.protocol.base_messages import ProtocolMessage
from gangline.elastic.protocol.messages import Request


class MasterStarted(ProtocolMessage, tag="Started"):
    """A master process has started."""

    master: str
    down_s: float = 0.0
    """Seconds without a master before it; the job's clock stood still meanwhile."""
    moment: ClockReading | None = None
    """Clock reading at the start."""


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
    """An entry of the journal."""

    at: float
    """Time on the job's clock, which runs only while there is a master."""
    body: RecordBody
    client: str = ""
    number: int = 0
    """Client and request number, which identify a repeated request; 0 for the master's own records.
    """


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JournalRecord)


def encode_record(record: JournalRecord) -> bytes:
    return _encoder.encode(record)


def decode_record(line: bytes) -> JournalRecord:
    """Read a record.

    Raises:
        msgspec.MsgspecError: it is none, or one of a newer version.
    """
    return _decoder.decode(line)
