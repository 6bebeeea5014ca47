"""Running gangs as preemption candidates, in units of pods that are evicted together."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gangline.scheduler.model import GroupFacts, PodFacts

SYSTEM_PRIORITY = 2_000_000_000
"""Pods of this priority and above belong to the cluster itself: they are never evicted."""
SYSTEM_NAMESPACE = "kube-system"


@dataclass(frozen=True, slots=True, eq=False)
class Gang:
    name: str
    queue: str
    priority: int
    pods: tuple[PodFacts, ...]
    facts: GroupFacts | None

    @property
    def spare(self) -> tuple[PodFacts, ...]:
        """Pods that the gang can run without: lowest priority first, then the newest."""
        if self.facts is None or self.facts.parts:
            # Evicting one pod would leave its subgroup incomplete.
            return ()
        allowed = len(self.pods) - self.facts.min_member
        if allowed <= 0:
            return ()
        roles = Counter(pod.role for pod in self.pods)
        keep = dict(self.facts.min_task_member)
        spare: list[PodFacts] = []
        for pod in sorted(self.pods, key=least_loss):
            if len(spare) >= allowed:
                break
            if pod.preemptable and roles[pod.role] > keep.get(pod.role, 0):
                roles[pod.role] -= 1
                spare.append(pod)
        return tuple(spare)

    def lost_work(self, now: float) -> float:
        """Pod-seconds of work since the last checkpoint, which an eviction would lose."""
        saved = self.facts.checkpointed if self.facts is not None else 0.0
        return sum(max(0.0, now - max(saved, _began(pod))) for pod in self.pods)


def _began(pod: PodFacts) -> float:
    return pod.started or pod.created.timestamp()


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """Pods that are evicted together."""

    gang: Gang
    pods: tuple[PodFacts, ...]
    breaks: bool
    """True if the rest of the gang cannot continue: then all of its pods are evicted."""
    cost: tuple[object, ...]


def least_loss(pod: PodFacts) -> tuple[int, float, str]:
    """Sort key: lowest priority first, then the newest."""
    return (pod.priority, -pod.created.timestamp(), pod.key)


def may_be_evicted(pod: PodFacts) -> bool:
    """Return whether a pod is neither a system pod nor a pod of another scheduler."""
    system = pod.priority >= SYSTEM_PRIORITY or pod.key.startswith(f"{SYSTEM_NAMESPACE}/")
    return not system and (pod.ours or pod.group is not None)


def victims_of(chosen: Iterable[Bundle]) -> tuple[PodFacts, ...]:
    """Return all pods that are evicted: of a broken gang, every pod."""
    pods: dict[str, PodFacts] = {}
    for bundle in chosen:
        for pod in bundle.gang.pods if bundle.breaks else bundle.pods:
            pods[pod.key] = pod
    return tuple(pods[key] for key in sorted(pods))
