"""Number of accelerators of this node, counted without torch."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

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


def device_count(
    accelerator: str, environment: Mapping[str, str], folder: Path = Path("/dev")
) -> int:
    """Return the number of devices that are visible to workers of this node.

    Args:
        accelerator: name of the resource.
        environment: variables that restrict devices, such as ``CUDA_VISIBLE_DEVICES``.
        folder: folder of the device files.
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
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))
