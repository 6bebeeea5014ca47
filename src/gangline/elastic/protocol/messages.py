"""The messages between agents, workers and the master: typed, versioned, without pickle.

Every request has one reply, which its docstring names; any request may be refused. Unknown fields
are ignored and missing ones have defaults, so that releases with small differences work together.
Incompatible releases are detected by the version in ``Hello``.

Requests that change something may be repeated after a lost connection: a client numbers them, and
the master answers a known number with the same reply (see ``client``).

Times are seconds. Sizes are bytes.
"""

from typing import TypeAlias

from gangline.elastic.phase import Phase
from gangline.elastic.protocol.check_messages import (
    CheckGroup,
    CheckMember,
    CheckResult,
    CheckVerdict,
    CheckWanted,
)
from gangline.elastic.protocol.job_messages import (
    Goodput,
    GoodputWanted,
    JobEvent,
    Status,
    StatusWanted,
)
from gangline.elastic.protocol.key_value_messages import (
    KeyValueAdd,
    KeyValueCompareSet,
    KeyValueDelete,
    KeyValueGet,
    KeyValueSet,
    KeyValueWait,
    Values,
)
from gangline.elastic.protocol.kinds import (
    PROTOCOL_OLDEST,
    PROTOCOL_VERSION,
    Done,
    Hello,
    Message,
    Refused,
    Welcome,
)
from gangline.elastic.protocol.life_messages import (
    Command,
    CommandKind,
    Commands,
    Device,
    DumpStacks,
    Evict,
    GetCommands,
    Heartbeat,
    Resources,
    Restart,
    RunCheck,
    SaveCheckpoint,
    SendCommand,
    Stop,
)
from gangline.elastic.protocol.shard_messages import (
    DatasetStateKnown,
    DatasetStateWanted,
    ShardAnswer,
    ShardCheckpoint,
    ShardCheckpointWanted,
    ShardEvent,
)
from gangline.elastic.protocol.world_messages import (
    Failure,
    Finished,
    Join,
    Leave,
    Member,
    Waiting,
    World,
)

__all__ = [
    "PROTOCOL_OLDEST",
    "PROTOCOL_VERSION",
    "CheckGroup",
    "CheckMember",
    "CheckResult",
    "CheckVerdict",
    "CheckWanted",
    "Command",
    "CommandKind",
    "Commands",
    "DatasetStateKnown",
    "DatasetStateWanted",
    "Device",
    "Done",
    "DumpStacks",
    "Evict",
    "Failure",
    "Finished",
    "GetCommands",
    "Goodput",
    "GoodputWanted",
    "Heartbeat",
    "Hello",
    "JobEvent",
    "Join",
    "KeyValueAdd",
    "KeyValueCompareSet",
    "KeyValueDelete",
    "KeyValueGet",
    "KeyValueSet",
    "KeyValueWait",
    "Leave",
    "Member",
    "Message",
    "Phase",
    "Refused",
    "Reply",
    "Request",
    "Resources",
    "Restart",
    "RunCheck",
    "SaveCheckpoint",
    "SendCommand",
    "ShardAnswer",
    "ShardCheckpoint",
    "ShardCheckpointWanted",
    "ShardEvent",
    "Status",
    "StatusWanted",
    "Stop",
    "Values",
    "Waiting",
    "Welcome",
    "World",
]

Request: TypeAlias = (
    Hello
    | Join
    | Finished
    | Leave
    | Failure
    | Heartbeat
    | GetCommands
    | SendCommand
    | KeyValueSet
    | KeyValueGet
    | KeyValueWait
    | KeyValueAdd
    | KeyValueCompareSet
    | KeyValueDelete
    | JobEvent
    | GoodputWanted
    | StatusWanted
    | ShardEvent
    | ShardCheckpointWanted
    | DatasetStateWanted
    | CheckWanted
    | CheckResult
)
"""Requests to the master."""

Reply: TypeAlias = (
    Welcome
    | Done
    | Refused
    | World
    | Waiting
    | Commands
    | Values
    | Goodput
    | Status
    | ShardAnswer
    | ShardCheckpoint
    | DatasetStateKnown
    | CheckGroup
    | CheckVerdict
)
"""Replies of the master."""
