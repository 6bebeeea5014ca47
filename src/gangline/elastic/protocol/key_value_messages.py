"""Messages of the key-value store that the nodes of a job share."""

from gangline.elastic.protocol.kinds import ProtocolMessage


class KeyValueSet(ProtocolMessage):
    """Set a key -> ``Done``."""

    key: str
    value: bytes


class KeyValueGet(ProtocolMessage):
    """Read keys -> ``KeyValueReply``; a missing one is None."""

    keys: tuple[str, ...]


class KeyValueWait(ProtocolMessage):
    """Wait until all keys exist -> ``KeyValueReply``, or ``Refused`` TimedOut. A long poll."""

    keys: tuple[str, ...]
    wait_s: float = 30.0


class KeyValueAdd(ProtocolMessage):
    """Add to a number; a missing key counts as 0 -> ``KeyValueReply`` with the decimal sum."""

    key: str
    amount: int = 1


class KeyValueCompareSet(ProtocolMessage):
    """Set a key if it has the value ``expected`` (None: is missing) -> ``KeyValueReply`` with its present
    value.
    """

    key: str
    expected: bytes | None
    value: bytes


class KeyValueDelete(ProtocolMessage):
    """Delete a key -> ``Done``, also if it did not exist."""

    key: str


class KeyValueReply(ProtocolMessage, tag="Values"):
    """Values of the keys, in the order of the request."""

    values: tuple[bytes | None, ...] = ()
