"""Disruption budgets: how many pods may be evicted now."""

from dataclasses import dataclass

from gangline.api.selectors import Selector
from gangline.scheduler.model import PodFacts


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    """A disruption budget: how many of the pods that it selects may be evicted now."""

    key: str
    namespace: str
    selector: Selector
    allowed: int = 0

    def covers(self, pod: PodFacts) -> bool:
        """Say whether a pod is one of those it protects."""
        return pod.key.startswith(f"{self.namespace}/") and self.selector.matches(dict(pod.labels))
