"""Pod disruption budgets: how many pods may be evicted now."""

from dataclasses import dataclass

from gangline.api.selectors import Selector
from gangline.scheduler.model import PodFacts


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    key: str
    namespace: str
    selector: Selector
    allowed: int = 0

    def covers(self, pod: PodFacts) -> bool:
        """Return whether the budget selects the pod."""
        return pod.key.startswith(f"{self.namespace}/") and self.selector.matches(dict(pod.labels))
