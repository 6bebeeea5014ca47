"""Speed of the scheduler's cycle without an API server: gangs of 8, thousands of nodes.

Times are CPU times of this process, so that other load does not change them.
"""

import gc
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import pod_info
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.types import (
    EPOCH,
    GroupKey,
    NodeInfo,
    NodeName,
    PlacementConstraints,
    PodGroupInfo,
    PodInfo,
    PodKey,
    QueueInfo,
    Request,
    shape_of,
)
from gangline.scheduler.wire import LeanPod, slim_pod

GANG = 8
GIB = 2**30
NOW = 1_000.0


def amounts(cpu: int, memory: int, gpu: int, pods: int) -> Request:
    listed = {"cpu": cpu * 1000, "memory": memory * GIB, "nvidia.com/gpu": gpu, "pods": pods}
    return tuple(sorted(listed.items()))


def empty_cluster(nodes: int) -> SchedulerCache:
    state = SchedulerCache()
    state.queues["default"] = QueueInfo("default")
    for index in range(nodes):
        labels = (("pool", "ab"[index % 2]),)
        has = amounts(96, 768, 8, 110)
        state.set_node(NodeInfo(NodeName(f"node-{index:05d}"), has, labels))
    return state


def add_gang(state: SchedulerCache, index: int, priority: int = 0) -> None:
    """Add a gang of 8; the pod shapes alternate."""
    key = GroupKey(f"bench/gang-{index}")
    state.set_group(PodGroupInfo(key, min_member=GANG, created=EPOCH, priority=priority))
    where = (
        PlacementConstraints(selector=(("pool", "a"),))
        if index % 4 == 0
        else PlacementConstraints()
    )
    shape = shape_of(amounts(4 * (index % 3 + 1), 32, (1, 2, 4)[index % 3], 1), where)
    for member in range(GANG):
        pod = PodKey(f"{key}-{member}")
        state.set_pod(PodInfo(pod, pod, shape, group=key, priority=priority))


def carry_out(state: SchedulerCache) -> int:
    decision = run_cycle(state, NOW)
    for binding in decision.bindings:
        state.assume(binding.pod, binding.node)
    return len(decision.bindings)


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def whole_batches() -> None:
    print("10,000 pods in gangs of 8, decided in one cycle:")
    for nodes in (500, 1_000, 5_000, 10_000):
        state = empty_cluster(nodes)
        for index in range(10_000 // GANG):
            add_gang(state, index)
        bound: list[int] = []
        took = timed(lambda state=state, bound=bound: bound.append(carry_out(state)))
        print(f"  {nodes:6,} nodes: {took:6.3f} s CPU, {bound[0]:6,} bound, "
              f"{10_000 / took:8,.0f} pods decided/s")  # fmt: skip


def full_cluster(nodes: int = 5_000) -> tuple[SchedulerCache, int]:
    """Return a cluster on which no further gang fits, and its number of gangs."""
    state = empty_cluster(nodes)
    index = 0
    while True:
        for _ in range(500):
            add_gang(state, index)
            index += 1
        if carry_out(state) < 500 * GANG:
            return state, index


def single_gangs() -> None:
    state, count = full_cluster()
    running = [key for key, members in state.members.items() if next(iter(members.values())).node]
    print(
        f"one gang ends on a full cluster of 5,000 nodes, {len(state.pending_members)} gangs wait:"
    )
    times = []
    gc.freeze()  # as the scheduler does after its first list
    for gone in running[:200]:
        for pod in list(state.members[gone]):
            state.remove_pod(pod)
        state.remove_group(gone)
        count += 1
        add_gang(state, count)
        times.append(timed(lambda: carry_out(state)))
    gc.unfreeze()
    middle, late = np.percentile(np.array(times) * 1000, (50, 99))
    print(f"  decision: p50 {middle:.1f} ms, p99 {late:.1f} ms CPU")


def running_cluster(nodes: int = 5_000) -> SchedulerCache:
    """Return nodes with two pods of 4 devices each, in gangs of 8 of two queues."""
    state = empty_cluster(nodes)
    state.queues["team"] = QueueInfo("team")
    shape = shape_of(amounts(16, 128, 4, 1), PlacementConstraints())
    for index in range(2 * nodes // GANG):
        key = GroupKey(f"bench/running-{index}")
        state.set_group(PodGroupInfo(key, min_member=GANG, created=EPOCH))
        for member in range(GANG):
            pod = PodKey(f"{key}-{member}")
            row = (index * GANG + member) // 2
            node = NodeName(f"node-{row:05d}")
            state.set_pod(
                PodInfo(
                    pod, pod, shape, group=key, node=node, phase="Running", started_at=NOW - index
                )
            )
    return state


def preemption() -> None:
    """Time cycles in which victims are chosen for gangs of several sizes."""
    state = running_cluster()
    pods = len(state.pods)
    gc.freeze()
    print(f"preemption among {pods:,} running pods on {len(state.nodes):,} nodes:")
    kinds = {
        "a gang of 8 by priority": (GANG, 4, 9, "default"),
        "one pod that needs a whole node": (1, 8, 9, "default"),
        "a gang of 8 that reclaims for its queue": (GANG, 4, 0, "team"),
    }
    for what, (size, gpu, priority, queue) in kinds.items():
        key = GroupKey("bench/claims")
        state.set_group(
            PodGroupInfo(key, min_member=size, created=EPOCH, priority=priority, queue=queue)
        )
        shape = shape_of(amounts(16, 128, gpu, 1), PlacementConstraints())
        for member in range(size):
            pod = PodKey(f"{key}-{member}")
            state.set_pod(PodInfo(pod, pod, shape, group=key, priority=priority))
        evicted: list[int] = []
        took = [
            timed(lambda evicted=evicted: evicted.append(len(run_cycle(state, NOW).evictions)))
            for _ in range(100)
        ]
        for pod in list(state.members[key]):
            state.remove_pod(pod)
        middle, late = np.percentile(np.array(took) * 1000, (50, 99))
        print(f"  {what}: p50 {middle:.0f} ms, p99 {late:.0f} ms CPU, {evicted[0]} evicted")
    gc.unfreeze()


def resident_mib() -> float:
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert resident is not None
    return int(resident.group(1)) / 1024


def memory(nodes: int = 5_000, pods: int = 50_000) -> None:
    """Keep nodes and running pods in memory, both as decoded objects and as scheduler values."""
    before = resident_mib()
    state = empty_cluster(nodes)
    read = []
    for index in range(pods):
        asks = {"requests": {"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": "1"}}
        metadata = {
            "name": f"job-{index // GANG}-worker-{index % GANG}",
            "namespace": "bench",
            "uid": f"00000000-0000-4000-8000-{index:012d}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"scheduling.k8s.io/group-name": f"job-{index // GANG}"},
            "labels": {"app": "training", "index": str(index % GANG)},
        }
        spec = {
            "schedulerName": "gangline",
            "nodeName": f"node-{index % nodes:05d}",
            "containers": [{"name": "c", "image": "train:1", "resources": asks}],
        }
        text = json.dumps({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
        read.append(slim_pod(msgspec.json.decode(text, type=LeanPod)))
        state.set_pod(pod_info(read[-1], {}, frozenset({"gangline"})))
    taken = resident_mib() - before
    print(f"{nodes:,} nodes and {pods:,} pods, as read and as facts: {taken:.0f} MiB")


def main() -> None:
    memory()
    whole_batches()
    single_gangs()
    preemption()


if __name__ == "__main__":
    main()
