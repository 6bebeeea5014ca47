"""The highest memory use of this pod so far.

A container has a cgroup of its own, whose peak the kernel records exactly. Processes without one,
such as the pods of the embedded cluster, share a cgroup with others. Then the peaks of the resident
sets of the agent and its descendants are added; pages that they share are counted repeatedly.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from gangline.elastic.memory import peak_resident_bytes

_PEAK_FILES = ("memory.peak", "memory.max_usage_in_bytes")
"""The peak in a cgroup, for version 2 and 1 of the interface."""


class PeakMemory:
    """Measures the peak of this process, its descendants, and the rest of its own cgroup."""

    def __init__(
        self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup"), pid: int = 0
    ) -> None:
        self._proc, self._pid = proc, pid or os.getpid()
        self._cgroup = cgroup
        self._cgroup_file: Path | None = None
        self._is_examined = False
        self._highest = 0

    def peak_bytes(self) -> int | None:
        """Return the highest use so far; None if it cannot be measured."""
        if not self._is_examined:
            self._cgroup_file, self._is_examined = self._own_cgroup_file(), True
        if self._cgroup_file is not None:
            try:
                self._highest = max(self._highest, int(self._cgroup_file.read_text()))
            except (OSError, ValueError):
                self._cgroup_file = None
        if self._cgroup_file is None:
            pids = [self._pid, *self._descendants(self._pid)]
            now = sum(peak_resident_bytes(pid, self._proc) for pid in pids)
            self._highest = max(self._highest, now)
        return self._highest or None

    def _own_cgroup_file(self) -> Path | None:
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
        found: list[int] = []
        pid = self._pid
        while pid > 1 and len(found) < 64:
            try:
                fields = (self._proc / f"{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                break
            pid = int(fields[1])
            found.append(pid)
        return found

    def _descendants(self, pid: int) -> list[int]:
        try:
            children = (self._proc / f"{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []
        return [each for child in map(int, children) for each in (child, *self._descendants(child))]
