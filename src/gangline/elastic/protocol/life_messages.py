"""Messages that say how a node is, and commands that say what it should do."""

from typing import TypeAlias

import msgspec

from gangline.elastic.phase import Phase
from gangline.elastic.progress import Saves
from gangline.elastic.protocol.kinds import Message


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one accelerator does."""

    index: int
    used_bytes: int = 0
    total_bytes: int = 0
    busy: float = 0.0
    """Between 0 and 1."""


class Resources(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node's workers use."""

    cpus: float = 0.0
    """In use, in cpus."""
    memory_bytes: int = 0
    devices: tuple[Device, ...] = ()


class Heartbeat(Message):
    """A node lives -> ``Commands`` (those above ``commands_seen``, often none)."""

    node_id: int
    incarnation: str = ""
    round: int = 0
    """Whose workers run; 0 while there are none and the node waits for a world."""
    attempt: int = 0
    phase: str = Phase.WAITING
    step: int | None = None
    """The last step that the node's workers finished."""
    first_step: int | None = None
    """The first one of this attempt: what was done before from there on is done again."""
    steps_per_s: float = 0.0
    spent_s: dict[str, float] = {}
    """Seconds of this attempt, since its begin, that were no training: phase -> all so far."""
    checkpoint_step: int | None = None
    """The last step that a complete checkpoint holds."""
    saves: Saves = Saves()
    resources: Resources | None = None
    commands_seen: int = 0


class Restart(Message):
    """Stop the workers of this round and join again: the members have changed.

    A ``World`` of this round or an older one that comes later is over too; a newer one stands.
    """

    round: int
    reason: str = ""


class Stop(Message):
    """Stop the workers and end."""

    reason: str
    message: str = ""
    failed: bool = False
    """Whether the job failed, else it is over or suspended."""


class RunCheck(Message):
    """Check the node before going on."""

    reason: str = ""
    nodes: tuple[int, ...] = ()
    """All that are told to, and test with each other; the master fills it in."""


class SaveCheckpoint(Message):
    """Write a checkpoint now."""

    reason: str = ""


class DumpStacks(Message):
    """Write the stacks of all workers to the log."""

    reason: str = ""


class Evict(Message):
    """Leave this machine: it is bad or wanted. End so that a replacement is made elsewhere."""

    reason: str
    message: str = ""


CommandKind: TypeAlias = Restart | Stop | RunCheck | SaveCheckpoint | DumpStacks | Evict


class Command(msgspec.Struct, frozen=True):
    """A command with its number; numbers of a node rise."""

    number: int
    what: CommandKind


class GetCommands(Message):
    """Wait for commands -> ``Commands``. A long poll; what ``seen`` names is not sent again."""

    node_id: int
    incarnation: str = ""
    seen: int = 0
    wait_s: float = 30.0


class Commands(Message):
    """What to do, in order; often nothing."""

    commands: tuple[Command, ...] = ()


class SendCommand(Message):
    """A person or component wants nodes to do something -> ``Done``."""

    what: CommandKind
    nodes: tuple[int, ...] = ()
    """Empty: all."""
