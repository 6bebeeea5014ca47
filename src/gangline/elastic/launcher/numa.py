"""Processors near a worker's device."""

import shutil
import subprocess
from pathlib import Path

_QUERY = ("nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader")
_SYS = Path("/sys")


class NumaError(Exception):
    """The location of devices is unknown."""


def processors_near_devices(workers: int, sys: Path = _SYS) -> tuple[frozenset[int], ...]:
    """Return for each worker the processors on the NUMA node of its device.

    Raises:
        NumaError: there are fewer devices than workers, or their NUMA node is unknown.
    """
    buses = _pci_bus_ids()
    if len(buses) < workers:
        raise NumaError(f"there are {len(buses)} NVIDIA devices for {workers} workers")
    return tuple(processors_near(bus, sys) for bus in buses[:workers])


def processors_near(bus: str, sys: Path = _SYS) -> frozenset[int]:
    """Return the processors on the NUMA node of a PCI device.

    Raises:
        NumaError: the kernel does not report it.
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
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _pci_bus_ids() -> list[str]:
    if shutil.which(_QUERY[0]) is None:
        raise NumaError("nvidia-smi is missing, and the location of other devices is unknown")
    answer = subprocess.run(_QUERY, capture_output=True, text=True, check=False, timeout=60)
    return answer.stdout.split() if answer.returncode == 0 else []
