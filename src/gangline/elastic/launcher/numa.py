"""Which processors are near a worker's device."""

import shutil
import subprocess
from pathlib import Path

_QUERY = ("nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader")
_SYS = Path("/sys")


class NumaError(Exception):
    """Nothing is known of where devices are."""


def processors_near_devices(workers: int, sys: Path = _SYS) -> tuple[frozenset[int], ...]:
    """Return for each worker the processors of the NUMA node of its device.

    Raises:
        NumaError: there are fewer devices than workers, or their place is unknown.
    """
    buses = _buses()
    if len(buses) < workers:
        raise NumaError(f"there are {len(buses)} NVIDIA devices for {workers} workers")
    return tuple(near(bus, sys) for bus in buses[:workers])


def near(bus: str, sys: Path = _SYS) -> frozenset[int]:
    """Return the processors of the NUMA node of a PCI device.

    Raises:
        NumaError: the kernel does not know.
    """
    # nvidia-smi writes eight digits of domain, the kernel four, both in hexadecimal.
    domain, _, rest = bus.lower().partition(":")
    device = sys / "bus/pci/devices" / f"{domain[-4:]}:{rest}"
    try:
        node = max(int((device / "numa_node").read_text()), 0)
        return cpu_list((sys / f"devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError) as error:
        raise NumaError(f"the NUMA node of device {bus} is unknown") from error


def cpu_list(text: str) -> frozenset[int]:
    """Read ``0-3,8`` as the kernel writes it."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _buses() -> list[str]:
    if shutil.which(_QUERY[0]) is None:
        raise NumaError("there is no nvidia-smi, and nothing is known of where other devices are")
    answer = subprocess.run(_QUERY, capture_output=True, text=True, check=False, timeout=60)
    return answer.stdout.split() if answer.returncode == 0 else []
