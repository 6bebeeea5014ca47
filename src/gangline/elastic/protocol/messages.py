"""The messages between agents, workers and the master: typed, versioned, without pickle.

Every request has one reply, which its docstring names; any request may be refused. Unknown fields
are ignored and missing ones have defaults, so that releases with small differences work together.
Incompatible releases are detected by the version in ``Hello``.

Requests that change something may be repeated after a lost connection: a client numbers them, and
the master answers a known number with the same reply (see ``client``).

Times are seconds. Sizes are bytes.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from gangline.elastic.progress import NodePhase, ReportedShape, SaveCounts, StepTimes
from gangline.elastic.shards.events import DatasetState, LedgerAnswer, LedgerEvent

PROTOCOL_VERSION = 1
PROTOCOL_OLDEST = 1
"""The oldest protocol version that this release understands."""


class ProtocolMessage(msgspec.Struct, kw_only=True, omit_defaults=True, tag=True):
    """A message: a map on the wire, whose ``type`` is the tag of its class."""


class Hello(ProtocolMessage):
    """The first message on a connection -> ``Welcome`` or ``Refused``."""

    protocol: int = PROTOCOL_VERSION
    oldest: int = PROTOCOL_OLDEST
    version: str = ""
    job: str = ""
    client: str = ""
    """Permanent identifier of the sending process; with a number it identifies a request."""
    node_id: int | None = None
    """The node, if the sender is its agent: the node is considered dead if the connection breaks
    and no other one follows within the grace period. None for worker processes and tools.
    """
    incarnation: str = ""


class Welcome(ProtocolMessage):
    """The master accepts the connection."""

    protocol: int
    version: str = ""
    master: str = ""
    """Identifier of the master process; a new one means that the master was restarted."""
    job: str = ""
    heartbeat_s: float = 1.0
    silence_s: float = 15.0
    """A node that is silent for this time is considered dead."""


class Acknowledged(ProtocolMessage, tag="Done"):
    """The request is done."""


class RequestRefused(ProtocolMessage, tag="Refused"):
    """The request is refused; repeating it does not help unless something changes."""

    reason: str
    """One CamelCase word; stable, for programs: UnknownDataset, UnknownNode, VersionMismatch,
    WrongJob, RendezvousFailed, Superseded, JobOver, BadRequest, TimedOut, TooLarge.
    """
    message: str = ""


PARTNER_LOST: Final = "PartnerLost"
"""Reason why a node should stop a test: another node of its group is gone."""


class CheckRequest(ProtocolMessage, tag="CheckWanted"):
    """A node takes part in the check -> ``CheckGroup``, or ``CheckVerdict``. A long poll.

    ``Refused`` TimedOut after ``wait_s``: ask again. Each message has the parameters, so that a
    master without its state learns them again.
    """

    node_id: int
    incarnation: str = ""
    check: int = 1
    node_rank: int = -1
    host: str = ""
    store_port: int = 0
    """A free port on its host, for the store if it becomes the first node of its group."""
    nodes: int = 1
    """The number of nodes that the check waits for (the maximum)."""
    min_nodes: int = 1
    last_call_s: float = 5.0
    wait_s: float = 5.0
    """Must be well below the time after which a silent node is considered dead."""
    straggler_ratio: float = 0.0
    """A node that takes longer than this multiple of the median is a straggler; 0 for the default.
    """
    straggler_s: float = 0.0
    """A node that takes longer than this is a straggler as well; 0 for no such limit."""
    all_together: bool = False
    """Test the collective over all healthy nodes at the end, for its speed."""
    testing: int = -1
    """The round that it tests already. If that test is pointless, the reply is ``Refused``
    PartnerLost, and the node reports a failed test.
    """


class CheckMember(msgspec.Struct, frozen=True, array_like=True):
    """One node of a group. The order of fields is the wire format: add only at the end."""

    node_id: int
    rank: int
    host: str = ""


class CheckGroup(ProtocolMessage):
    """Test with these nodes; then send ``CheckResult`` for this round."""

    round: int
    members: tuple[CheckMember, ...]
    store_host: str = ""
    store_port: int = 0


class CheckResult(ProtocolMessage):
    """The result of a test -> the next ``CheckGroup``, or ``CheckVerdict``. A long poll."""

    node_id: int
    round: int
    passed: bool
    local: bool = False
    """The failed test ran within the node, so no partner can be the cause."""
    incarnation: str = ""
    check: int = 1
    compute_s: float = 0.0
    collective_s: float = 0.0
    bandwidth: float = 0.0
    """Bytes per second of the collective, as its algorithm counts them."""
    device: str = ""
    """The device that failed, or the slowest one for matrices."""
    test: str = ""
    message: str = ""
    collective_device: str = ""
    store_port: int = 0
    wait_s: float = 5.0


class CheckVerdict(ProtocolMessage):
    """The check is over."""

    passed: bool
    """For the node that asks."""
    faulty: dict[int, str] = {}
    """What is wrong, by node id: test, device, value, threshold."""
    stragglers: dict[int, str] = {}
    undecided: tuple[int, ...] = ()
    """Nodes that could be neither cleared nor blamed."""


class DeviceUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Usage of one accelerator."""

    index: int
    used_bytes: int = 0
    total_bytes: int = 0
    busy: float = 0.0


class NodeResources(msgspec.Struct, frozen=True, omit_defaults=True):
    """Usage of a node's workers."""

    cpus: float = 0.0
    memory_bytes: int = 0
    devices: tuple[DeviceUsage, ...] = ()
    is_warm: bool | None = None
    """True if the next workers start without imports; None if that is disabled or not known."""


class NodeReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Steps, memory and tuning of a node. None and empty values are not known.

    The fields up to ``metrics`` are those of ``TrainingReport``. They are one field of
    ``Heartbeat``, because maps of up to 15 fields have a shorter header, as earlier releases write.
    """

    batch_size: int | None = None
    accumulation: int | None = None
    compute_s: float | None = None
    sync_s: float | None = None
    data_s: float | None = None
    grad_sqr: float | None = None
    grad_var: float | None = None
    device_peak_bytes: tuple[int, ...] = ()
    device_model: str = ""
    global_batch: int | None = None
    step_times: StepTimes | None = None
    model: ReportedShape | None = None
    device_memory_bytes: int | None = None
    loader_workers: int | None = None
    save_s: float | None = None
    save_interval_s: float | None = None
    saves_adapt: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    pod: str = ""
    memory_peak_bytes: int | None = None
    tuning_version: int | None = None
    """Version of the tuning that the node has applied; None if it takes none."""
    tunes_batch: bool = False
    """True if its workers read the settings of the data loader from the agent's file."""
    replaced: int = 0
    """How often ranks were replaced, or the world shrank or grew, while the others kept running."""
    replacement: str = ""
    """The last such event, as one sentence."""


class Heartbeat(ProtocolMessage):
    """A node is alive -> ``Commands`` (those above ``commands_seen``, often none)."""

    node_id: int
    incarnation: str = ""
    round: int = 0
    """Round of the running workers; 0 while the node waits for a world."""
    attempt: int = 0
    phase: str = NodePhase.WAITING
    step: int | None = None
    """The last step that the node's workers finished."""
    first_step: int | None = None
    """The first step of this attempt; earlier work from this step on is repeated."""
    steps_per_s: float = 0.0
    spent_s: dict[str, float] = {}
    """Total seconds of this attempt that were no training, by phase."""
    checkpoint_step: int | None = None
    """The last step that a complete checkpoint holds."""
    saves: SaveCounts = SaveCounts()
    resources: NodeResources | None = None
    commands_seen: int = 0
    node: NodeReport | None = None
    """What the workers report about their steps; sent every few seconds, not in each heartbeat."""


class RestartCommand(ProtocolMessage, tag="Restart"):
    """Stop the workers of this round and join again: the members have changed.

    It also cancels a ``World`` of this or an older round that arrives later, but not a newer one.
    """

    round: int
    reason: str = ""


class StopCommand(ProtocolMessage, tag="Stop"):
    """Stop the workers and end."""

    reason: str
    message: str = ""
    failed: bool = False
    """True if the job failed; else it is finished or suspended."""


class RunCheck(ProtocolMessage):
    """Check the node before continuing."""

    reason: str = ""
    nodes: tuple[int, ...] = ()
    """All nodes that take part in the check; the master sets it."""


class SaveCheckpoint(ProtocolMessage):
    """Save a checkpoint now."""

    reason: str = ""
    request: str = ""
    """Identifier of a request that is answered with ``SaveFinished``; empty for none. The workers
    save after their present step, and stop there.
    """
    wait_s: float = 0.0
    """Seconds that the answer to the request may take."""
    is_withdrawn: bool = False
    """True: the request is void, and the workers continue."""


class SaveFinished(ProtocolMessage):
    """A node has answered a requested save -> ``Done``."""

    node_id: int
    request: str
    incarnation: str = ""
    step: int | None = None


class DumpStacks(ProtocolMessage):
    """Write the stacks of all workers to the log."""

    reason: str = ""


class Evict(ProtocolMessage):
    """Leave this machine, which is faulty or needed; a replacement starts on another one."""

    reason: str
    message: str = ""


CommandBody: TypeAlias = (
    RestartCommand | StopCommand | RunCheck | SaveCheckpoint | DumpStacks | Evict
)


class NodeCommand(msgspec.Struct, frozen=True):
    """A command with its number; the numbers of a node increase."""

    number: int
    what: CommandBody


class LoaderValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of the data loader; None keeps the present value."""

    batch_size: int | None = None
    num_workers: int | None = None
    pin_memory: bool | None = None


class OptimizerValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of the optimizer; None keeps the present value."""

    learning_rate: float | None = None
    weight_decay: float | None = None


class CheckpointValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """Prior of the rate of failures, for the interval of checkpoints."""

    failures: float
    seconds: float


class Tuning(ProtocolMessage):
    """Settings for workers, which agents write to the parallel configuration file."""

    version: int
    dataloader: LoaderValues = LoaderValues()
    devices: dict[str, LoaderValues] = {}
    """Instead of ``dataloader`` on nodes with this device model."""
    optimizer: OptimizerValues = OptimizerValues()
    checkpoint: CheckpointValues | None = None


class GetCommands(ProtocolMessage):
    """Wait for commands -> ``Commands``. A long poll; skips commands up to ``seen``."""

    node_id: int
    incarnation: str = ""
    seen: int = 0
    wait_s: float = 30.0


class Commands(ProtocolMessage):
    """Commands, in order; often none."""

    commands: tuple[NodeCommand, ...] = ()
    tuning: Tuning | None = None
    """In replies to heartbeats: a tuning that the node has not applied. It is no command, because
    releases without it ignore unknown fields, but cannot read unknown commands.
    """


class SendCommand(ProtocolMessage):
    """A user or component sends a command to nodes -> ``Done``."""

    what: CommandBody
    nodes: tuple[int, ...] = ()
    """Empty for all nodes."""


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


class Join(ProtocolMessage):
    """A node asks for the next world -> ``World``, ``Waiting`` (ask again) or ``Refused``.

    A long poll: the reply comes when the world is formed, and ``Waiting`` after ``wait_s``. Each
    Join has the parameters of the rendezvous, so that a master without its journal learns them
    again; those of the first Join apply.
    """

    node_id: int
    """Permanent identifier of the node (its pod); a replacement has another one."""
    incarnation: str
    """Random identifier of the agent process; a restarted agent has another one."""
    number: int
    """Number of this request for a world by this agent process, from 1. The same number again is
    the same request (its reply was lost, or ``Waiting``); a higher one leaves the old world.
    """
    node_rank: int = -1
    """Preferred rank; the node replaces another node with this rank. -1 for none."""
    local_world_size: int = 1
    host: str = ""
    """Host name or address at which other nodes reach it."""
    agent_address: str = ""
    """host:port at which its agent listens for peers."""
    store_port: int = 0
    """A free port on its host, for the store if it becomes the first node of the world."""
    topology: Sequence[str] = ()
    """Topology domains, the widest first: ("zone-a", "rack-7"). Near nodes get adjacent ranks."""
    round_seen: int = 0
    """The last round that it was in; a master without its journal counts on from it."""
    attempt: int = 0
    """The last attempt in that round (see ``World``)."""
    wait_s: float = 30.0
    min_nodes: int = 1
    max_nodes: int = 1
    node_unit: int = 1
    """The number of nodes of a world is a multiple of it."""
    last_call_s: float = 5.0
    """Once the minimum has joined, the world waits this time after each arrival for more nodes."""
    join_timeout_s: float = 600.0
    """The rendezvous fails if the minimum has not joined within this time."""
    continues: bool = False
    """True if its workers keep running meanwhile, and go on if those of the first node do."""


class WorldMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One node of a world. The order of fields is the wire format: add only at the end.

    It has no references to containers, so the garbage collector need not track thousands of them.
    """

    node_id: int
    node_rank: int
    group_rank: int
    local_world_size: int
    first_rank: int
    """The global rank of its first worker: the sum of the sizes of all members before it."""
    host: str = ""
    agent_address: str = ""


class WorldInfo(ProtocolMessage, tag="World"):
    """A formed world. All members get the same."""

    round: int
    """Higher than any round before in this job."""
    members: tuple[WorldMember, ...]
    """In the order of ``group_rank``."""
    store_host: str
    store_port: int
    attempt: int = 0
    """0 from the master; agents that restart in place without it increase the number."""
    continues: bool = False
    """True if the workers of the world before keep running, with the store of its first node."""

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return sum(member.local_world_size for member in self.members)


class JoinPending(ProtocolMessage, tag="Waiting"):
    """There is no world yet: send the same ``Join`` again."""

    message: str = ""
    present: int = 0
    wanted: int = 0
    missing: tuple[int, ...] = ()
    """Expected node ranks (or ids) that have not joined, if known."""


class Leave(ProtocolMessage):
    """A node leaves -> ``Done``. Its work is finished or given up; no other node waits for it."""

    node_id: int
    incarnation: str = ""
    reason: str = ""
    succeeded: bool = False
    """True if its workers succeeded: the other nodes do not restart because of it."""
    known_dead: int | None = None
    """The node that is gone, in place of the sender, as seen by a launcher, operator or peer."""


class FailureReport(ProtocolMessage, tag="Failure"):
    """Workers of a node failed -> ``Done``. It is recorded; the agent acts by itself."""

    node_id: int
    round: int = 0
    attempt: int = 0
    ranks: tuple[int, ...] = ()
    local_ranks: tuple[int, ...] = ()
    """Leases of shards of these workers are released."""
    exit_codes: tuple[int, ...] = ()
    cause: str = ""
    """A cause of ``gangline.api.failure``."""
    blame: str = ""
    remedy: str = ""
    message: str = ""
    """End of the log or traceback, at most 4,096 characters."""
    action: str = ""
    """The agent's action: RestartInPlace, LeaveNode, StopJob."""


class WorkersFinished(ProtocolMessage, tag="Finished"):
    """All workers of a node succeeded -> ``Done`` once those of all members have.

    A long poll: ``Waiting`` after ``wait_s``, ask again. ``Refused`` RoundOver if the world is
    broken: join again (a command says so too).
    """

    node_id: int
    incarnation: str = ""
    round: int = 0
    attempt: int = 0
    wait_s: float = 30.0


class JobEvent(ProtocolMessage):
    """An event for the job's timeline -> ``Done``."""

    reason: str
    message: str = ""
    node_id: int | None = None
    at: float = 0.0


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
