"""The interface between the kubelet and a container runtime, as the CRI is in Kubernetes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
EXIT_START_FAILED = 128

REASON_CANNOT_RUN = "ContainerCannotRun"
REASON_START_ERROR = "StartError"


@dataclass(frozen=True, slots=True)
class ContainerMount:
    source: Path
    target: str
    read_only: bool = False
    volume: Path | None = None
    """The volume that ``source`` is a part of; None if it is a volume itself."""

    sub_path: str = ""
    """The path of ``source`` in its volume. Containers may replace it by a link at any time."""


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """Resource limits of a container; None is no limit."""

    cpu_request_milli: int = 0
    cpu_limit_milli: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerIdentity:
    """User and groups of a container; None means those of the kubelet."""

    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()
    capabilities: tuple[int, ...] | None = None
    """The bounding set, as the kernel's numbers of capabilities; None leaves it as it is."""

    no_new_privileges: bool = False

    @property
    def changes_nothing(self) -> bool:
        return self == ContainerIdentity(groups=self.groups)


@dataclass(frozen=True, slots=True)
class WarmEnvironment:
    """A Python environment whose containers start from an interpreter that has imported modules."""

    modules: tuple[str, ...]
    variables: Mapping[str, str]
    """The environment of the interpreter: what every container of the image gets."""


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """Everything that a runtime needs for one run of a container."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    instance: int
    """The number of this run, from 0."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    state_dir: Path
    """A folder for this run only; the kubelet creates and removes it."""

    workdir: str = "/"
    mounts: tuple[ContainerMount, ...] = ()
    root: Path | None = None
    """The root folder of its image; None mounts the machine's own files."""

    hostname: str = ""
    netns: str | None = None
    identity: ContainerIdentity = field(default_factory=ContainerIdentity)
    limits: ContainerLimits = field(default_factory=ContainerLimits)
    sysctls: tuple[tuple[str, str], ...] = ()
    """Kernel parameters as paths below ``/proc/sys``, with their values."""

    read_only_root: bool = False
    gpu_devices: bool = False
    """True if the device files of GPUs are visible."""

    stdin: bool = False
    tty: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    warm: WarmEnvironment | None = None
    """The environment in which its command may start warm; None if the image map asks for none."""

    @property
    def container_id(self) -> str:
        return f"gangline://{self.pod_uid}/{self.container}/{self.instance}"


@dataclass(frozen=True, slots=True)
class ContainerExit:
    code: int
    finished_at: datetime
    oom_killed: bool = False
    reason: str = ""
    """Overrides the reason that follows from the code, for a command that cannot be run."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """The resource usage of a run: CPU time since its start, memory now."""

    cpu_ns: int
    memory_bytes: int


class ContainerStartError(Exception):
    """A run could not be started; reason and exit code become part of its terminated state."""

    def __init__(self, message: str, reason: str, exit_code: int) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.exit_code = exit_code


OutputCallback = Callable[[str, bytes], None]
"""Receives the output of a container: the stream (``stdout`` or ``stderr``) and the bytes."""


ByteStreams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""A connection into a pod."""


class ProcessInput(Protocol):
    """The standard input of a process, and its terminal."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait until standard input accepts more."""

    def close_stdin(self) -> None: ...

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal; does nothing without one."""


class ExecSession(ProcessInput, Protocol):
    """One command that runs in a container beside its main process."""

    async def wait(self) -> int:
        """The exit code, after the command has ended and its output was delivered."""

    def pause_output(self, held: bool) -> None:
        """Pause or resume output; the command blocks when its pipes are full."""

    def kill(self) -> None:
        """Kill the command and its descendants."""


class RunningContainer(ProcessInput, Protocol):
    """One run of a container, from its start until `wait` returns."""

    @property
    def container_id(self) -> str:
        """Unique for every run."""

    @property
    def started_at(self) -> datetime:
        """The start time of its command."""

    async def wait(self) -> ContainerExit:
        """The exit of the run, after all of its output was delivered."""

    def terminate(self) -> None:
        """Send SIGTERM to the main process."""

    def kill(self) -> None:
        """Send SIGKILL to every process of the run."""

    def usage(self) -> ContainerUsage | None:
        """Its resource usage; None if it cannot be measured."""

    def attach(self, output: OutputCallback) -> Callable[[], None]:
        """Add a consumer of output; the returned function removes it."""

    async def exec(
        self, argv: Sequence[str], output: OutputCallback, *, stdin: bool = False, tty: bool = False
    ) -> ExecSession:
        """Run a command inside. Raises ContainerStartError: the run has ended, or the command
        cannot be run.
        """


class ContainerRuntime(Protocol):
    """Starts containers."""

    async def start(self, plan: ContainerPlan, output: OutputCallback) -> RunningContainer:
        """Start one run; returns when its command is about to run.

        Raises:
            ContainerStartError: its file system or command could not be set up.
            OSError: the machine lacks a resource now (disk, processes): try again later.
        """

    @property
    def mounts_files(self) -> bool:
        """True if containers have file systems of their own."""
        ...

    def describe_limitations(self) -> str:
        """The limitations of this machine for pods; empty if there are none."""

    async def forward(self, netns: str | None, address: str, port: int) -> ByteStreams:
        """Connect to a port inside a pod. Raises OSError: nothing listens there."""
