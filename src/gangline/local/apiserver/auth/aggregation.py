"""The rules of a ClusterRole that aggregates others.

They are the rules of all ClusterRoles that its selectors match, in the order of their names, each
once. The role itself is not among them.
"""

from collections.abc import Iterable

import msgspec

from gangline.api.meta.objects import LabelSelector
from gangline.api.meta.selectors import Selector, SelectorError, selector_from_object
from gangline.local.apiserver.core.registry import Json


def aggregated_rules(role: Json, roles: Iterable[Json]) -> list[Json] | None:
    """Return the rules that ``role`` aggregates from ``roles``; None if it aggregates none."""
    found = (role.get("aggregationRule") or {}).get("clusterRoleSelectors")
    if not found:
        return None
    ordered = sorted(roles, key=lambda each: str(each["metadata"]["name"]))
    rules: list[Json] = []
    for selector in filter(None, map(_selector, found)):
        for source in ordered:
            meta = source["metadata"]
            if meta["name"] != role["metadata"]["name"] and selector.matches(
                meta.get("labels") or {}
            ):
                rules += [rule for rule in source.get("rules") or () if rule not in rules]
    return rules


def _selector(written: Json) -> Selector | None:
    """Return a selector; None for an invalid one, which matches nothing."""
    try:
        return selector_from_object(msgspec.convert(written, LabelSelector))
    except (SelectorError, msgspec.ValidationError):
        return None
