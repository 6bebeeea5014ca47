"""Messages about the state of a node, and commands to it."""

from typing import TypeAlias

import msgspec

from gangline.elastic.phase import NodePhase
from gangline.elastic.progress import SaveCounts
from gangline.elastic.protocol.base_messages import ProtocolMessage


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


class GetCommands(ProtocolMessage):
    """Wait for commands -> ``Commands``. A long poll; skips commands up to ``seen``."""

    node_id: int
    incarnation: str = ""
    seen: int = 0
    wait_s: float = 30.0


class Commands(ProtocolMessage):
    """Commands, in order; often none."""

    commands: tuple[NodeCommand, ...] = ()


class SendCommand(ProtocolMessage):
    """A user or component sends a command to nodes -> ``Done``."""

    what: CommandBody
    nodes: tuple[int, ...] = ()
    """Empty for all nodes."""
