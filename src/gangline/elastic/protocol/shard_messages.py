"""Messages about data sets: the ledger's own events and answers on their way."""

from gangline.elastic.data.events import Answer, DatasetState, Event
from gangline.elastic.protocol.kinds import Message


class ShardEvent(Message):
    """Something happens to shards (``gangline.elastic.data.events``) -> ``ShardAnswer``."""

    event: Event
    wait_s: float = 0.0
    """For ``Take``: how long to wait while there is none but may be one later. A long poll."""


class ShardAnswer(Message):
    """What the ledger says to it."""

    answer: Answer


class ShardCheckpointWanted(Message):
    """Where does the data set stand? -> ``ShardCheckpoint``, or ``Refused`` UnknownDataset."""

    dataset: str


class ShardCheckpoint(Message):
    """The whole position in a data set, to be kept with a checkpoint; for ``events.Restore``."""

    content: bytes


class DatasetStateWanted(Message):
    """How far is it? -> ``DatasetStateKnown``, or ``Refused`` UnknownDataset."""

    dataset: str


class DatasetStateKnown(Message):
    """How far it is."""

    state: DatasetState
