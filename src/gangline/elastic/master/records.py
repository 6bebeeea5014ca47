"""Records of the journal: requests as they came, and events that the master found out by itself."""

from typing import TypeAlias

import msgspec

from gangline.elastic.master.clock import Moment
from gangline.elastic.master.goodput import Account
from gangline.elastic.protocol.kinds import Message
from gangline.elastic.protocol.messages import Request


class Started(Message):
    """A master process has started."""

    master: str
    down_s: float = 0.0
    """Seconds without a master before it; the job's clock stood still meanwhile."""
    moment: Moment | None = None
    """Clock reading at the start."""


class Lost(Message):
    """A node is considered dead."""

    node_id: int
    reason: str


class RestartedInPlace(Message):
    """The workers of a node were restarted without a new world."""

    node_id: int
    round: int
    attempt: int


class Adopted(Message):
    """A node reported that it trains in a round that the master does not know."""

    node_id: int
    incarnation: str
    round: int


class Passed(Message):
    """Time has passed."""


class Noted(Message):
    """The goodput account, which depends on heartbeats that are not journaled."""

    account: Account
    moment: Moment | None = None


class CommandsSeen(Message):
    """A node has seen later commands than the master remembers."""

    node_id: int
    seen: int


Happening: TypeAlias = (
    Request | Started | Lost | RestartedInPlace | Adopted | Passed | Noted | CommandsSeen
)


class Record(msgspec.Struct, array_like=True):
    """An entry of the journal."""

    at: float
    """Time on the job's clock, which runs only while there is a master."""
    what: Happening
    client: str = ""
    number: int = 0
    """Client and request number, which identify a repeated request; 0 for the master's own records.
    """


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode(line: bytes) -> Record:
    """Read a record.

    Raises:
        msgspec.MsgspecError: it is none, or one of a newer version.
    """
    return _decoder.decode(line)
