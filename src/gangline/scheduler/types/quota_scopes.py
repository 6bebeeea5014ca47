"""Scopes of resource quotas: which pods a quota counts, with the rules of Kubernetes.

Some attributes of pods that do not exist yet are unknown. An unknown attribute is never in scope:
the API server decides when the pod is created.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gangline.api.meta.selectors import EVERYTHING, Selector

PRIORITY_CLASS = "PriorityClass"


@dataclass(frozen=True, slots=True)
class QuotaAttributes:
    """Attributes of a pod that quota scopes select by. None: unknown."""

    terminating: bool | None = False
    """True if the pod has ``activeDeadlineSeconds``."""
    best_effort: bool | None = False
    """True if the pod requests neither CPU nor memory."""
    priority_class: str | None = ""
    crosses_namespaces: bool | None = False
    """True if the pod's affinity terms name namespaces or select them."""


DEFAULT_QUOTA_ATTRIBUTES = QuotaAttributes()


@lru_cache(maxsize=1024)
def quota_attributes_of(
    terminating: bool | None,
    best_effort: bool | None,
    priority_class: str | None,
    crosses_namespaces: bool | None,
) -> QuotaAttributes:
    """Return one object for equal attributes: there are many pods."""
    return QuotaAttributes(terminating, best_effort, priority_class, crosses_namespaces)


@dataclass(frozen=True, slots=True)
class QuotaScopeRule:
    """One condition on the pods that a quota counts."""

    name: str
    classes: Selector = EVERYTHING
    """Selects priority classes; used by the scope PriorityClass only."""

    def includes(self, pod: QuotaAttributes) -> bool:
        """Return whether a pod is certainly in scope. Unknown scopes are for other kinds of
        objects.
        """
        match self.name:
            case "Terminating":
                return pod.terminating is True
            case "NotTerminating":
                return pod.terminating is False
            case "BestEffort":
                return pod.best_effort is True
            case "NotBestEffort":
                return pod.best_effort is False
            case "CrossNamespacePodAffinity":
                return pod.crosses_namespaces is True
            case "PriorityClass" if pod.priority_class is not None:
                named = {PRIORITY_CLASS: pod.priority_class} if pod.priority_class else {}
                return self.classes.matches(named)
        return False

    def __str__(self) -> str:
        """Return the scope as the user wrote it for kubectl."""
        return str(self.classes) if self.name == PRIORITY_CLASS else self.name


def all_in_scopes(scopes: Iterable[QuotaScopeRule], pods: Iterable[QuotaAttributes]) -> bool:
    """Return whether all pods are certainly in all scopes."""
    listed = list(pods)
    return all(scope.includes(pod) for scope in scopes for pod in listed)
