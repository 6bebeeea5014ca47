"""Usage of pods and nodes, in the form of the kubelet's ``/stats/summary``."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from gangline.local.kubelet.kubelet import Kubelet
from gangline.local.kubelet.pods.pod_worker import PodWorker
from gangline.local.kubelet.runtime.interface import ContainerUsage

_FORGET_S = 600.0


class StatsSummary:
    """Converts counters into rates, from the values at the previous request."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int, int]] = {}
        """By container id: the time, the CPU counter at that time, and the last rate."""

    def build(self, kubelets: Iterable[Kubelet]) -> dict[str, Any]:
        """The usage of all nodes' pods; ``node`` is the first node, ``nodes`` are all."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        nodes, pods = [], []
        for kubelet in kubelets:
            own = [self._pod(worker, now) for worker in kubelet.workers.values()]
            own = [each for each in own if each["containers"]]
            nodes.append({"nodeName": kubelet.node.name, **_sum(own, now)})
            pods += own
        self._drop_old()
        return {"node": nodes[0] if nodes else {}, "nodes": nodes, "pods": pods}

    def _pod(self, worker: PodWorker, now: str) -> dict[str, Any]:
        meta = worker.pod.metadata
        containers = []
        for name, container in worker.containers.items():
            if container.running is None or (usage := container.running.usage()) is None:
                continue
            used = self._rates(container.running.container_id, usage, now)
            containers.append({"name": name, **used})
        reference = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        return {"podRef": reference, "containers": containers, **_sum(containers, now)}

    def _rates(self, container_id: str, usage: ContainerUsage, now: str) -> dict[str, Any]:
        moment = time.monotonic()
        before = self._seen.get(container_id)
        rate = before[2] if before else 0
        if before is None:
            self._seen[container_id] = (moment, usage.cpu_ns, 0)
        elif (passed := moment - before[0]) >= 1.0:
            rate = max(int((usage.cpu_ns - before[1]) / passed), 0)
            self._seen[container_id] = (moment, usage.cpu_ns, rate)
        return {
            "cpu": {
                "time": now,
                "usageNanoCores": rate,
                "usageCoreNanoSeconds": usage.cpu_ns,
            },
            "memory": {"time": now, "workingSetBytes": usage.memory_bytes},
        }

    def _drop_old(self) -> None:
        limit = time.monotonic() - _FORGET_S
        self._seen = {key: seen for key, seen in self._seen.items() if seen[0] > limit}


def _sum(parts: list[dict[str, Any]], now: str) -> dict[str, Any]:
    def total(kind: str, name: str) -> int:
        return sum(int(part[kind][name]) for part in parts)

    return {
        "cpu": {
            "time": now,
            "usageNanoCores": total("cpu", "usageNanoCores"),
            "usageCoreNanoSeconds": total("cpu", "usageCoreNanoSeconds"),
        },
        "memory": {"time": now, "workingSetBytes": total("memory", "workingSetBytes")},
    }
