"""The messages between agents, workers and the master: typed, versioned, without pickle.

Every request has one reply, which its docstring names; any request may be refused. Unknown fields
are ignored and missing ones have defaults, so that releases with small differences work together.
Incompatible releases are detected by the version in ``Hello``.

Requests that change something may be repeated after a lost connection: a client numbers them, and
the master answers a known number with the same reply (see ``client``).

Times are seconds. Sizes are bytes.
"""

from typing import TypeAlias

from gangline.elastic.phase import NodePhase
from gangline.elastic.protocol.base_messages import (
    PROTOCOL_OLDEST,
    PROTOCOL_VERSION,
    Acknowledged,
    Hello,
    ProtocolMessage,
    RequestRefused,
    Welcome,
)
from gangline.elastic.protocol.check_messages import (
    CheckGroup,
    CheckMember,
    CheckRequest,
    CheckResult,
    CheckVerdict,
)
from gangline.elastic.protocol.job_messages import (
    GoodputReport,
    GoodputRequest,
    JobEvent,
    JobStatusReply,
    JobStatusRequest,
    KeyValueAdd,
    KeyValueCompareSet,
    KeyValueDelete,
    KeyValueGet,
    KeyValueReply,
    KeyValueSet,
    KeyValueWait,
)
from gangline.elastic.protocol.node_messages import (
    CheckpointValues,
    CommandBody,
    Commands,
    DeviceUsage,
    DumpStacks,
    Evict,
    GetCommands,
    Heartbeat,
    LoaderValues,
    NodeCommand,
    NodeReport,
    NodeResources,
    OptimizerValues,
    RestartCommand,
    RunCheck,
    SaveCheckpoint,
    SaveFinished,
    SendCommand,
    StopCommand,
    Tuning,
)
from gangline.elastic.protocol.shard_messages import (
    DatasetStateReply,
    DatasetStateRequest,
    ShardCheckpointReply,
    ShardCheckpointRequest,
    ShardReply,
    ShardRequest,
)
from gangline.elastic.protocol.world_messages import (
    FailureReport,
    Join,
    JoinPending,
    Leave,
    WorkersFinished,
    WorldInfo,
    WorldMember,
)

__all__ = [
    "PROTOCOL_OLDEST",
    "PROTOCOL_VERSION",
    "Acknowledged",
    "CheckGroup",
    "CheckMember",
    "CheckRequest",
    "CheckResult",
    "CheckVerdict",
    "CheckpointValues",
    "CommandBody",
    "Commands",
    "DatasetStateReply",
    "DatasetStateRequest",
    "DeviceUsage",
    "DumpStacks",
    "Evict",
    "FailureReport",
    "GetCommands",
    "GoodputReport",
    "GoodputRequest",
    "Heartbeat",
    "Hello",
    "JobEvent",
    "JobStatusReply",
    "JobStatusRequest",
    "Join",
    "JoinPending",
    "KeyValueAdd",
    "KeyValueCompareSet",
    "KeyValueDelete",
    "KeyValueGet",
    "KeyValueReply",
    "KeyValueSet",
    "KeyValueWait",
    "Leave",
    "LoaderValues",
    "NodeCommand",
    "NodePhase",
    "NodeReport",
    "NodeResources",
    "OptimizerValues",
    "ProtocolMessage",
    "Reply",
    "Request",
    "RequestRefused",
    "RestartCommand",
    "RunCheck",
    "SaveCheckpoint",
    "SaveFinished",
    "SendCommand",
    "ShardCheckpointReply",
    "ShardCheckpointRequest",
    "ShardReply",
    "ShardRequest",
    "StopCommand",
    "Tuning",
    "Welcome",
    "WorkersFinished",
    "WorldInfo",
    "WorldMember",
]

Request: TypeAlias = (
    Hello
    | Join
    | WorkersFinished
    | Leave
    | FailureReport
    | Heartbeat
    | GetCommands
    | SaveFinished
    | SendCommand
    | KeyValueSet
    | KeyValueGet
    | KeyValueWait
    | KeyValueAdd
    | KeyValueCompareSet
    | KeyValueDelete
    | JobEvent
    | GoodputRequest
    | JobStatusRequest
    | ShardRequest
    | ShardCheckpointRequest
    | DatasetStateRequest
    | CheckRequest
    | CheckResult
)
"""Requests to the master."""

Reply: TypeAlias = (
    Welcome
    | Acknowledged
    | RequestRefused
    | WorldInfo
    | JoinPending
    | Commands
    | KeyValueReply
    | GoodputReport
    | JobStatusReply
    | ShardReply
    | ShardCheckpointReply
    | DatasetStateReply
    | CheckGroup
    | CheckVerdict
)
"""Replies of the master."""
