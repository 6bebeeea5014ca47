"""What an agent is told at its start. Built once by the launcher, from flags and environment."""

import signal
from dataclasses import dataclass, field

DEFAULT_MAX_RESTARTS = 3
DEFAULT_SHUTDOWN_S = 30.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Command:
    """What each worker runs."""

    arguments: tuple[str, ...]
    """All of the command line; ``${local_rank}`` stands for the local rank."""
    is_python: bool
    """Whether an interpreter is started with a script or module: only these can have spares."""
    name: str
    """What people call it: the script."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Where the output of workers goes. Bit 1 is stdout, bit 2 is stderr."""

    folder: str | None = None
    """Where a folder for this run is made; None for the folder of temporary files."""
    redirects: int | dict[int, int] = 0
    """Local rank to streams that go to files instead of the console."""
    tee: int | dict[int, int] = 0
    """Local rank to streams that go to files and to the console."""
    shown_ranks: frozenset[int] | None = None
    """Local ranks whose output is shown on the console; None for all."""
    prefix: str | None = None
    """Template of what stands before teed lines: role_name, rank, local_rank."""
    stdout_filters: tuple[str, ...] = ()
    """Teed lines that contain one of these go to filtered_stdout.log as well."""
    stderr_filters: tuple[str, ...] = ()
    look_every_s: float = 0.1
    """How often files that are teed are looked at."""


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """Spare interpreters beside the workers."""

    enabled: bool = True
    preload: tuple[str, ...] = ()
    """Modules to import beside those learned from the first start."""
    tiny_step: bool = True
    """Whether a spare trains one step on a tiny layer, when torch is among its modules."""
    reserve_bytes: int = 1 << 30
    """Memory that must stay free beside the spares; below it there are none."""
    start_delay_s: float = 1.0
    """Pause before spares are warmed: workers that have just started need the processors."""


@dataclass(frozen=True, slots=True)
class HangSettings:
    """When a group of workers counts as hung."""

    timeout_s: float | None = None
    """So long no worker may go without progress; None for never."""
    gather_s: float = 5.0
    """So long stacks and flight recorders may take to be written."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """All an agent needs to know beside the world."""

    command: Command
    local_world_size: int
    role: str = "default"
    run_id: str = "none"
    max_restarts: int | None = None
    """Restarts of the group; None for the default, which does not apply to the program's errors."""
    shutdown_s: float = DEFAULT_SHUTDOWN_S
    """So long workers may take to end after a signal, before they are killed."""
    signals: tuple[signal.Signals, ...] = SIGNALS
    """What ends the agent after being forwarded to the workers."""
    virtual_local_rank: bool = False
    """Whether each worker sees its device as number 0 and itself as local rank 0."""
    has_other_nodes: bool = False
    """Whether somebody can give another node for this one."""
    node_name: str = ""
    save_command: tuple[str, ...] = ()
    """Brings the newest checkpoint in memory to storage; run when that is asked for, and when the
    node is told to end."""
    saves_on_failure: bool = False
    """Whether it is run beside each restart as well, and waited for at the end."""
    affinity: tuple[frozenset[int], ...] = ()
    """The processors of each local rank; empty for all."""
    logs: LogSettings = field(default_factory=LogSettings)
    standby: StandbySettings = field(default_factory=StandbySettings)
    hang: HangSettings = field(default_factory=HangSettings)

    @property
    def restart_limit(self) -> int:
        """Restarts that are granted at most."""
        return DEFAULT_MAX_RESTARTS if self.max_restarts is None else self.max_restarts
