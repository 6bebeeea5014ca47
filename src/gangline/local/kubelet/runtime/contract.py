"""What the kubelet asks of a runtime, and what it gets: the seam between deciding and running."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
EXIT_START_FAILED = 128
EXIT_KILLED = 137

REASON_CANNOT_RUN = "ContainerCannotRun"
REASON_START_ERROR = "StartError"


@dataclass(frozen=True, slots=True)
class Mount:
    """One file or folder of this machine that a container sees at ``target``."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the machine a container may use; None is no limit."""

    cpu_request_milli: int = 0
    cpu_limit_milli: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a container runs as; None keeps the user of the kubelet."""

    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """All that is needed to run one instance of a container."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    instance: int
    """Counts the starts of this container, from 0."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    state_dir: Path
    """A folder for this instance alone; the kubelet makes and removes it."""

    workdir: str = "/"
    mounts: tuple[Mount, ...] = ()
    root: Path | None = None
    """The root folder of its image; None shows the machine's own files."""

    hostname: str = ""
    netns: str | None = None
    identity: Identity = field(default_factory=Identity)
    limits: Limits = field(default_factory=Limits)
    read_only_root: bool = False
    gpu_devices: bool = False
    """Whether the device files of GPUs are shown."""

    stdin: bool = False
    tty: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def container_id(self) -> str:
        """What ``status.containerStatuses[].containerID`` says."""
        return f"gangline://{self.pod_uid}/{self.container}/{self.instance}"


@dataclass(frozen=True, slots=True)
class Exit:
    """How an instance ended."""

    code: int
    finished_at: datetime
    oom_killed: bool = False
    reason: str = ""
    """Overrides the reason that follows from the code (a command that cannot be run)."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an instance has used: processor time since its start, memory now."""

    cpu_ns: int
    memory_bytes: int


class StartFailed(Exception):
    """An instance could not be started; reason and exit code go into its terminated state."""

    def __init__(self, message: str, reason: str, exit_code: int) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.exit_code = exit_code


Output = Callable[[str, bytes], None]
"""Takes what a container writes: the stream (``stdout`` or ``stderr``) and the bytes."""


class ExecSession(Protocol):
    """One command run inside a running container, beside its main process."""

    async def wait(self) -> int:
        """The exit code, once the command has ended and its output was delivered."""
        ...

    def write(self, data: bytes) -> None:
        """Feed standard input."""
        ...

    async def drain(self) -> None:
        """Wait until standard input takes more, after much was fed."""
        ...

    def close_stdin(self) -> None:
        """End standard input."""
        ...

    def resize(self, columns: int, rows: int) -> None:
        """Tell a terminal its size; does nothing without one."""
        ...

    def hold(self, held: bool) -> None:
        """Stop delivering output, or go on: the command waits when its pipes are full."""
        ...

    def kill(self) -> None:
        """End the command and what it started."""
        ...


class RunningContainer(Protocol):
    """One instance of a container, from its start until `wait` returns."""

    @property
    def container_id(self) -> str:
        """Unique for every instance."""
        ...

    @property
    def started_at(self) -> datetime:
        """When its command began."""
        ...

    async def wait(self) -> Exit:
        """How it ended, once it has and all of its output was delivered."""
        ...

    def terminate(self) -> None:
        """Ask the main process to end (SIGTERM)."""
        ...

    def kill(self) -> None:
        """End every process of the instance at once (SIGKILL)."""
        ...

    def usage(self) -> Usage | None:
        """What it uses, or None when that cannot be told."""
        ...

    def attach(self, output: Output) -> Callable[[], None]:
        """Deliver output to one more taker; the returned function ends that."""
        ...

    def write(self, data: bytes) -> None:
        """Feed standard input, where the plan asked for it."""
        ...

    async def drain(self) -> None:
        """Wait until standard input takes more, after much was fed."""
        ...

    def close_stdin(self) -> None:
        """End standard input."""
        ...

    def resize(self, columns: int, rows: int) -> None:
        """Tell the container's terminal its size; does nothing without one."""
        ...

    async def exec(
        self, argv: Sequence[str], output: Output, *, stdin: bool = False, tty: bool = False
    ) -> ExecSession:
        """Run a command inside.

        Raises:
            StartFailed: the instance has ended, or the command cannot be run.
        """
        ...


class Runtime(Protocol):
    """Starts containers."""

    async def start(self, plan: ContainerPlan, output: Output) -> RunningContainer:
        """Start one instance; returns when its command is about to run.

        Raises:
            StartFailed: its file system or command could not be set up.
            OSError: the machine lacks something now (space, processes): try again later.
        """
        ...

    def describe_gaps(self) -> str:
        """What this machine does not allow and pods must do without; empty when nothing."""
        ...

    async def forward(self, netns: str | None, address: str, port: int) -> "ByteStream":
        """Connect to a port inside a pod.

        Raises:
            OSError: nothing listens there.
        """
        ...

    async def clean_up(self) -> None:
        """Remove what a killed kubelet left behind (limits, mounts)."""
        ...


class ByteStream(Protocol):
    """A two-way stream of bytes into a pod."""

    async def read(self) -> bytes:
        """The next bytes, or empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        ...

    async def close(self) -> None:
        """End both ways."""
        ...
