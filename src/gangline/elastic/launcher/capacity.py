"""Upper limits of the number of workers on this machine; a larger number is a mistake of the user.

Only certain limits count: each worker is a process, the launcher opens a file for it, and an
interpreter needs memory before it runs anything. The needs of scripts are unknown.
"""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gangline.elastic.agent.memory import memory_status

_CGROUP = Path("/sys/fs/cgroup")
_INTERPRETER_MIB = 2
"""Less memory than any interpreter needs."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkerLimit:
    """A limit of the number of workers, and its reason."""

    max_workers: int
    reason: str


def tightest_worker_limit(
    *,
    is_python: bool = True,
    is_root: bool | None = None,
    proc: Path = Path("/proc"),
    cgroup: Path = _CGROUP,
) -> WorkerLimit:
    """Return the lowest limit of the number of workers.

    Args:
        is_python: True if workers are interpreters.
        is_root: True if limits of users do not apply; None to find out.
        proc: the proc file system.
        cgroup: the cgroup file system.
    """
    root = os.geteuid() == 0 if is_root is None else is_root
    found = [*_user_limits(root), *_system_limits(proc, cgroup)]
    if is_python:
        there = memory_status(proc, cgroup).limit_bytes // _MIB
        reason = f"there are {there} MiB of memory, and an interpreter takes {_INTERPRETER_MIB}"
        found.append(WorkerLimit(there // _INTERPRETER_MIB, reason))
    return min(found, key=lambda limit: limit.max_workers)


def _user_limits(is_root: bool) -> Iterator[WorkerLimit]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        yield WorkerLimit(files, f"the launcher may open {files} files (ulimit -n)")
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY and not is_root:
        yield WorkerLimit(processes, f"this user may have {processes} processes (ulimit -u)")


def _system_limits(proc: Path, cgroup: Path) -> Iterator[WorkerLimit]:
    for path in (
        proc / "sys/kernel/pid_max",
        proc / "sys/kernel/threads-max",
        cgroup / "pids.max",
        cgroup / "pids/pids.max",
    ):
        try:
            most = int(path.read_text())
        except (OSError, ValueError):
            continue  # no such group, or "max"
        yield WorkerLimit(most, f"{path} is {most}")
