"""Messages of the key-value store that the nodes of a job share."""

from gangline.elastic.protocol.kinds import Message


class KeyValueSet(Message):
    """Set a key -> ``Done``."""

    key: str
    value: bytes


class KeyValueGet(Message):
    """Read keys -> ``Values``; an absent one is None."""

    keys: tuple[str, ...]


class KeyValueWait(Message):
    """Wait until all keys are there -> ``Values``, or ``Refused`` TimedOut. A long poll."""

    keys: tuple[str, ...]
    wait_s: float = 30.0


class KeyValueAdd(Message):
    """Add to a number, absent is 0 -> ``Values`` with the decimal sum."""

    key: str
    amount: int = 1


class KeyValueCompareSet(Message):
    """Set a key if it holds ``expected`` (None: is absent) -> ``Values`` with what it holds now."""

    key: str
    expected: bytes | None
    value: bytes


class KeyValueDelete(Message):
    """Forget a key -> ``Done``, also when it was not there."""

    key: str


class Values(Message):
    """What the keys hold, in the order asked for."""

    values: tuple[bytes | None, ...] = ()
