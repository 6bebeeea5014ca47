"""Messages about data sets, which carry the ledger's own events and replies."""

from gangline.elastic.data.events import Answer, DatasetState, Event
from gangline.elastic.protocol.kinds import Message


class ShardEvent(Message):
    """An event for the ledger of shards (``gangline.elastic.data.events``) -> ``ShardAnswer``."""

    event: Event
    wait_s: float = 0.0
    """For ``Take``: how long to wait for a shard that may become available. A long poll."""


class ShardAnswer(Message):
    """The ledger's reply."""

    answer: Answer


class ShardCheckpointWanted(Message):
    """Request for the position in a data set -> ``ShardCheckpoint`` or ``Refused``."""

    dataset: str


class ShardCheckpoint(Message):
    """The complete position in a data set, for a checkpoint; restored by ``events.Restore``."""

    content: bytes


class DatasetStateWanted(Message):
    """Request for the progress of a data set -> ``DatasetStateKnown`` or ``Refused``."""

    dataset: str


class DatasetStateKnown(Message):
    """Progress of a data set."""

    state: DatasetState
