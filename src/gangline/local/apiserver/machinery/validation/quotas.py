"""Validation of ResourceQuotas: names of limits, quantities and scopes."""

from gangline.api import names
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.quantity import quantity_or_none
from gangline.api.validation.field_rules import Causes, quantity_causes, rule_causes
from gangline.local.apiserver.machinery.schema.nodes import Json

SCOPES = (
    "BestEffort", "CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "PriorityClass",
    "Terminating",
)  # fmt: skip
CONFLICTS = ({"BestEffort", "NotBestEffort"}, {"Terminating", "NotTerminating"})
OPERATORS = ("DoesNotExist", "Exists", "In", "NotIn")
COUNTS = frozenset(
    {
        "configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "resourcequotas",
        "secrets", "services", "services.loadbalancers", "services.nodeports",
    }
)  # fmt: skip
COMPUTE = frozenset(
    {
        "cpu", "memory", "ephemeral-storage", "requests.cpu", "requests.memory",
        "requests.ephemeral-storage", "limits.cpu", "limits.memory", "limits.ephemeral-storage",
    }
)  # fmt: skip
STORAGE = "requests.storage"
_BEST_EFFORT_LIMITS = frozenset({"pods", "count/pods"})


def quota_causes(quota: Json) -> Causes:
    spec = subobject(quota, "spec")
    hard = subobject(spec, "hard")
    for name, limit in hard.items():
        where = indexed("spec.hard", name)
        yield from rule_causes(names.validate_label_key, where, name)
        if "/" not in name and not _is_standard(name):
            yield field_causes.invalid(where, name, "must be a standard resource for quota")
        yield from quantity_causes(where, limit)
        amount = quantity_or_none(limit)
        if _is_count(name) and amount is not None and amount.nano % 10**9:
            yield field_causes.invalid(where, limit, "must be an integer")
    yield from _scope_causes(spec, hard)


def _scope_causes(spec: Json, hard: Json) -> Causes:
    scopes = spec.get("scopes")
    chosen = [str(scope) for scope in scopes] if isinstance(scopes, list) else []
    for index, scope in enumerate(chosen):
        if scope not in SCOPES:
            yield field_causes.unsupported(indexed("spec.scopes", index), scope, SCOPES)
    path = "spec.scopeSelector.matchExpressions"
    for index, each in enumerate(
        objects_in(subobject(spec, "scopeSelector").get("matchExpressions"))
    ):
        yield from _expression_causes(indexed(path, index), each)
        chosen.append(str(each.get("scopeName")))
    for scope in chosen:
        for name in hard:
            if not _allowed_in(scope, name):
                detail = "unsupported scope applied to resource"
                yield field_causes.invalid("spec.scopes", chosen, detail)
                break
    for pair in CONFLICTS:
        if pair <= set(chosen):
            yield field_causes.invalid("spec.scopes", chosen, "conflicting scopes")


def _expression_causes(path: str, expression: Json) -> Causes:
    scope, operator = expression.get("scopeName"), expression.get("operator")
    values = expression.get("values") or []
    if scope not in SCOPES:
        yield field_causes.unsupported(child(path, "scopeName"), scope, SCOPES)
    if operator not in OPERATORS:
        yield field_causes.unsupported(child(path, "operator"), operator, OPERATORS)
    elif scope != "PriorityClass" and operator != "Exists":
        detail = "must be 'Exist' only operator when scope is any of ResourceQuotaScopeTerminating,"
        detail += " ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort,"
        detail += " ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"
        yield field_causes.invalid(child(path, "operator"), operator, detail)
    elif operator in ("In", "NotIn") and not values:
        detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
        yield field_causes.required(child(path, "values"), detail)
    elif operator in ("Exists", "DoesNotExist") and values:
        detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
        yield field_causes.invalid(child(path, "values"), values, detail)


def _allowed_in(scope: str, name: str) -> bool:
    """Return True if a quota with this scope may limit a resource: those of pods only."""
    if scope == "BestEffort":
        return name in _BEST_EFFORT_LIMITS
    return (
        name in COMPUTE
        or name in _BEST_EFFORT_LIMITS
        or name.startswith(("hugepages-", "requests.hugepages-"))
        or ("/" in name and not name.startswith("count/"))
    )


def _is_standard(name: str) -> bool:
    return (
        name in COUNTS
        or name in COMPUTE
        or name == STORAGE
        or name.startswith(("hugepages-", "requests.hugepages-"))
    )


def _is_count(name: str) -> bool:
    return name in COUNTS or name.startswith("count/")


def quota_update_causes(old: Json, new: Json) -> Causes:
    before, after = subobject(old, "spec"), subobject(new, "spec")
    if set(before.get("scopes") or []) != set(after.get("scopes") or []):
        yield field_causes.invalid("spec.scopes", after.get("scopes"), "field is immutable")
