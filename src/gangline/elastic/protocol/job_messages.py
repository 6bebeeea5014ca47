"""Messages about the job: its timeline, goodput and state, and its key-value store."""

from gangline.elastic.protocol.base_messages import ProtocolMessage
from gangline.elastic.protocol.world_messages import WorldInfo


class JobEvent(ProtocolMessage):
    """An event for the job's timeline -> ``Done``."""

    reason: str
    message: str = ""
    node_id: int | None = None
    at: float = 0.0
    """Time on the master's clock of the job; set by the master."""


class GoodputRequest(ProtocolMessage, tag="GoodputWanted"):
    """Request for goodput -> ``GoodputReport``."""


class GoodputReport(ProtocolMessage, tag="Goodput"):
    """The job's wall time by what it was spent on; the parts add up to ``wall_s``."""

    wall_s: float
    productive_s: float
    parts_s: dict[str, float]
    """waiting, starting, checking, restarting, checkpoint, hanging, lost."""
    step: int | None = None
    steps_lost: int = 0
    restarts: int = 0
    failures: int = 0

    @property
    def share(self) -> float:
        """The productive share, between 0 and 1."""
        return self.productive_s / self.wall_s if self.wall_s > 0 else 0.0


class JobStatusRequest(ProtocolMessage, tag="StatusWanted"):
    """Request for the state of the job -> ``JobStatusReply``."""

    events_after: int = 0
    """Number of the last known event."""


class JobStatusReply(ProtocolMessage, tag="Status"):
    """The job as its master sees it."""

    job: str
    round: int
    world: WorldInfo | None
    waiting: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    goodput: GoodputReport | None = None
    events: tuple[JobEvent, ...] = ()
    events_seen: int = 0
    """Value of ``events_after`` for the next request."""
    datasets: tuple[str, ...] = ()


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
    """Set a key if it has the value ``expected`` (None: is missing) -> ``KeyValueReply``.

    The reply has the present value.
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
