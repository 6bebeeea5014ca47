"""Resources that workers use: processors, memory, and the highest memory use of the pod so far.

A container has a cgroup of its own, whose peak the kernel records. That peak includes pages of
files: reading a data set fills the memory up to its limit, although the kernel would reclaim those
pages. So the peak of the cgroup is an upper bound, and two other figures are a lower one: the use
without the file cache, which is sampled, and the sum of the peaks of the resident sets of the agent
and its descendants, which holds short peaks too, and counts shared pages repeatedly. Processes
without a cgroup of their own, such as the pods of the embedded cluster, have only that sum.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from gangline.elastic.agent.progress_report import WorkerUsage
from gangline.elastic.agent.worker_group import WorkerGroup
from gangline.elastic.memory import cgroup_use_bytes, peak_resident_bytes, resident_bytes
from gangline.elastic.progress import WorkerProgress, read_progress

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PEAK_FILES = ("memory.peak", "memory.max_usage_in_bytes")
"""The peak in a cgroup, for version 2 and 1 of the interface."""


def read_worker_progress(group: WorkerGroup) -> list[WorkerProgress]:
    return [
        read_progress(worker.files.progress_file, worker.files.metrics_file)
        for worker in group.workers
    ]


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class UsageMeter:
    """Measures the resource usage of one attempt's workers and their children."""

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self._busy_s, self._measured_at = 0.0, time.monotonic()

    def usage(self) -> WorkerUsage:
        """Return the processors used since the last call, and the memory used now."""
        pids = [
            pid
            for worker in self._group.workers
            for pid in _process_and_children(worker.process.pid)
        ]
        busy_s, now = sum(map(processor_seconds, pids)), time.monotonic()
        passed, used = now - self._measured_at, max(0.0, busy_s - self._busy_s)
        self._busy_s, self._measured_at = busy_s, now
        return WorkerUsage(
            round(used / passed, 3) if passed else 0.0, sum(map(resident_bytes, pids))
        )


def _process_and_children(pid: int) -> list[int]:
    """Return a process and its children, such as data loaders."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []  # it has ended, or this kernel lacks the file
    return [pid, *map(int, children)]


class PeakMemory:
    """Measures the peak of this process, its descendants, and the rest of its own cgroup."""

    def __init__(
        self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup"), pid: int = 0
    ) -> None:
        self._proc, self._pid = proc, pid or os.getpid()
        self._cgroup = cgroup
        self._peak_file: Path | None = None
        self._is_examined = False
        self._highest = 0
        """Of the resident sets, and of the use without the file cache."""
        self._bound = 0
        """The peak of the cgroup; 0 if it has none."""

    def peak_bytes(self) -> int | None:
        """Return the highest use so far; None if it cannot be measured."""
        if not self._is_examined:
            self._peak_file, self._is_examined = self._own_peak_file(), True
        pids = [self._pid, *self._descendants(self._pid)]
        resident = sum(peak_resident_bytes(pid, self._proc) for pid in pids)
        self._highest = max(self._highest, resident)
        if self._peak_file is not None:
            try:
                self._bound = max(self._bound, int(self._peak_file.read_text()))
            except (OSError, ValueError):
                self._peak_file = None
            else:
                used = cgroup_use_bytes(self._peak_file.parent)
                # Without a figure for the file cache the upper bound is all that is certain.
                self._highest = max(self._highest, self._bound if used is None else used)
        return min(self._highest, self._bound or self._highest) or None

    def _own_peak_file(self) -> Path | None:
        """Return the file with the cgroup's peak, if all its processes belong to this pod."""
        own = {self._pid, *self._ancestors(), *self._descendants(self._pid)}
        for folder in self._cgroup_folders():
            try:
                peak = next(folder / name for name in _PEAK_FILES if (folder / name).exists())
                int(peak.read_text())
                pids = {int(line) for line in (folder / "cgroup.procs").read_text().split()}
            except (OSError, ValueError, StopIteration):
                continue
            # A process of another PID namespace is listed as 0, which is no process of ours.
            if pids and pids <= own:
                return peak
        return None

    def _cgroup_folders(self) -> Iterator[Path]:
        """List where the cgroup may be; a container sees its own as the root."""
        try:
            lines = (self._proc / f"{self._pid}/cgroup").read_text().splitlines()
        except OSError:
            lines = []
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield self._cgroup / path.lstrip("/")
            elif "memory" in controllers.split(","):
                yield self._cgroup / "memory" / path.lstrip("/")
        yield self._cgroup
        yield self._cgroup / "memory"

    def _ancestors(self) -> list[int]:
        ancestors: list[int] = []
        pid = self._pid
        while pid > 1 and len(ancestors) < 64:
            try:
                fields = (self._proc / f"{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                break
            pid = int(fields[1])
            ancestors.append(pid)
        return ancestors

    def _descendants(self, pid: int) -> list[int]:
        try:
            children = (self._proc / f"{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []
        return [
            descendant
            for child in map(int, children)
            for descendant in (child, *self._descendants(child))
        ]
