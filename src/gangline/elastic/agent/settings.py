"""Settings of an agent. The launcher builds them once, from flags and environment."""

import signal
from dataclasses import dataclass, field

DEFAULT_MAX_RESTARTS = 3
DEFAULT_SHUTDOWN_S = 30.0
DEFAULT_RESTART_GRACE_S = 3.0
DEFAULT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    arguments: tuple[str, ...]
    """The complete command line; ``${local_rank}`` is replaced by the local rank."""
    is_python: bool
    """True if an interpreter runs a script or module. Only these can have spares."""
    name: str


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Where the output of workers is written. Bit 1 is stdout, bit 2 is stderr."""

    folder: str | None = None
    """Folder in which the folder of this run is created; None for a temporary one."""
    redirects: int | dict[int, int] = 0
    """Streams that go to files instead of the console, by local rank."""
    tee: int | dict[int, int] = 0
    """Streams that go to files and to the console, by local rank."""
    shown_ranks: frozenset[int] | None = None
    """Local ranks whose output the console shows; None for all."""
    prefix: str | None = None
    """Template of the prefix of teed lines, with role_name, rank and local_rank."""
    stdout_filters: tuple[str, ...] = ()
    """Teed lines that contain one of these are also written to filtered_stdout.log."""
    stderr_filters: tuple[str, ...] = ()
    poll_interval_s: float = 0.1


@dataclass(frozen=True, slots=True)
class SpareSettings:
    enabled: bool = True
    preload: tuple[str, ...] = ()
    """Modules to import in addition to those learned from the first start."""
    reserve_bytes: int = 1 << 30
    """Memory that must stay free beside the spares; below it there are no spares."""


@dataclass(frozen=True, slots=True)
class HangSettings:
    """When a worker group counts as hung."""

    timeout_s: float | None = None
    """Maximum time without progress, of a step and of phases without their own; None: no limit."""
    start_s: float | None = None
    """Maximum time from the start of the workers to their first report."""
    first_step_s: float | None = None
    """Maximum time from the first report to the first step."""
    evaluation_s: float | None = None
    checkpoint_s: float | None = None
    is_learned: bool = False
    """True if the time-out of a step follows from the step times, as soon as those are known."""
    gather_s: float = 5.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    command: WorkerCommand
    local_world_size: int
    role: str = "default"
    run_id: str = "none"
    max_restarts: int | None = None
    """Restarts of the group; None for the default, which does not apply to errors of the program.
    """
    restart_window_s: float | None = None
    """Restarts count for this time, and only until the job has made progress; None: for ever."""
    shutdown_s: float = DEFAULT_SHUTDOWN_S
    """Time between a signal and SIGKILL, at the end of the run."""
    restart_grace_s: float = DEFAULT_RESTART_GRACE_S
    """Time between a signal and SIGKILL before a restart; at most ``shutdown_s``. A main thread
    that waits in a collective of NCCL never handles the signal.
    """
    signals: tuple[signal.Signals, ...] = DEFAULT_SIGNALS
    """Signals that end the agent after it has forwarded them to the workers."""
    virtual_local_rank: bool = False
    """True if each worker sees its device as number 0 and itself as local rank 0."""
    serves_store: bool = True
    """True if the agent of rank 0 serves the workers' store; the same on all nodes. False for
    releases of PyTorch that do not speak its protocol: rank 0 opens the store then.
    """
    min_workers: int = 0
    """Workers that continue while a lost one has no successor; 0 for all. See ``survivors``."""
    min_nodes: int = 1
    """Nodes that continue when another one is lost."""
    successors: int = 1
    """Processes on each node that wait to take the place of a lost worker; with 0 they are started
    when one is lost.
    """
    has_other_nodes: bool = False
    """True if an operator can replace this node."""
    node_name: str = ""
    save_command: tuple[str, ...] = ()
    """Command that writes the newest checkpoint in memory to storage. It is run on request, and
    when this node gets a signal to end.
    """
    saves_on_failure: bool = False
    """True if it is also run at each restart, and awaited at the end."""
    tunes_batch: bool = False
    """True if data loaders read settings that the master passes on."""
    brain_url: str | None = None
    """URL of a Brain outside of a cluster, to which facts are sent."""
    affinity: tuple[frozenset[int], ...] = ()
    """Processors of each local rank; empty for all."""
    logs: LogSettings = field(default_factory=LogSettings)
    spares: SpareSettings = field(default_factory=SpareSettings)
    hang: HangSettings = field(default_factory=HangSettings)

    @property
    def restart_stop_s(self) -> float:
        """Time between a signal and SIGKILL before a restart."""
        return min(self.restart_grace_s, self.shutdown_s)

    @property
    def restart_limit(self) -> int:
        return DEFAULT_MAX_RESTARTS if self.max_restarts is None else self.max_restarts


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Identity of this node, and its rendezvous parameters."""

    job: str
    master_address: str
    node_id: int
    node_rank: int
    host: str
    local_world_size: int
    min_nodes: int = 1
    max_nodes: int = 1
    node_unit: int = 1
    last_call_s: float = 0.0
    join_timeout_s: float = 0.0
    connect_timeout_s: float = 60.0
    topology: tuple[str, ...] = ()
    pod: str = ""
    """Name of the pod, or of the host outside of a cluster."""
    witness_address: str | None = None
    """host:port of the cluster's API server; None if no component would replace this node.

    A node that reaches neither the witness nor any other node ends.
    """
