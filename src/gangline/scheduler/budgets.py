"""Pod disruption budgets: how many pods may be evicted now."""

from dataclasses import dataclass

from gangline.api.selectors import Selector
from gangline.scheduler.model import PodInfo


@dataclass(frozen=True, slots=True)
class DisruptionBudgetInfo:
    key: str
    namespace: str
    selector: Selector
    allowed: int = 0

    def covers(self, pod: PodInfo) -> bool:
        """Return whether the budget selects the pod."""
        return pod.key.startswith(f"{self.namespace}/") and self.selector.matches(dict(pod.labels))
