"""How many workers this machine can hold at all; a number above that is a slip.

Only what is certain counts: each worker is a process, the launcher holds a file for it, and an
interpreter has memory of its own before it runs anything. What scripts need is not known here.
"""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gangline.elastic.agent.memory import memory

_CGROUP = Path("/sys/fs/cgroup")
_INTERPRETER_MIB = 2
"""Less than any interpreter has of its own."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limit:
    """What bounds the number of workers."""

    most: int
    reason: str


def tightest_limit(
    *,
    is_python: bool = True,
    is_root: bool | None = None,
    proc: Path = Path("/proc"),
    cgroup: Path = _CGROUP,
) -> Limit:
    """Return what bounds the number of workers here the most.

    Args:
        is_python: whether workers are interpreters.
        is_root: whether limits of users do not hold; None: find out.
        proc: where the kernel tells of processes.
        cgroup: where the kernel tells of the container.
    """
    root = os.geteuid() == 0 if is_root is None else is_root
    found = [*_of_user(root), *_of_system(proc, cgroup)]
    if is_python:
        there = memory(proc, cgroup).limit_bytes // _MIB
        reason = f"there are {there} MiB of memory, and an interpreter takes {_INTERPRETER_MIB}"
        found.append(Limit(there // _INTERPRETER_MIB, reason))
    return min(found, key=lambda limit: limit.most)


def _of_user(is_root: bool) -> Iterator[Limit]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        yield Limit(files, f"the launcher may open {files} files (ulimit -n)")
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY and not is_root:
        yield Limit(processes, f"this user may have {processes} processes (ulimit -u)")


def _of_system(proc: Path, cgroup: Path) -> Iterator[Limit]:
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
        yield Limit(most, f"{path} is {most}")
