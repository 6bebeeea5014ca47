"""Task topology: which roles of a gang prefer to share nodes, and which prefer not to.

Parameter servers and workers exchange gradients all the time, which is fastest within a node. Roles
with *affinity* share nodes; a role with *anti-affinity* to itself is spread over nodes. Two
parameter servers and four workers form two *buckets*: a server and two workers each. This is a
preference and never keeps a gang pending.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gangline.scheduler.types import PodInfo, RoleAffinity

SERVERS = frozenset({"ps", "parameter-server", "parameterserver"})
WORKER = "worker"


def parse_role_affinity(affinity: str, anti_affinity: str) -> RoleAffinity | None:
    """Parse the annotations: ``;`` separates groups of roles, ``,`` separates roles."""
    together, apart = _groups(affinity), _groups(anti_affinity)
    return RoleAffinity(together, apart) if together or apart else None


def _groups(written: str) -> tuple[tuple[str, ...], ...]:
    groups = (
        tuple(dict.fromkeys(role.strip() for role in group.split(",") if role.strip()))
        for group in written.split(";")
    )
    return tuple(group for group in groups if group)


def default_role_affinity(roles: frozenset[str]) -> RoleAffinity | None:
    """Return the default of a gang: servers are spread, and workers share their nodes."""
    servers = sorted(role for role in roles if role.lower() in SERVERS)
    workers = sorted(role for role in roles if role.lower() == WORKER)
    if not servers or not workers:
        return None
    return RoleAffinity(((servers[0], workers[0]),), ((servers[0],),))


@dataclass(frozen=True, slots=True)
class RoleBucket:
    """Pods for one node."""

    pods: tuple[PodInfo, ...]
    exclusive: bool
    """True if buckets of this kind use different nodes."""


def role_buckets(pods: Sequence[PodInfo], rules: RoleAffinity) -> list[RoleBucket]:
    """Divide a gang's pods evenly into buckets; pods of roles without a preference are left out."""
    by_role: dict[str, list[PodInfo]] = defaultdict(list)
    for pod in pods:
        by_role[pod.role].append(pod)
    spread = {group[0] for group in rules.anti_affinity if len(group) == 1}
    buckets: list[RoleBucket] = []
    seen: set[str] = set()
    for group in (*rules.affinity, *((role,) for role in sorted(spread))):
        roles = [role for role in group if role in by_role and role not in seen]
        seen |= set(roles)
        count = max((len(by_role[role]) for role in roles if role in spread), default=1)
        shares: list[list[PodInfo]] = [[] for _ in range(count)]
        for role in roles:
            for index, pod in enumerate(by_role[role]):
                shares[index % count].append(pod)
        is_exclusive = any(role in spread for role in roles)
        buckets += [RoleBucket(tuple(share), is_exclusive) for share in shares if share]
    return buckets


def anti_affine_roles(role: str, rules: RoleAffinity) -> frozenset[str]:
    """Return the roles that prefer not to share a node with ``role``."""
    return frozenset(
        other
        for group in rules.anti_affinity
        if len(group) > 1 and role in group
        for other in group
    ) - {role}
