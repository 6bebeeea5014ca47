"""Messages about data sets, which carry the ledger's own events and replies."""

from gangline.elastic.protocol.base_messages import ProtocolMessage
from gangline.elastic.shards.events import DatasetState, LedgerAnswer, LedgerEvent


class ShardRequest(ProtocolMessage, tag="ShardEvent"):
    """An event for the ledger (``gangline.elastic.shards.events``) -> ``ShardReply``."""

    event: LedgerEvent
    wait_s: float = 0.0
    """For ``Take``: how long to wait for a shard that may become available. A long poll."""


class ShardReply(ProtocolMessage, tag="ShardAnswer"):
    """The ledger's reply."""

    answer: LedgerAnswer


class ShardCheckpointRequest(ProtocolMessage, tag="ShardCheckpointWanted"):
    """Request for the position in a data set -> ``ShardCheckpointReply`` or ``Refused``."""

    dataset: str


class ShardCheckpointReply(ProtocolMessage, tag="ShardCheckpoint"):
    """The complete position in a data set, for a checkpoint; restored by ``events.Restore``."""

    content: bytes


class DatasetStateRequest(ProtocolMessage, tag="DatasetStateWanted"):
    """Request for the progress of a data set -> ``DatasetStateReply`` or ``Refused``."""

    dataset: str


class DatasetStateReply(ProtocolMessage, tag="DatasetStateKnown"):
    """Progress of a data set."""

    state: DatasetState
