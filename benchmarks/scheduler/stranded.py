"""How full does placement make a cluster with devices? Four ways of choosing a node are compared.

The method is that of Weng, Yang, Yu, Wang, Tang, Yang, Zhang, "Beware of Fragmentation: Scheduling
GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023): tasks are drawn from a
list of a production cluster until they ask for 130 % of its devices. They arrive one by one and
never end; a task that fits nowhere is dropped. The result is the part of the devices that is
allocated in the end. Here devices are not shared: a task that asks for a part of one gets one.

``python -m benchmarks.scheduler.stranded [--lists default ...] [--seeds 42 ...]`` prints each
result as it is there; a seed takes 12 to 25 s of processor time.

``GANGLINE_OPENB`` names a folder with the lists (folder ``cluster-trace-gpu-v2023`` of
alibaba/clusterdata). Without it, clusters and tasks have the published shapes and frequencies.
"""

import argparse
import csv
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import Figure, write
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.types import (
    EPOCH,
    NodeInfo,
    NodeName,
    PlacementConstraints,
    PodInfo,
    PodKey,
    QueueInfo,
    Request,
    shape_of,
)

SEEDS = (42, 43, 44)
LISTS = ("default", "multigpu50")
"""Tasks of one device mostly, and a list in which half of the devices are for tasks of several."""
PUBLISHED_LISTS = (*LISTS, "gpuspec33")
"""Tasks of the last list differ from ``default`` in the models of devices that they name."""
OVERLOAD = 1.3
TYPICAL = 60
"""Tasks that the gradient compares with each node; it has them from the complete list."""
MIB = 2**20
NODE_SHAPES = (
    (96000, 393216, 8, 549), (104000, 524288, 2, 387), (16000, 122880, 2, 107),
    (128000, 786432, 8, 39), (32000, 131072, 4, 28), (64000, 262144, 2, 22),
    (96000, 786432, 8, 21), (8000, 32768, 1, 19), (96000, 393216, 4, 17),
    (48000, 376832, 4, 9), (64000, 262144, 8, 7), (8000, 61440, 1, 3),
    (8000, 61440, 2, 2), (128000, 1048576, 1, 2), (82000, 344064, 8, 1),
)  # fmt: skip
"""CPU in thousandths, memory in MiB, devices, and number of such nodes."""
TASK_SHAPES = (
    (3152, 5600, 1, 1592, 1592), (11300, 49152, 1, 857, 857), (11908, 47104, 1, 778, 778),
    (11400, 48128, 1, 534, 534), (8000, 30517, 1, 486, 486), (12500, 57344, 0, 364, 364),
    (32000, 49152, 0, 284, 284), (18708, 64512, 1, 255, 255), (9810, 41560, 1, 195, 195),
    (4000, 22888, 1, 189, 189), (4000, 15258, 1, 182, 182), (8000, 30517, 0, 163, 163),
    (12000, 24576, 1, 158, 158), (15700, 58368, 1, 158, 158), (4152, 10600, 1, 152, 152),
    (4000, 30517, 1, 136, 136), (64200, 263168, 8, 18, 229), (15400, 51200, 0, 120, 120),
    (88000, 327680, 8, 18, 216), (16000, 32768, 1, 108, 108), (8000, 16384, 1, 104, 104),
    (4000, 24576, 1, 104, 104), (12000, 16384, 1, 99, 99), (16500, 51200, 0, 95, 95),
    (14200, 58368, 1, 93, 93), (24200, 93184, 1, 84, 84), (11400, 77824, 1, 65, 65),
    (32200, 132096, 4, 9, 112), (8000, 32768, 1, 55, 55), (16200, 66560, 2, 7, 97),
    (6000, 6144, 1, 51, 51), (11900, 77824, 1, 51, 51), (12000, 15360, 1, 44, 44),
    (8200, 33792, 1, 41, 41), (4000, 31250, 1, 40, 40), (15200, 80896, 1, 36, 36),
    (16000, 65536, 1, 33, 33), (6000, 12288, 1, 29, 29), (60200, 320512, 4, 3, 54),
    (6000, 22888, 1, 28, 28), (16400, 125952, 1, 27, 27), (1000, 2048, 1, 26, 26),
    (30200, 160768, 2, 3, 46), (64000, 262144, 8, 3, 42), (32000, 131072, 4, 3, 40),
    (120000, 737280, 8, 3, 39), (6000, 65536, 2, 3, 35), (6000, 18432, 1, 18, 18),
    (17400, 43008, 2, 2, 30), (11300, 37888, 1, 16, 16), (120200, 640000, 8, 2, 30),
    (1000, 6144, 1, 15, 15), (7000, 30000, 1, 11, 11), (11400, 57344, 0, 11, 11),
    (8000, 15625, 0, 11, 11), (6000, 8192, 1, 10, 10), (15400, 90112, 1, 9, 9),
    (4000, 16384, 1, 8, 8), (12000, 32768, 1, 8, 8), (12000, 47104, 1, 8, 8),
    (6000, 16384, 1, 8, 8), (16000, 31250, 0, 8, 8), (14900, 73728, 1, 8, 8),
    (14000, 60000, 2, 1, 14),
)  # fmt: skip
"""The 64 most frequent tasks (99 % of them): CPU, memory, devices, and the number of such tasks in
each of ``LISTS``.
"""

Table = NDArray[np.int64]


class Task(NamedTuple):
    cpu: int
    memory: int
    devices: int


def cluster(folder: Path | None) -> Table:
    """Return the CPU, memory and devices (columns) of each node."""
    if folder is None:
        shapes, counts = np.array(NODE_SHAPES)[:, :3], np.array(NODE_SHAPES)[:, 3]
        nodes: Table = np.repeat(shapes, counts, axis=0)
        return nodes
    with (folder / "openb_node_list_gpu_node.csv").open(encoding="utf-8") as file:
        return np.array(
            [
                [int(node[key]) for key in ("cpu_milli", "memory_mib", "gpu")]
                for node in csv.DictReader(file)
            ]
        )


def tasks_of(name: str, folder: Path | None) -> list[Task]:
    """Return a list of tasks."""
    if folder is None:
        count = 4 if name == "multigpu50" else 3
        return [Task(*shape[:3]) for shape in TASK_SHAPES for _ in range(shape[count])]
    with (folder / f"openb_pod_list_{name}.csv").open(encoding="utf-8") as file:
        return [
            Task(int(task["cpu_milli"]), int(task["memory_mib"]), int(task["num_gpu"]))
            for task in csv.DictReader(file)
        ]


def draw(tasks: Sequence[Task], devices: int, seed: int) -> list[Task]:
    """Return tasks that together ask for more devices than there are."""
    random, drawn, asked = Random(seed), [], 0
    while asked < OVERLOAD * devices:
        drawn.append(random.choice(tasks))
        asked += drawn[-1].devices
    return drawn


Choose = Callable[[Table, Table, Task], int]
"""Returns one of the rows that hold a task, from the free amounts and these rows."""


def fill(nodes: Table, arrivals: Sequence[Task], choose: Choose) -> float:
    """Return the part of the devices that is allocated in the end, in percent."""
    free = nodes.copy()
    for task in arrivals:
        rows = np.flatnonzero((free >= task).all(axis=1))
        if len(rows):
            free[choose(free, rows, task)] -= task
    return allocated(nodes, free)


def allocated(nodes: Table, free: Table) -> float:
    return float(100 * (1 - free[:, 2].sum() / nodes[:, 2].sum()))


def random_choice() -> Choose:
    random = Random(7)
    return lambda _, rows, __: random.choice(rows.tolist())


def best_fit(nodes: Table) -> Choose:
    largest = nodes.max(axis=0)
    return lambda free, rows, task: int(
        rows[((free[rows] - np.array(task)) / largest).sum(axis=1).argmin()]
    )


def gradient(tasks: Sequence[Task]) -> Choose:
    """Fragmentation gradient descent: the devices that typical tasks cannot use grow least."""
    frequent = Counter(tasks).most_common(TYPICAL)
    with_devices = [(task, count) for task, count in frequent if task.devices]
    needs = np.array([task for task, _ in with_devices])
    weights = np.array([count / len(tasks) for _, count in with_devices])

    def fragments(free: Table) -> NDArray[np.float64]:
        fits = np.ones((len(free), len(needs)), dtype=bool)
        for column in range(3):
            fits &= free[:, column, None] >= needs[:, column]
        lost: NDArray[np.float64] = free[:, 2] * (~fits @ weights)
        return lost

    def choose(free: Table, rows: Table, task: Task) -> int:
        # Nodes in the same state are compared once.
        states, first = np.unique(free[rows], axis=0, return_index=True)
        growth = fragments(states - np.array(task)) - fragments(states)
        least = np.flatnonzero(np.isclose(growth, growth.min(), rtol=0, atol=1e-9))
        return int(rows[first[least].min()])

    return choose


def schedule(nodes: Table, arrivals: Sequence[Task]) -> float:
    """Return what the scheduler allocates, in percent: one cycle for each task."""
    state = SchedulerCache()
    state.queues["default"] = QueueInfo("default")
    for row, amounts in enumerate(nodes.tolist()):
        state.set_node(NodeInfo(NodeName(f"node-{row:05d}"), request(Task(*amounts))))
    for number, task in enumerate(arrivals):
        key = PodKey(f"bench/task-{number}")
        shape = shape_of(request(task), PlacementConstraints())
        state.set_pod(PodInfo(key, key, shape, EPOCH + timedelta(seconds=number)))
        bindings = run_cycle(state, float(number)).bindings
        if bindings:
            state.assume(key, bindings[0].node)
        else:
            state.remove_pod(key)
    used = state.nodes.used[state.nodes.columns["nvidia.com/gpu"]].sum()
    return float(100 * used / nodes[:, 2].sum())


def request(task: Task) -> Request:
    amounts = {"cpu": task.cpu, "memory": task.memory * MIB, "nvidia.com/gpu": task.devices}
    return tuple((name, amount) for name, amount in amounts.items() if amount)


def compare(name: str, folder: Path | None, seeds: Sequence[int]) -> Figure:
    """Fill the cluster in each way, once for each seed."""
    nodes, tasks = cluster(folder), tasks_of(name, folder)
    shares: dict[str, list[float]] = {}
    for seed in seeds:
        arrivals = draw(tasks, int(nodes[:, 2].sum()), seed)
        print(f"  {name} {seed}:", end="", flush=True)
        for way, choose in (
            ("Gangline", None),
            ("fragmentation gradient", gradient(tasks)),
            ("best fit", best_fit(nodes)),
            ("random choice", random_choice()),
        ):
            share = fill(nodes, arrivals, choose) if choose else schedule(nodes, arrivals)
            print(f" {way} {share:.2f} %", end="", flush=True)
            shares.setdefault(way, []).append(share)
        print()
    ranges = {way: (min(values), max(values)) for way, values in shares.items()}
    ours = ranges.pop("Gangline")
    return Figure(f"devices allocated, list {name}", "%", ours, dict(ranges), higher_is_better=True)


def main(arguments: Sequence[str] = ()) -> None:
    """Compare the ways on each list; prints and writes the allocated parts."""
    parser = argparse.ArgumentParser(description="How full does placement make a cluster?")
    parser.add_argument("--lists", nargs="+", choices=PUBLISHED_LISTS, default=LISTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    options = parser.parse_args(arguments)
    given = os.environ.get("GANGLINE_OPENB")
    folder = Path(given) if given else None
    figures = {name: compare(name, folder, options.seeds) for name in options.lists}
    source = "the published lists" if folder else "clusters and tasks with published frequencies"
    write(
        "scheduler_stranded",
        f"{source}; tasks for 130 % of 6,212 devices, in whole devices; lowest and highest of "
        f"{len(options.seeds)} seeds",
        figures,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
