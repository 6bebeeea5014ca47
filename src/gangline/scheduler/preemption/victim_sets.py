"""Running gangs as preemption candidates, in units of pods that are evicted together."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gangline.scheduler.types.types import PodGroupInfo, PodInfo

SYSTEM_PRIORITY = 2_000_000_000
"""Pods of this priority and above belong to the cluster itself: they are never evicted."""
SYSTEM_NAMESPACE = "kube-system"


@dataclass(frozen=True, slots=True, eq=False)
class RunningGang:
    name: str
    queue: str
    priority: int
    pods: tuple[PodInfo, ...]
    info: PodGroupInfo | None

    @property
    def extra_pods(self) -> tuple[PodInfo, ...]:
        """Pods that the gang can run without: lowest priority first, then the newest."""
        if self.info is None or self.info.subgroups:
            # Evicting one pod would leave its subgroup incomplete.
            return ()
        allowed = len(self.pods) - self.info.min_member
        if allowed <= 0:
            return ()
        roles = Counter(pod.role for pod in self.pods)
        keep = dict(self.info.min_task_member)
        spare: list[PodInfo] = []
        for pod in sorted(self.pods, key=least_lost_work):
            if len(spare) >= allowed:
                break
            if pod.preemptable and roles[pod.role] > keep.get(pod.role, 0):
                roles[pod.role] -= 1
                spare.append(pod)
        return tuple(spare)

    def lost_work(self, now: float) -> float:
        """Pod-seconds of work since the last checkpoint, which an eviction would lose."""
        saved = self.info.checkpointed_at if self.info is not None else 0.0
        return sum(max(0.0, now - max(saved, _started_at(pod))) for pod in self.pods)


def _started_at(pod: PodInfo) -> float:
    return pod.started_at or pod.created.timestamp()


@dataclass(frozen=True, slots=True, eq=False)
class EvictionUnit:
    """Pods that are evicted together."""

    gang: RunningGang
    pods: tuple[PodInfo, ...]
    breaks_gang: bool
    """True if the rest of the gang cannot continue: then all of its pods are evicted."""
    cost: tuple[object, ...]


def least_lost_work(pod: PodInfo) -> tuple[int, float, str]:
    """Sort key: lowest priority first, then the newest."""
    return (pod.priority, -pod.created.timestamp(), pod.key)


def is_evictable(pod: PodInfo) -> bool:
    """Return whether a pod is neither a system pod nor a pod of another scheduler."""
    system = pod.priority >= SYSTEM_PRIORITY or pod.key.startswith(f"{SYSTEM_NAMESPACE}/")
    return not system and (pod.is_ours or pod.group is not None)


def pods_to_evict(chosen: Iterable[EvictionUnit]) -> tuple[PodInfo, ...]:
    """Return all pods that are evicted: of a broken gang, every pod."""
    pods: dict[str, PodInfo] = {}
    for unit in chosen:
        for pod in unit.gang.pods if unit.breaks_gang else unit.pods:
            pods[pod.key] = pod
    return tuple(pods[key] for key in sorted(pods))
