"""Which pods a namespace's quota is for, as Kubernetes tells them apart. Pure.

Of pods that do not exist yet not everything is known. What is not known puts nobody in scope: the
API server has the last word when they are made.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gangline.api.selectors import EVERYTHING, Selector

PRIORITY_CLASS = "PriorityClass"


@dataclass(frozen=True, slots=True)
class Traits:
    """What of a pod quotas look at. None: it is not known."""

    terminating: bool | None = False
    """It has ``activeDeadlineSeconds``."""
    best_effort: bool | None = False
    """It asks for no CPU and no memory."""
    priority_class: str | None = ""
    crosses_namespaces: bool | None = False
    """It wants to be near to, or apart from, pods of namespaces that it names."""


ORDINARY = Traits()


@lru_cache(maxsize=1024)
def traits_of(
    terminating: bool | None,
    best_effort: bool | None,
    priority_class: str | None,
    crosses_namespaces: bool | None,
) -> Traits:
    """Return one object for equal traits: there are many pods."""
    return Traits(terminating, best_effort, priority_class, crosses_namespaces)


@dataclass(frozen=True, slots=True)
class Scope:
    """One condition on the pods that a quota is for."""

    name: str
    classes: Selector = EVERYTHING
    """Which priority classes; for the scope of that name only."""

    def includes(self, pod: Traits) -> bool:
        """Say whether a pod is surely one of them. A scope that is unknown is for other kinds."""
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
        """Name it as kubectl's user wrote it."""
        return str(self.classes) if self.name == PRIORITY_CLASS else self.name


def includes(scopes: Iterable[Scope], pods: Iterable[Traits]) -> bool:
    """Say whether all of these pods surely are in all of these scopes."""
    listed = list(pods)
    return all(scope.includes(pod) for scope in scopes for pod in listed)
