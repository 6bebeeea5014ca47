"""Resource usage of a tree of processes, read from /proc where there are no control groups.

psutil does not fit: it finds children by reading all processes of the machine, and its memory
numbers either contain file cache or omit shared memory.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from gangline.local.kubelet.runtime.interface import ContainerUsage

_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def child_pids(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
            children += [int(child) for child in text.split()]
    except OSError:
        return children
    return children


def walk_process_tree(pid: int) -> Iterator[int]:
    waiting = [pid]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += child_pids(pid)


def process_tree_usage(pid: int) -> ContainerUsage | None:
    cpu_ns = memory = 0
    for member in walk_process_tree(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{member}/status").read_text()
        except OSError:
            continue
        # utime, stime, cutime, cstime: those of ended children count as well.
        cpu_ns += sum(int(ticks) for ticks in fields[11:15]) * _NS_PER_TICK
        memory += sum(
            int(line.split()[1]) * 1024
            for line in status.splitlines()
            if line.startswith(("RssAnon:", "RssShmem:"))
        )
    return ContainerUsage(cpu_ns, memory) if memory or cpu_ns else None


def proportional_memory(pid: int) -> int | None:
    """Memory without file cache of a process and its descendants, as a control group counts it.

    Pages that a fork shares with its parent are one page. To read this takes longer than
    ``process_tree_usage``, which counts them for each process; None if the kernel has no figure.
    """
    memory = 0
    for member in walk_process_tree(pid):
        try:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            return None
        figures = [line for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
        if lines and not figures:
            return None
        memory += sum(int(line.split()[1]) * 1024 for line in figures)
    return memory
