"""Built-in roles and bindings of an existing cluster, brought up to date at each start.

Rules of Kubernetes (``reconcile_role``): missing rules, labels and subjects are added, and those
that an administrator has added stay. The annotation ``autoupdate: "false"`` excludes an object.
A role that now aggregates others gets its aggregation rule; rules of its own move to the role that
it aggregates, so that they are not lost.

The first releases stored ``view``, ``edit`` and ``admin`` with all resources. These exact rules are
replaced, because adding to them would keep every user of them as powerful as before.
"""

from collections.abc import Sequence

from gangline.local.apiserver.auth.builtin_roles import AUTOUPDATE, READ
from gangline.local.apiserver.auth.rule_coverage import uncovered_rules
from gangline.local.apiserver.auth.rules import ALL, merge_rules
from gangline.local.apiserver.core.registry import Json

_ALL_RESOURCES: Json = {"apiGroups": [ALL], "resources": [ALL]}
_FORMER_RULES: dict[str, list[Json]] = {
    "admin": [{**_ALL_RESOURCES, "verbs": [ALL]}],
    "edit": [{**_ALL_RESOURCES, "verbs": [ALL]}],
    "view": [{**_ALL_RESOURCES, "verbs": list(READ)}],
}


def is_protected(existing: Json) -> bool:
    """Return True if an administrator has excluded an object from reconciliation."""
    return (existing["metadata"].get("annotations") or {}).get(AUTOUPDATE) == "false"


def reconcile_role(existing: Json, expected: Json) -> Json:
    """Return the role with everything that ``expected`` contains."""
    if is_protected(existing):
        return existing
    merged = _with_metadata(existing, expected)
    if "aggregationRule" in expected:
        selectors = _union(_selectors(existing), _selectors(expected))
        merged["aggregationRule"] = {"clusterRoleSelectors": selectors}
        if "aggregationRule" not in existing:
            merged["rules"] = []  # the roles that it aggregates supply them
        return merged
    if "aggregationRule" in existing:
        del merged["aggregationRule"]
        merged["rules"] = list(expected["rules"])
        return merged
    rules = existing.get("rules") or []
    missing = merge_rules(uncovered_rules(rules, expected["rules"]))
    merged["rules"] = [*rules, *missing]
    return merged


def rules_to_keep(existing: Json) -> list[Json]:
    """Return the rules of a role that is about to aggregate others and has rules of its own.

    They were written by an administrator. The rules of the first releases are not among them.
    """
    if "aggregationRule" in existing or is_protected(existing):
        return []
    rules: list[Json] = existing.get("rules") or []
    return [] if rules == _FORMER_RULES.get(existing["metadata"]["name"]) else rules


def reconcile_binding(existing: Json, expected: Json) -> Json | None:
    """Return the binding with all expected subjects; None if it must be created again.

    A binding of another role cannot be changed, because ``roleRef`` is immutable.
    """
    if is_protected(existing):
        return existing
    if existing["roleRef"] != expected["roleRef"]:
        return None
    merged = _with_metadata(existing, expected)
    merged["subjects"] = _union(existing.get("subjects") or [], expected["subjects"])
    return merged


def _with_metadata(existing: Json, expected: Json) -> Json:
    meta = dict(existing["metadata"])
    for name in ("labels", "annotations"):
        meta[name] = {**expected["metadata"][name], **(meta.get(name) or {})}
    return {**existing, "metadata": meta}


def _selectors(role: Json) -> list[Json]:
    found: list[Json] = (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or []
    return found


def _union(first: Sequence[Json], second: Sequence[Json]) -> list[Json]:
    return [*first, *(item for item in second if item not in first)]
