"""Processes of a run: start, exit notification, signals, and what must not outlive the run.

An exit is noticed immediately through a pidfd, without polling. Each worker leads a process group,
whose other members end after it if it fails, and is killed by the kernel if the agent dies
(PR_SET_PDEATHSIG).

Leftovers of a script: every worker's environment names a file in the folder of its run
(``GANGLINE_PROGRESS_FILE``), and its descendants inherit that variable. So they are found in
``/proc`` although they may have left the worker's process group and session. A fork of a worker
that the fork server has started shows the variables of that server instead; it is found if it has
remained in the worker's session. The saver of checkpoints is none of them: it ends by itself when
all checkpoints are in storage. A launcher that ends in order removes leftovers and temporary files;
``Cleaner`` does it for a launcher that is killed.
"""

import asyncio
import contextlib
import ctypes
import itertools
import logging
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_NAME = 15
_ARG_START, _ARG_END = 45, 46
"""Positions in ``/proc/self/stat`` (proc(5), fields 48 and 49), after the name of the program."""

log = logging.getLogger(__name__)

_SAVER = b"gangline.elastic.checkpoint.saver"
_SESSION = 3
"""Position of the session in ``/proc/PID/stat``, after the name of the program."""
_EXIT_CODE = 49
"""Position of its exit status, which is set before it gives back its memory."""
_POLL_S = 0.02
_SETTLE_S = 0.5
"""Time in which helpers of a script, such as its resource tracker, end by themselves."""
_HELPERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
"""Programs that remove the shared memory of a process when it has ended."""
_GROUP_PAUSE_S = 0.1
"""Time after a failure at which the other members of the worker's group are looked for: not before
its successor is started.
"""
_GROUP_GRACE_S = 3.0
"""Time between SIGTERM and SIGKILL for them."""
SHARED_MEMORY = Path("/dev/shm")
_CLEAN_TIMEOUT_S = 5.0
_DONE = b"\n"
_MAX_LISTED = 8
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


@dataclass(eq=False, slots=True)
class Process:
    """A started process. ``ended`` gets its exit code as soon as the process is dead."""

    pid: int
    ended: asyncio.Future[int]
    ended_at: float = 0.0
    """Time of the exit, in seconds since 1970."""
    popen: subprocess.Popen[bytes] | None = None
    """None for a child that another process has started."""
    _exit_code: int = 0
    _descriptor: int = field(default=-1)
    _members: set[int] = field(default_factory=set)
    """Processes that were seen in its group."""

    def signal_group(self, number: signal.Signals) -> None:
        if not self.ended.done():
            self._members |= set(descendants(self.pid))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def signal_process(self, number: int) -> None:
        if not self.ended.done():
            os.kill(self.pid, number)  # it is not reaped yet, so the number is its own

    def _reap(self) -> None:
        try:
            status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            code = 0  # as Popen does: the status is unknown
        else:
            if status is None:
                return
            code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.ended_at, self._exit_code = time.time(), code
        if self.popen:
            self.popen.returncode = code  # Popen does not reap it
        if code:
            # Children of a failed worker, such as data loaders, must not outlive it. After success
            # they may run until the end of the job. Invariant: the worker is reaped after them, so
            # that the number of the group is not used again meanwhile.
            _unreaped.add(self)
            loop.call_later(_GROUP_PAUSE_S, self._end_group)
        else:
            self.forget()
        if not self.ended.done():
            self.ended.set_result(code)

    def _end_group(self) -> None:
        """Ask the other members of the group to end, but those that clean up; kill them later."""
        if self not in _unreaped:
            return  # the run has ended, and the number may be that of another group
        members = _group_members(self.pid)
        self._members |= members.keys()
        _signal((pid for pid, helps in members.items() if not helps), signal.SIGTERM)
        if members:
            asyncio.get_running_loop().call_later(_GROUP_GRACE_S, self._kill_group)
        else:
            self.forget()

    def _kill_group(self) -> None:
        if self not in _unreaped:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.forget()

    def forget(self) -> None:
        """Reap the worker, and remove the memory that PyTorch shared in processes of its group."""
        _unreaped.discard(self)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        if self._exit_code:
            remove_shared_memory({self.pid, *self._members})
        else:
            _succeeded.add(self.pid)


_unreaped: set[Process] = set()
"""Failed processes whose groups may have other members."""
_succeeded: set[int] = set()
"""Their children may use shared memory until the end of the run."""


def descendants(pid: int, proc: Path = Path("/proc")) -> Iterator[int]:
    """Yield the descendants of a process that have not left it; needs no scan of all processes."""
    for listed in (proc / f"{pid}/task").glob("*/children"):
        # It may end meanwhile, and not every kernel lists children.
        with contextlib.suppress(OSError):
            for child in map(int, listed.read_text().split()):
                yield child
                yield from descendants(child, proc)


def _group_members(group: int) -> dict[int, bool]:
    """Return the living members of a process group but its leader; True for those that clean up."""
    members = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == group:
            continue
        with contextlib.suppress(OSError):
            state, _, member_of = stat_fields(folder.name)[:3]
            if int(member_of) == group and state not in ("Z", "X"):
                members[int(folder.name)] = _cleans_up((folder / "cmdline").read_text())
    return members


def _cleans_up(command: str) -> bool:
    return any(helper in command for helper in _HELPERS)


def remove_shared_memory(pids: Collection[int], folder: Path = SHARED_MEMORY) -> None:
    """Remove blocks that PyTorch has named after ended processes, and that nothing has removed."""
    for pid in pids:
        if not Path(f"/proc/{pid}").exists():
            for block in folder.glob(f"torch_{pid}_*"):
                with contextlib.suppress(OSError):
                    block.unlink()


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
    return _watch(popen.pid, popen)


def adopt_process(pid: int) -> Process:
    """Watch a child that another process has started; needs a running event loop."""
    return _watch(pid)


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


def _watch(pid: int, popen: subprocess.Popen[bytes] | None = None) -> Process:
    loop = asyncio.get_running_loop()
    process = Process(pid, loop.create_future(), popen=popen, _descriptor=os.pidfd_open(pid))
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


def stat_fields(pid: int | str, proc: Path = Path("/proc")) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name of the program, which may be anything.

    Raises OSError: the process has ended.
    """
    return (proc / f"{pid}/stat").read_text().rpartition(")")[2].split()


def process_state(pid: int) -> str:
    """Return the letter of a process's state in ``/proc/PID/stat``; empty if it has ended."""
    try:
        return stat_fields(pid)[0]
    except (OSError, IndexError):
        return ""


def is_killed(pid: int) -> bool:
    """Return whether SIGKILL has ended a process that is not reaped, or is about to end it."""
    try:
        return int(stat_fields(pid)[_EXIT_CODE]) == signal.SIGKILL
    except (OSError, IndexError):
        return False


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped the process, so that it runs no code."""
    return process_state(pid) in ("T", "t")


async def end_leftovers(name: str, sessions: Collection[int], grace_s: float) -> None:
    """End the processes that the script has left behind; kill those that remain after a time."""
    if left := await _wait_until_gone(name, sessions, _SETTLE_S):
        others = {pid: command for pid, command in left.items() if not _cleans_up(command)}
        listed = "; ".join(f"{pid} ({command})" for pid, command in [*others.items()][:_MAX_LISTED])
        if others:
            log.warning("ending processes that the script has left behind: %s", listed)
        _signal(others, signal.SIGTERM)
        _signal(await _wait_until_gone(name, sessions, grace_s), signal.SIGKILL)
    for process in list(_unreaped):
        process.forget()
    remove_shared_memory(_succeeded)


def processes_of_run(
    name: str, sessions: Collection[int] = (), proc: Path = Path("/proc")
) -> dict[int, str]:
    """Return the processes whose environment names a folder of the run, with their programs.

    Args:
        name: the unique name of the run's folder.
        sessions: sessions whose processes belong to the run as well.
    """
    processes, own = {}, os.getpid()
    for folder in proc.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == own:
            continue
        try:
            is_ours = int(stat_fields(folder.name, proc)[_SESSION]) in sessions
            if not is_ours and name.encode() not in (folder / "environ").read_bytes():
                continue
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended, or belongs to another user
        if command and _SAVER not in command:  # a process that has ended has no command
            processes[int(folder.name)] = (
                command.replace(b"\0", b" ").decode(errors="replace").strip()
            )
    return processes


async def _wait_until_gone(
    name: str, sessions: Collection[int], timeout_s: float
) -> dict[int, str]:
    """Wait for the end of all processes of a run; return those that remain after the timeout."""
    deadline = time.monotonic() + timeout_s
    while (left := processes_of_run(name, sessions)) and time.monotonic() < deadline:  # noqa: ASYNC110 - files
        await asyncio.sleep(_POLL_S)
    return left


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


class Cleaner:
    """A process that cleans up after a launcher that is killed; it waits on a pipe until then."""

    def __init__(self, name: str, folders: Sequence[Path]) -> None:
        """Fork the process. The caller must have one thread only.

        Args:
            name: the unique name of the run's folder.
        """
        reader, self._writer = os.pipe()
        launcher = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._writer)
                set_process_title(f"gangline-guard of process {launcher}")
                _clean_after(reader, name, folders)
            finally:
                os._exit(0)
        os.close(reader)

    def dismiss(self) -> None:
        """End the process: the launcher has cleaned up itself."""
        with contextlib.suppress(OSError):
            os.write(self._writer, _DONE)
        os.close(self._writer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _clean_after(reader: int, name: str, folders: Sequence[Path]) -> None:
    os.setsid()  # a signal to the launcher's group must not end this process
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):  # whoever reads the launcher's output waits for its end
        os.dup2(nowhere, descriptor)
    os.closerange(3, reader)
    os.closerange(reader + 1, os.sysconf("SC_OPEN_MAX"))
    if os.read(reader, 1) == _DONE:
        return
    deadline = time.monotonic() + _CLEAN_TIMEOUT_S
    while (left := processes_of_run(name)) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(_POLL_S)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def set_process_title(title: str) -> None:
    """Write a title over the arguments of this process in memory, as PostgreSQL and others do.

    Args:
        title: cut to the length of the original command line. Its first word, at most 15
            characters, becomes the name of the process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_NAME, title.partition(" ")[0].encode())
    try:
        fields = stat_fields(os.getpid())
    except OSError:
        return  # without /proc the title is not shown either
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    size = end - start
    if start and size > 0:
        ctypes.memmove(start, title.encode()[: size - 1].ljust(size, b"\0"), size)
