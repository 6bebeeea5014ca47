"""What training processes and the saver of their node say to each other: a line of JSON each.

The words only wake and report. What is to be done the saver reads from the segments themselves, so
a lost word, or a saver that is started anew, loses nothing.
"""

import msgspec


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A training process is here. When its connection ends without ``Bye``, it died."""

    rank: int
    pid: int


class Saved(msgspec.Struct, frozen=True, tag="saved"):
    """There is a new save in memory."""

    step: int


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """The training process ends as it should."""


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """Write the newest complete save to storage now; the answer is ``Flushed``."""


class Flushed(msgspec.Struct, frozen=True, tag="flushed"):
    """The step that was written, if any."""

    step: int | None


class Outcome(msgspec.Struct, frozen=True, tag="outcome"):
    """What became of a step that was to go to storage."""

    step: int
    committed: bool
    reason: str = ""
    """Why not, for people; the saver tries again."""


Word = Hello | Saved | Bye | Flush | Flushed | Outcome
_decoder: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)


def encode(word: Word) -> bytes:
    """The line that says ``word``."""
    return msgspec.json.encode(word) + b"\n"


def decode(line: bytes) -> Word | None:
    """Read a line; ``None`` when it is none of ours."""
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError:
        return None
