"""Free memory of this machine or container, and the kernel's out-of-memory kills in it."""

from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_KIB = 1024


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """Memory limit, and the part that is available."""

    limit_bytes: int
    available_bytes: int


def memory_status(proc: Path = Path("/proc"), cgroup: Path = _CGROUP) -> MemoryStatus:
    """Return limit and available memory of the container, or of the machine if that is lower."""
    lines = (proc / "meminfo").read_text().splitlines()
    sizes = {
        name: int(rest.split()[0]) * _KIB for name, _, rest in (x.partition(":") for x in lines)
    }
    machine = MemoryStatus(sizes["MemTotal"], sizes["MemAvailable"])
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None:
        limit = _number(cgroup / "memory/memory.limit_in_bytes")
        used = _number(cgroup / "memory/memory.usage_in_bytes")
    if limit is None or used is None or limit >= machine.limit_bytes:
        return machine
    # Inactive pages of the file cache count as used, but the kernel reclaims them on demand.
    stat = cgroup / "memory.stat"
    cached = _field(stat if stat.exists() else cgroup / "memory/memory.stat", "inactive_file") or 0
    return MemoryStatus(limit, min(machine.available_bytes, limit - used + cached))


def out_of_memory_kills(proc: Path = Path("/proc"), cgroup: Path = _CGROUP) -> int:
    """Return the number of processes that the kernel has killed for lack of memory here."""
    for path in (cgroup / "memory.events", cgroup / "memory/memory.oom_control", proc / "vmstat"):
        kills = _field(path, "oom_kill")
        if kills is not None:
            return kills
    return 0


def cgroup_use_bytes(folder: Path) -> int | None:
    """Return the memory use of a cgroup and those below it, without the file cache.

    The kernel reclaims the pages of files when memory is short. ``None`` if the use is not known.
    """
    used, prefix = _number(folder / "memory.current"), ""
    if used is None:  # version 1 of the interface, where plain names are of this cgroup alone
        used, prefix = _number(folder / "memory.usage_in_bytes"), "total_"
    stat = folder / "memory.stat"
    cached = [_field(stat, f"{prefix}{name}") for name in ("inactive_file", "active_file")]
    if used is None or None in cached:
        return None
    return max(used - sum(size for size in cached if size is not None), 0)


def resident_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Return the resident set size of a process; 0 if it has ended."""
    return _status_bytes(pid, "VmRSS:", proc)


def peak_resident_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Return the highest resident set size of a process so far; 0 if it has ended."""
    return _status_bytes(pid, "VmHWM:", proc) or resident_bytes(pid, proc)


def _status_bytes(pid: int, name: str, proc: Path) -> int:
    try:
        lines = (proc / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    line = next((candidate for candidate in lines if candidate.startswith(name)), None)
    return int(line.split()[1]) * _KIB if line else 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # no such group, or "max"


def _field(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), None)
