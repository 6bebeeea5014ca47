"""Messages between training processes and the saver of their node: one line of JSON each.

They only wake the saver and report results. The saver reads its work from the segments themselves,
so a lost message or a restart of the saver loses nothing.
"""

import msgspec


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A training process connects. If the connection ends without a finish message, the process
    died.
    """

    rank: int
    pid: int


class Saved(msgspec.Struct, frozen=True, tag="saved"):
    """A new save is in memory."""

    step: int


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """The training process ends as intended."""


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """Request: write the newest complete save to storage now."""


class Flushed(msgspec.Struct, frozen=True, tag="flushed"):
    """Reply to a flush: the step that was written, if any."""

    step: int | None


class Outcome(msgspec.Struct, frozen=True, tag="outcome"):
    """Report on a step that was to be written to storage."""

    step: int
    committed: bool
    reason: str = ""
    """Why it is not committed, for display; the saver tries again."""


Word = Hello | Saved | Bye | Flush | Flushed | Outcome
_decoder: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)


def encode(message: Word) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Word | None:
    """Read a line; return ``None`` if it is no known message."""
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError:
        return None
