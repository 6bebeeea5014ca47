"""Expectations: own writes that the watch has not shown yet, so that they are not repeated."""

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from gangline.api.core.pod import Pod

K = TypeVar("K", bound=Hashable)
EXPECTATIONS_TIMEOUT_S = 30.0


class Expectations(Generic[K]):
    """Pods created or deleted for each key, until the watch has shown the change."""

    def __init__(self) -> None:
        self._created: dict[K, dict[str, tuple[Pod, float]]] = defaultdict(dict)
        self._deleted: dict[K, dict[str, float]] = defaultdict(dict)

    def expect_creation(self, key: K, pod: Pod) -> None:
        """Record a pod that the server has just created."""
        self._created[key][pod.metadata.uid] = (pod, _clock())

    def expect_deletion(self, key: K, pod: Pod) -> None:
        """Record a pod whose deletion was requested."""
        self._deleted[key][pod.metadata.uid] = _clock()

    def apply(self, key: K, seen: Sequence[Pod]) -> list[Pod]:
        """Return the pods as the watch will show them once it has caught up."""
        expired = _clock() - EXPECTATIONS_TIMEOUT_S
        uids = {pod.metadata.uid for pod in seen}
        created = self._created.pop(key, {})
        waiting = {u: e for u, e in created.items() if u not in uids and e[1] > expired}
        if waiting:
            self._created[key] = waiting
        deleted = self._deleted.pop(key, {})
        going = {u: since for u, since in deleted.items() if u in uids and since > expired}
        if going:
            self._deleted[key] = going
        kept = [pod for pod in seen if pod.metadata.uid not in going]
        return kept + [pod for pod, _ in waiting.values()]

    def forget(self, key: K) -> None:
        self._created.pop(key, None)
        self._deleted.pop(key, None)


def _clock() -> float:
    return asyncio.get_running_loop().time()
