"""What must not outlive a run: processes that a script has left behind, and temporary files.

Every worker's environment names a file in the folder of its run (``GANGLINE_PROGRESS_FILE``), and
its descendants inherit that variable. So they are found in ``/proc`` although they may have left
the worker's process group and session. A fork of a worker that the fork server has started shows
the variables of that server instead; it is found if it has remained in the worker's session. The
saver of checkpoints is none of them: it ends by itself when all checkpoints are in storage.

A launcher that ends in order removes both. ``Cleaner`` does it for a launcher that is killed.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import signal
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

_PR_SET_NAME = 15
_ARG_START, _ARG_END = 45, 46
"""Positions in ``/proc/self/stat`` (proc(5), fields 48 and 49), after the name of the program."""

log = logging.getLogger(__name__)

_SAVER = b"gangline.elastic.checkpoint.saver"
_SESSION = 3
"""Position of the session in ``/proc/PID/stat``, after the name of the program."""
_POLL_S = 0.02
_SETTLE_S = 0.5
"""Time in which helpers of a script, such as its resource tracker, end by themselves."""
_CLEAN_TIMEOUT_S = 5.0
_DONE = b"\n"
_MAX_LISTED = 8


def set_process_title(title: str) -> None:
    """Write a title over the arguments of this process in memory, as PostgreSQL and others do.

    Args:
        title: cut to the length of the original command line. Its first word, at most 15
            characters, becomes the name of the process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_NAME, title.partition(" ")[0].encode())
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return  # without /proc the title is not shown either
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    size = end - start
    if start and size > 0:
        ctypes.memmove(start, title.encode()[: size - 1].ljust(size, b"\0"), size)


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
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            is_ours = int(stat[_SESSION]) in sessions
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


async def end_leftovers(name: str, sessions: Collection[int], grace_s: float) -> None:
    """End the processes that the script has left behind; kill those that remain after a time."""
    if not (left := await _wait_until_gone(name, sessions, _SETTLE_S)):
        return
    listed = "; ".join(f"{pid} ({command})" for pid, command in [*left.items()][:_MAX_LISTED])
    log.warning("ending processes that the script has left behind: %s", listed)
    _signal(left, signal.SIGTERM)
    _signal(await _wait_until_gone(name, sessions, grace_s), signal.SIGKILL)


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
