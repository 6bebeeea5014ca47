"""Scopes of quotas: the pods that a quota applies to."""

from typing import NamedTuple

from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.quota.usage import object_usage

PRIORITY_CLASS = "PriorityClass"
_QUALITY_NAMES = ("cpu", "memory", "limits.cpu", "limits.memory")


class PodScopes(NamedTuple):
    """The attributes of a pod that scopes select by."""

    terminating: bool
    """True if the pod has a deadline."""
    best_effort: bool
    """True if no container has a request or a limit of cpu or memory."""
    priority_class: str
    crosses_namespaces: bool
    """True if its pod affinity names other namespaces."""


class ScopeRule(NamedTuple):
    """One scope of a quota."""

    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()

    def matches(self, pod: PodScopes) -> bool:
        """Return True if a pod is in the scope. An unknown scope contains no pod."""
        match self.name:
            case "Terminating":
                return pod.terminating
            case "NotTerminating":
                return not pod.terminating
            case "BestEffort":
                return pod.best_effort
            case "NotBestEffort":
                return not pod.best_effort
            case "CrossNamespacePodAffinity":
                return pod.crosses_namespaces
            case "PriorityClass":
                return self._matches_class(pod.priority_class)
        return False

    def _matches_class(self, name: str) -> bool:
        match self.operator:
            case "In":
                return name in self.values
            case "NotIn":
                return name not in self.values
            case "Exists":
                return bool(name)
            case "DoesNotExist":
                return not name
        return False


def scope_rules(spec: Json) -> tuple[ScopeRule, ...]:
    """Return the scopes of a quota, all of which a pod must be in."""
    names = spec.get("scopes")
    rules = [ScopeRule(str(name)) for name in names] if isinstance(names, list) else []
    for each in objects_in(subobject(spec, "scopeSelector").get("matchExpressions")):
        values = each.get("values")
        chosen = tuple(map(str, values)) if isinstance(values, list) else ()
        rules.append(ScopeRule(str(each.get("scopeName")), str(each.get("operator")), chosen))
    return tuple(rules)


def pod_scopes(pod: Json) -> PodScopes:
    spec = subobject(pod, "spec")
    usage = object_usage("pods.", {"spec": spec})
    return PodScopes(
        terminating=spec.get("activeDeadlineSeconds") is not None,
        best_effort=not any(usage.get(name) for name in _QUALITY_NAMES),
        priority_class=str(spec.get("priorityClassName") or ""),
        crosses_namespaces=_crosses_namespaces(spec),
    )


def _crosses_namespaces(spec: Json) -> bool:
    terms: list[Json] = []
    for kind in ("podAffinity", "podAntiAffinity"):
        affinity = subobject(spec, "affinity", kind)
        terms += objects_in(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
        for each in objects_in(affinity.get("preferredDuringSchedulingIgnoredDuringExecution")):
            terms.append(subobject(each, "podAffinityTerm"))
    return any(
        term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms
    )
