"""Messages between training processes and the saver of their node: one line of JSON each.

They only wake the saver and report results. The saver reads its work from the segments themselves,
so a lost message or a restart of the saver loses nothing.
"""

import msgspec


class ClientHello(msgspec.Struct, frozen=True, tag="hello"):
    """A training process connects. An end without a finish message means that it died."""

    rank: int
    pid: int


class SaveNotice(msgspec.Struct, frozen=True, tag="saved"):
    """A new save is in memory."""

    step: int


class ClientFinished(msgspec.Struct, frozen=True, tag="bye"):
    """The training process ends as intended."""


class FlushRequest(msgspec.Struct, frozen=True, tag="flush"):
    """Request: write the newest complete save to storage now."""


class FlushReply(msgspec.Struct, frozen=True, tag="flushed"):
    """Reply to a flush: the step that was written, if any."""

    step: int | None


class StorageOutcome(msgspec.Struct, frozen=True, tag="outcome", omit_defaults=True):
    """Report on a step that was to be written to storage; unset fields are not sent."""

    step: int
    committed: bool
    reason: str = ""
    """Why it is not committed, for display; the saver tries again. Of a committed step, what else
    the user should know.
    """
    plan: str = ""


SaverMessage = (
    ClientHello | SaveNotice | ClientFinished | FlushRequest | FlushReply | StorageOutcome
)
_decoder: msgspec.json.Decoder[SaverMessage] = msgspec.json.Decoder(SaverMessage)


def encode_message(message: SaverMessage) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def decode_message(line: bytes) -> SaverMessage | None:
    """Read a line; return ``None`` if it is no known message."""
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError:
        return None
