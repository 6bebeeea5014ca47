"""Removes what a killed cluster left on the machine: processes, mounts, networks, control groups.

Everything is found by the cluster's marks: its directory in mount points, its prefix in names of
links, namespaces and control groups. It runs at the start, at the stop, and in ``gangline down``;
with nothing to remove it costs a few milliseconds.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from pathlib import Path

from gangline.local.kubelet.runtime.paths import mount_points
from gangline.local.network.bridge import kernel_prefix
from gangline.local.network.cluster_network import remove_network_leftovers

CONTROL_GROUPS = Path("/sys/fs/cgroup")
MEMORY_FOLDERS = Path("/dev/shm")
KILL_TIMEOUT_S = 2.0


async def remove_leftovers(folder: Path) -> None:
    """Remove everything that the cluster in ``folder`` left, except its files."""
    groups = list_control_groups(folder)
    for group in groups:
        await _end_processes(group)
    for mount in list_mounts_below(folder):
        await _unmount(mount)
    await remove_network_leftovers(folder)
    await asyncio.to_thread(_remove_memory_folders, folder)
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()


def _remove_memory_folders(folder: Path) -> None:
    for memory in MEMORY_FOLDERS.glob(f"*{kernel_prefix(folder)}*"):
        shutil.rmtree(memory, ignore_errors=True)


def list_mounts_below(folder: Path) -> list[Path]:
    """List the mount points below a folder, innermost first."""
    try:
        points = [Path(point) for point in mount_points()]
    except OSError:
        return []
    root = folder.resolve()
    ours = [point for point in points if root in point.parents]
    return sorted(ours, key=lambda point: len(point.parts), reverse=True)


def list_control_groups(folder: Path) -> list[Path]:
    """List the cluster's control groups in every hierarchy, innermost first."""
    mark = kernel_prefix(folder)
    roots = [CONTROL_GROUPS, *CONTROL_GROUPS.glob("*/")]
    groups = {group for root in roots for group in root.glob(f"*{mark}*")}
    nested = {child for group in groups for child in group.glob("**/") if child.is_dir()}
    return sorted(groups | nested, key=lambda group: len(group.parts), reverse=True)


async def _end_processes(group: Path) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + KILL_TIMEOUT_S
    while (pids := _pids(group)) and loop.time() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.01)


def _pids(group: Path) -> list[int]:
    try:
        text = (group / "cgroup.procs").read_text()
    except OSError:
        return []
    return [int(pid) for pid in text.split() if int(pid) != os.getpid()]


async def _unmount(point: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        "umount", "-l", str(point), stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    await process.wait()
