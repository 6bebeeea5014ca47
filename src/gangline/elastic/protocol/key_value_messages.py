"""Messages of the key-value store that the nodes of a job share."""

from gangline.elastic.protocol.kinds import Message


class KeyValueSet(Message):
    """Set a key -> ``Done``."""

    key: str
    value: bytes


class KeyValueGet(Message):
    """Read keys -> ``Values``; a missing one is None."""

    keys: tuple[str, ...]


class KeyValueWait(Message):
    """Wait until all keys exist -> ``Values``, or ``Refused`` TimedOut. A long poll."""

    keys: tuple[str, ...]
    wait_s: float = 30.0


class KeyValueAdd(Message):
    """Add to a number; a missing key counts as 0 -> ``Values`` with the decimal sum."""

    key: str
    amount: int = 1


class KeyValueCompareSet(Message):
    """Set a key if it has the value ``expected`` (None: is missing) -> ``Values`` with its present
    value.
    """

    key: str
    expected: bytes | None
    value: bytes


class KeyValueDelete(Message):
    """Delete a key -> ``Done``, also if it did not exist."""

    key: str


class Values(Message):
    """Values of the keys, in the order of the request."""

    values: tuple[bytes | None, ...] = ()
