"""Network topology domains (HyperNodes) as sets of nodes.

A domain has a tier, 1 being the closest. Its members are nodes, or domains of lower tiers.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.types.types import (
    HyperNodeInfo,
    HyperNodeMemberInfo,
    NetworkTopologyRule,
    NodeInfo,
)

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class TopologyDomain:
    name: str
    tier: int
    rows: Mask


def topology_domains(
    hypernodes: Mapping[str, HyperNodeInfo], nodes: Iterable[NodeInfo | None]
) -> list[TopologyDomain]:
    """Return all domains, the closest tier first. A cycle of domains ends where it closes."""
    listed = list(nodes)
    masks: dict[str, Mask] = {}

    def rows(name: str, above: frozenset[str]) -> Mask:
        if name in masks:
            return masks[name]
        mask = np.zeros(len(listed), dtype=bool)
        for member in hypernodes[name].members:
            if member.hypernode:
                for other in hypernodes:
                    if other not in above and _matches_name(member, other):
                        mask |= rows(other, above | {other})
            else:
                mask |= np.array([node is not None and _selects(member, node) for node in listed])
        masks[name] = mask
        return mask

    found = [
        TopologyDomain(n, each.tier, rows(n, frozenset({n}))) for n, each in hypernodes.items()
    ]
    return sorted(found, key=lambda domain: (domain.tier, domain.name))


def _matches_name(member: HyperNodeMemberInfo, name: str) -> bool:
    if member.exact:
        return name == member.exact
    try:
        return bool(member.pattern) and re.search(member.pattern, name) is not None
    except re.error:
        return False


def _selects(member: HyperNodeMemberInfo, node: NodeInfo) -> bool:
    if member.labels:
        return set(member.labels) <= set(node.labels)
    return _matches_name(member, node.name)


def highest_tier(rule: NetworkTopologyRule, hypernodes: Mapping[str, HyperNodeInfo]) -> int:
    """Return the highest tier of a domain that may hold the gang."""
    tiers = [each.tier for each in hypernodes.values()]
    if rule.tier_name:
        named = [each.tier for each in hypernodes.values() if each.tier_name == rule.tier_name]
        return max(named, default=0)
    return rule.tier if rule.tier is not None else max(tiers, default=0)
