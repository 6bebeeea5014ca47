"""CPU and memory limits by control groups, version 1 or 2, where root may create them.

A container's first process adds itself to the groups before anything else, so that all processes it
starts are included. Each group is named after the cluster, the pod and the run; a restarted kubelet
removes the groups of a killed one by the cluster's name.
"""

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from gangline.local.kubelet.runtime.interface import ContainerLimits, ContainerUsage

_MOUNT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_MIN_QUOTA_US = 1_000
_SHARES_PER_CPU = 1024
_MIN_SHARES = 2
_REMOVAL_TRIES, _REMOVAL_PAUSE_S = 20, 0.02
_V1_CONTROLLERS = ("memory", "cpu", "cpuacct")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The groups of one run: one folder in version 2, one for each controller in version 1."""

    folders: tuple[Path, ...]
    unified: bool

    @property
    def procs_files(self) -> list[str]:
        """The files that a process id is written to in order to join the groups."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    @property
    def limits_memory(self) -> bool:
        name = "memory.max" if self.unified else "memory.limit_in_bytes"
        return any((folder / name).exists() for folder in self.folders)

    def oom_killed(self) -> bool:
        name = "memory.events" if self.unified else "memory.oom_control"
        return self._counter(name, "oom_kill") > 0

    def usage(self) -> ContainerUsage | None:
        """CPU time so far, and memory without the file cache that can be dropped."""
        try:
            cached = self._counter("memory.stat", "inactive_file")
            if self.unified:
                cpu_ns = self._counter("cpu.stat", "usage_usec") * 1000
                memory = int(self._read("memory.current"))
            else:
                cpu_ns = int(self._read("cpuacct.usage"))
                memory = int(self._read("memory.usage_in_bytes"))
                cached = self._counter("memory.stat", "total_inactive_file")
        except (OSError, ValueError):
            return None
        return ContainerUsage(cpu_ns, max(memory - cached, 0))

    async def remove(self) -> None:
        """Remove the groups when they are empty; others stay for the clean-up."""
        for _ in range(_REMOVAL_TRIES):
            if not [folder for folder in self.folders if not _removed(folder)]:
                return
            await asyncio.sleep(_REMOVAL_PAUSE_S)

    def _read(self, name: str) -> str:
        for folder in self.folders:
            if (path := folder / name).exists():
                return path.read_text()
        raise FileNotFoundError(name)

    def _counter(self, name: str, key: str) -> int:
        with contextlib.suppress(OSError):
            for line in self._read(name).splitlines():
                if line.startswith(key + " "):
                    return int(line.split()[1])
        return 0


class ControlGroups:
    """Creates the control groups of one cluster's containers, below a group of its own."""

    def __init__(self, name: str, mount: Path = _MOUNT) -> None:
        self._name = name
        self._unified = (mount / "cgroup.controllers").exists()
        controllers = ("",) if self._unified else _V1_CONTROLLERS
        roots = [mount / controller for controller in controllers]
        self._roots = [root for root in roots if _is_writable(root / name)]

    @property
    def usable(self) -> bool:
        return any(self._unified or root.name == "memory" for root in self._roots)

    def create(self, instance: str, limits: ContainerLimits) -> ControlGroup | None:
        """Create the groups of one run with its limits; None where there are none."""
        if not self.usable:
            return None
        folders = []
        for root in self._roots:
            folder = root / self._name / instance
            if self._unified:
                _delegate(root, root / self._name)
            folder.mkdir(parents=True, exist_ok=True)
            folders.append(folder)
        group = ControlGroup(tuple(folders), self._unified)
        for name, value in _v2_settings(limits) if self._unified else _v1_settings(limits):
            _write_where_present(group, name, value)
        return group


def _is_writable(folder: Path) -> bool:
    """True if groups can be created: as root, on a writable file system."""
    if not (folder.parent / "cgroup.procs").exists():
        return False
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(folder / "cgroup.procs", os.W_OK)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        # The kernel has not removed the last processes yet.
        return False
    return True


def _v1_settings(limits: ContainerLimits) -> list[tuple[str, str]]:
    shares = max(limits.cpu_request_milli * _SHARES_PER_CPU // 1000, _MIN_SHARES)
    settings = [("cpu.shares", str(shares))]
    if limits.cpu_limit_milli is not None:
        settings.append(("cpu.cfs_quota_us", str(_quota_us(limits.cpu_limit_milli))))
    if limits.memory_bytes is not None:
        settings.append(("memory.limit_in_bytes", str(limits.memory_bytes)))
    return settings


def _v2_settings(limits: ContainerLimits) -> list[tuple[str, str]]:
    shares = max(limits.cpu_request_milli * _SHARES_PER_CPU // 1000, _MIN_SHARES)
    weight = 1 + ((min(shares, 262144) - 2) * 9999) // 262142
    settings = [("cpu.weight", str(weight)), ("memory.oom.group", "1")]
    if limits.cpu_limit_milli is not None:
        settings.append(("cpu.max", f"{_quota_us(limits.cpu_limit_milli)} {_PERIOD_US}"))
    if limits.memory_bytes is not None:
        settings += [("memory.max", str(limits.memory_bytes)), ("memory.swap.max", "0")]
    return settings


def _quota_us(cpu_milli: int) -> int:
    return max(cpu_milli * _PERIOD_US // 1000, _MIN_QUOTA_US)


def _delegate(root: Path, top: Path) -> None:
    top.mkdir(exist_ok=True)
    for folder in (root, top):
        for controller in ("+memory", "+cpu"):
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(controller)


def _write_where_present(group: ControlGroup, name: str, value: str) -> None:
    for folder in group.folders:
        if (folder / name).exists():
            (folder / name).write_text(value)
