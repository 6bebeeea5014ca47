"""What the journal holds: requests as they came, and what the master found out by itself."""

from typing import TypeAlias

import msgspec

from gangline.elastic.master.clock import Moment
from gangline.elastic.master.goodput import Account
from gangline.elastic.protocol.kinds import Message
from gangline.elastic.protocol.messages import Request


class Started(Message):
    """A master process began its work."""

    master: str
    down_s: float = 0.0
    """How long there was none; the job's clock stood still meanwhile."""
    moment: Moment | None = None
    """When this was, by clocks that go on without a master."""


class Lost(Message):
    """A node is dead, as far as can be known."""

    node_id: int
    reason: str


class RestartedInPlace(Message):
    """A node's workers were started anew without a new world."""

    node_id: int
    round: int
    attempt: int


class Adopted(Message):
    """A node said that it trains in a round of which the master knows nothing."""

    node_id: int
    incarnation: str
    round: int


class Passed(Message):
    """Time has passed."""


class Noted(Message):
    """The account of time, which follows from heartbeats that are not written down one by one."""

    account: Account
    moment: Moment | None = None


class CommandsSeen(Message):
    """A node knows of later commands than the master remembers having given."""

    node_id: int
    seen: int


Happening: TypeAlias = (
    Request | Started | Lost | RestartedInPlace | Adopted | Passed | Noted | CommandsSeen
)


class Record(msgspec.Struct, array_like=True):
    """Something happened."""

    at: float
    """On the job's clock, which runs only while there is a master."""
    what: Happening
    client: str = ""
    number: int = 0
    """The client and its number, by which a repeated request is known; 0: not one."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """Write a record."""
    return _encoder.encode(record)


def decode(line: bytes) -> Record:
    """Read a record.

    Raises:
        msgspec.MsgspecError: it is none, or one of a newer version.
    """
    return _decoder.decode(line)
