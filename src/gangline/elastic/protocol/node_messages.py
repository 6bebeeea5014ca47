"""Messages about the state of a node, and commands to it."""

from typing import TypeAlias

import msgspec

from gangline.elastic.phase import NodePhase
from gangline.elastic.progress import SaveCounts
from gangline.elastic.protocol.base_messages import ProtocolMessage
from gangline.elastic.training_report import ModelShape, StepTimes


class DeviceUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Usage of one accelerator."""

    index: int
    used_bytes: int = 0
    total_bytes: int = 0
    busy: float = 0.0
    """Utilization, between 0 and 1."""


class NodeResources(msgspec.Struct, frozen=True, omit_defaults=True):
    """Usage of a node's workers."""

    cpus: float = 0.0
    """CPUs in use."""
    memory_bytes: int = 0
    devices: tuple[DeviceUsage, ...] = ()
    is_warm: bool | None = None
    """True if the next workers start without imports; None if that is disabled or not known."""


class NodeReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Steps, memory and tuning of a node. None and empty values are not known.

    The fields up to ``saves_adapt`` are those of ``TrainingReport``. They are one field of
    ``Heartbeat``, because maps of up to 15 fields have a shorter header, which earlier releases
    have written.
    """

    batch_size: int | None = None
    accumulation: int | None = None
    compute_s: float | None = None
    sync_s: float | None = None
    data_s: float | None = None
    grad_sqr: float | None = None
    grad_var: float | None = None
    device_peak_bytes: tuple[int, ...] = ()
    """By device."""
    device_model: str = ""
    global_batch: int | None = None
    step_times: StepTimes | None = None
    model: ModelShape | None = None
    device_memory_bytes: int | None = None
    loader_workers: int | None = None
    save_s: float | None = None
    save_interval_s: float | None = None
    saves_adapt: int | None = None
    pod: str = ""
    """Name of the pod, or of the host."""
    memory_peak_bytes: int | None = None
    """Highest memory use of the pod so far."""
    tuning_version: int | None = None
    """Version of the tuning that the node has applied; None if it takes none."""
    tunes_batch: bool = False
    """True if its workers read the settings of the data loader from the agent's file."""


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
    """The step that is in storage; None if none was written."""


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
