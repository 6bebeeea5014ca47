"""Reported progress of a worker group, and the processors and memory that it uses."""

import os
import time
from pathlib import Path

from gangline.elastic.agent.progress_report import WorkerUsage
from gangline.elastic.agent.workers.worker_group import WorkerGroup
from gangline.elastic.memory import resident_bytes
from gangline.elastic.progress import WorkerProgress, read_progress

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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
