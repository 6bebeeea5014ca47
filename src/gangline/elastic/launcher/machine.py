"""Resources of this machine: limits of the number of workers, accelerators, processors near a
device.

Torch is not imported. A number of workers above a limit is a mistake of the user. Only certain
limits count: each worker is a process, the launcher opens a file for it, and an interpreter needs
memory before it runs anything. The needs of scripts are unknown.
"""

import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline.elastic.memory import memory_status

_CGROUP = Path("/sys/fs/cgroup")
_INTERPRETER_MIB = 2
"""Less memory than any interpreter needs."""
_MIB = 1 << 20
_DEVICE_FILES = {
    "nvidia.com/gpu": r"nvidia\d+",
    "ascend-npu": r"davinci\d+",
    "mthreads.com/gpu": r"mtgpu\.\d+",
    "metax-tech.com/gpu": r"mxcd\d*",
}
_VISIBLE = {
    "nvidia.com/gpu": "CUDA_VISIBLE_DEVICES",
    "ascend-npu": "ASCEND_RT_VISIBLE_DEVICES",
    "mthreads.com/gpu": "MUSA_VISIBLE_DEVICES",
    "metax-tech.com/gpu": "CUDA_VISIBLE_DEVICES",
}
_QUERY = ("nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader")
_SYS = Path("/sys")


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
    """Return the lowest limit of the number of workers."""
    root = os.geteuid() == 0 if is_root is None else is_root
    limits = [*_user_limits(root), *_system_limits(proc, cgroup)]
    if is_python:
        memory_mib = memory_status(proc, cgroup).limit_bytes // _MIB
        reason = (
            f"there are {memory_mib} MiB of memory, and an interpreter takes {_INTERPRETER_MIB}"
        )
        limits.append(WorkerLimit(memory_mib // _INTERPRETER_MIB, reason))
    return min(limits, key=lambda limit: limit.max_workers)


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


def device_count(
    accelerator: str, environment: Mapping[str, str], folder: Path = Path("/dev")
) -> int:
    """Return the number of devices that are visible to workers of this node.

    Args:
        accelerator: name of the resource.
    """
    pattern = re.compile(_DEVICE_FILES[accelerator])
    present = sum(1 for file in folder.iterdir() if pattern.fullmatch(file.name))
    visible = environment.get(_VISIBLE[accelerator])
    if visible is None:
        return present
    return min(
        present, len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    )


def device_shortage(
    workers: int, accelerator: str, environment: Mapping[str, str], folder: Path = Path("/dev")
) -> str:
    """Return a warning if there are more workers than devices; else an empty text.

    It is no error: scripts may share devices or use none.
    """
    devices = device_count(accelerator, environment, folder)
    if not 0 < devices < workers:
        return ""
    name, visible = _VISIBLE[accelerator], environment.get(_VISIBLE[accelerator])
    narrowed = "" if visible is None else f" with {name}={visible}"
    return (
        f"--nproc-per-node {workers}: this node has {devices} {accelerator} devices{narrowed}; "
        f"workers of local rank {devices} and above share them, or fail"
    )


def xpu_count(folder: Path = Path("/dev/dri")) -> int:
    """Return the number of render nodes, which are the devices of Intel."""
    if not folder.exists():
        return 0
    return sum(1 for file in folder.iterdir() if file.name.startswith("renderD"))


def cpu_count() -> int:
    return len(os.sched_getaffinity(0))


class NumaError(Exception):
    """The location of devices is unknown."""


def processors_near_devices(workers: int, sys: Path = _SYS) -> tuple[frozenset[int], ...]:
    """Return for each worker the processors on the NUMA node of its device.

    Raises NumaError: there are fewer devices than workers, or their NUMA node is unknown.
    """
    buses = _pci_bus_ids()
    if len(buses) < workers:
        raise NumaError(f"there are {len(buses)} NVIDIA devices for {workers} workers")
    return tuple(processors_near(bus, sys) for bus in buses[:workers])


def processors_near(bus: str, sys: Path = _SYS) -> frozenset[int]:
    """Return the processors on the NUMA node of a PCI device.

    Raises NumaError: the kernel does not report it.
    """
    # nvidia-smi writes eight digits of domain, the kernel four, both in hexadecimal.
    domain, _, rest = bus.lower().partition(":")
    device = sys / "bus/pci/devices" / f"{domain[-4:]}:{rest}"
    try:
        node = max(int((device / "numa_node").read_text()), 0)
        return parse_cpu_list((sys / f"devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError) as error:
        raise NumaError(f"the NUMA node of device {bus} is unknown") from error


def parse_cpu_list(text: str) -> frozenset[int]:
    """Parse a list such as ``0-3,8`` as the kernel writes it."""
    processors: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        processors.update(range(int(first), int(last or first) + 1))
    return frozenset(processors)


def _pci_bus_ids() -> list[str]:
    if shutil.which(_QUERY[0]) is None:
        raise NumaError("nvidia-smi is missing, and the location of other devices is unknown")
    answer = subprocess.run(_QUERY, capture_output=True, text=True, check=False, timeout=60)
    return answer.stdout.split() if answer.returncode == 0 else []
