"""Worker processes: start, exit notification, signals.

An exit is noticed immediately through a pidfd, without polling. Each worker leads a process group,
so that its children end with it, and is killed by the kernel if the agent dies (PR_SET_PDEATHSIG).
"""

import asyncio
import contextlib
import ctypes
import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HOOK_FOLDER = Path(__file__).parent.parent / "forkserver" / "hook"
HOOK_VARIABLE = "GANGLINE_WORKER_HOOK"
STACKS_VARIABLE = "GANGLINE_STACKS"
STACKS_SIGNAL = signal.SIGRTMIN + 7
"""Signal that makes a worker write its stacks. Scripts and libraries do not use this one."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None)
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_subreaper_numbers = itertools.count()
_subreapers: set[int] = set()
"""Numbers of the blocks in which this process is a subreaper."""
_KILL_TIMEOUT_S = 30.0
"""Time limit after SIGKILL: a process in uninterruptible sleep is abandoned."""


class StartError(Exception):
    """The command of the workers cannot be started."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class AdoptedChild:
    """A child of this process that another process has started, with the interface of Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.returncode = 0  # as Popen does: the status is unknown
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


@dataclass(eq=False, slots=True)
class Process:
    """A started process. ``ended`` gets its exit code as soon as the process is dead."""

    popen: subprocess.Popen[bytes] | AdoptedChild
    ended: asyncio.Future[int]
    ended_at: float = 0.0
    """Time of the exit, in seconds since 1970."""
    _descriptor: int = field(default=-1)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def signal_group(self, number: signal.Signals) -> None:
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def signal_process(self, number: int) -> None:
        if not self.ended.done():
            self.popen.send_signal(number)

    def _reap(self) -> None:
        code = self.popen.poll()
        if code is None:
            return
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.ended_at = time.time()
        if code:
            # Children of a failed worker, such as data loaders, must not outlive it. After success
            # they may run until the end of the job.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        if not self.ended.done():
            self.ended.set_result(code)


def start_process(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: Path | None = None,
    stderr: Path | None = None,
    channel: socket.socket | None = None,
    prepare: Callable[[], None] | None = None,
) -> Process:
    """Start a process and watch it; needs a running event loop.

    Args:
        prepare: called in the new process before its program is loaded.

    Raises:
        StartError: the program does not exist or cannot be executed.
    """

    def before() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if prepare:
            prepare()

    with contextlib.ExitStack() as files:
        out, err = (
            files.enter_context(path.open("wb")) if path else None for path in (stdout, stderr)
        )
        try:
            popen = subprocess.Popen(
                arguments,
                env=environment,
                stdout=out,
                stderr=err,
                start_new_session=True,
                pass_fds=[channel.fileno()] if channel else [],
                preexec_fn=before,  # noqa: PLW1509 - the agent has one thread
            )
        except FileNotFoundError as error:
            raise StartError(f"{arguments[0]}: there is no such program", _NOT_FOUND) from error
        except (OSError, subprocess.SubprocessError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise StartError(f"{arguments[0]}: {reason}", _NOT_EXECUTABLE) from error
    return _watch(popen)


def adopt_process(pid: int) -> Process:
    """Watch a child that another process has started; needs a running event loop."""
    return _watch(AdoptedChild(pid))


@contextlib.contextmanager
def as_subreaper() -> Iterator[None]:
    """Become the parent of descendants whose parents end meanwhile (prctl(2))."""
    number = next(_subreaper_numbers)
    _subreapers.add(number)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _subreapers.remove(number)
        if not _subreapers:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _watch(popen: subprocess.Popen[bytes] | AdoptedChild) -> Process:
    loop = asyncio.get_running_loop()
    process = Process(popen, loop.create_future(), _descriptor=os.pidfd_open(popen.pid))
    loop.add_reader(process._descriptor, process._reap)
    return process


def bind_to_processors(processors: frozenset[int]) -> None:
    """Bind the calling process to processors; called before its program is loaded."""
    if processors:
        os.sched_setaffinity(0, processors)


def hook_environment(
    environment: Mapping[str, str], mode: str, channel: socket.socket
) -> dict[str, str]:
    """Return the environment that makes an interpreter run the worker hook before its script."""
    paths = [str(HOOK_FOLDER), *filter(None, [environment.get("PYTHONPATH")])]
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(paths),
        HOOK_VARIABLE: f"{mode}:{channel.fileno()}",
    }


def process_state(pid: int) -> str:
    """Return the letter of a process's state in ``/proc/PID/stat``; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped the process, so that it runs no code."""
    return process_state(pid) in ("T", "t")


async def end_processes(
    processes: Sequence[Process],
    number: signal.Signals,
    grace_s: float,
    *,
    killed: Collection[Process] = (),
) -> bool:
    """Signal processes and wait; kill the remaining ones. Returns True if any had to be killed.

    Args:
        grace_s: time between the signal and SIGKILL.
        killed: the processes that get SIGKILL immediately.
    """
    living = [process for process in processes if not process.ended.done()]
    for process in living:
        process.signal_group(signal.SIGKILL if process in killed else number)
        # A stopped process handles no signal. One that has just been stopped may not show it yet;
        # to one that runs this means nothing.
        process.signal_group(signal.SIGCONT)
    if not living:
        return False
    _, left = await asyncio.wait([process.ended for process in living], timeout=grace_s)
    if not left:
        return False
    for process in living:
        process.signal_group(signal.SIGKILL)
    await asyncio.wait(left, timeout=_KILL_TIMEOUT_S)
    return True
