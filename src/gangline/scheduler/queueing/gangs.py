"""Pending gangs and single pods, with what each of them still needs.

A single pod is a gang of one. A pending gang holds the pods to place, the minimum that must be
placed together, and an equivalence key: equal keys fail equally in one cycle. What follows from a
group and its members alone is cached until one of them changes.

A gang may consist of subgroups (``subGroupPolicy``). A subgroup is complete with ``size`` pods;
fewer are never placed. The gang may start when ``min_subgroups`` subgroups of each rule are
complete. A pod belongs to the first rule that selects it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from math import inf
from typing import TypeAlias

from msgspec import Struct, structs

from gangline.api.volcano.scheduling import DEFAULT_QUEUE
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.volume_limits import (
    attachment_columns,
    count_attachments,
    volume_requirements_of,
)
from gangline.scheduler.plugins.task_topology import default_role_affinity
from gangline.scheduler.plugins.volumes import VolumeRequirements
from gangline.scheduler.queueing import admission
from gangline.scheduler.queueing.queue_tree import NodeGroupTerms, node_group_terms_of
from gangline.scheduler.types import (
    EPOCH,
    GangId,
    GroupKey,
    NetworkTopologyRule,
    NodeName,
    NodeTerm,
    PendingReason,
    PodGroupInfo,
    PodInfo,
    PodKey,
    PodShape,
    Request,
    RequiredNodeTerms,
    RoleAffinity,
    SubgroupRule,
    gang_name,
    shape_of,
    single_pod_id,
)

_DIGITS = re.compile(r"(\d+)")
MAX_RESTART_RESERVATION_S = 3600.0
"""Longer reservations of previous nodes are ignored: a wrong clock must not take nodes away for
ever.
"""
SubgroupKey = tuple[str, tuple[str, ...]]
"""The name of the rule, and the label values that distinguish its subgroups."""
OVERDUE_PRIORITY = 2**32
"""Above the priority of every class."""
GangOrder: TypeAlias = tuple[int, bool, float, float, datetime, str, bool]
"""Sort key within a queue: priority, minimum before extra pods (of these the smallest gang's), the
time at which it has waited too long, creation time, name (so that the order is total), and gangs
before single pods of the same name.
"""


@dataclass(frozen=True, slots=True)
class Subgroup:
    """A subgroup: its pending pods, and its members that count already."""

    key: SubgroupKey
    size: int
    pending: tuple[PodInfo, ...] = ()
    running: tuple[PodInfo, ...] = ()
    """Members that hold resources."""
    settled: int = 0
    """Number of members that count already: they run or have succeeded."""
    network: NetworkTopologyRule | None = None

    @property
    def missing(self) -> int:
        """Number of pods that are missing for a complete subgroup."""
        return max(0, self.size - self.settled)


class PendingGang(Struct, frozen=True, eq=False):
    """Pods that are placed together or not at all, and what they still need.

    Each cycle creates one for every single pending pod: a struct is created in half the time of a
    dataclass.
    """

    name: str
    """``namespace/name`` of the group, or of the pod."""
    pending: tuple[PodInfo, ...]
    """Pods to place; those that the gang cannot start without come first."""
    priority: int
    created: datetime
    pending_since: datetime = EPOCH
    """Creation time of the oldest pod in ``waiting``."""
    group: GroupKey | None = None
    queue: str = DEFAULT_QUEUE
    missing_members: int = 1
    """How many pods of ``waiting`` must be placed for any of them to be placed."""
    missing_roles: tuple[tuple[str, int], ...] = ()
    """The same for each role that has a minimum."""
    running: tuple[PodInfo, ...] = ()
    """Members that hold resources already."""
    previous_nodes: tuple[tuple[PodKey, NodeName], ...] = ()
    """Nodes of its pods before the gang was restarted: the pods are placed there again."""
    nominated_nodes: tuple[tuple[PodKey, NodeName], ...] = ()
    """Nodes that its reservation as a preemptor names: the pods are placed there if possible."""
    requested: tuple[tuple[str, int], ...] = ()
    """Total request of the pods that the gang cannot start without."""
    max_run_time_s: float = 0.0
    """Maximum run time in seconds; 0: unknown."""
    subgroup_rules: tuple[SubgroupRule, ...] = ()
    """Rules that divide the gang into subgroups."""
    subgroups: tuple[Subgroup, ...] = ()
    subgroup_prefix: int = 0
    """Length of the prefix of ``waiting`` that completes enough subgroups."""
    role_affinity: RoleAffinity | None = None
    network: NetworkTopologyRule | None = None
    has_inter_pod_rules: bool = False
    """True if inter-pod rules apply to some of its pods."""
    equivalence_key: object = None
    """Equivalence key: gangs with equal keys fit equally."""
    needed: int = 0
    """Length of the prefix of ``waiting`` that the gang cannot start without."""
    deadline: float = inf
    """When it has waited too long, in seconds since the epoch; infinite: never."""
    is_overdue: bool = False
    """True if it has waited too long: it comes first in its queue."""
    order: GangOrder = (0, False, 0.0, inf, EPOCH, "", False)
    """Sort key of the scheduling order within a queue."""
    pod_keys: tuple[PodKey, ...] = ()
    """Keys of those in ``waiting`` that exist. Derived, like ``needed`` and ``order``."""
    id: GangId = GangId("")
    """Its identity, derived: a pod without a group may have the name of one."""

    def __post_init__(self) -> None:
        # Computed once: every cycle reads them, and most gangs stay pending for many cycles.
        of_roles = sum([count for _, count in self.missing_roles]) if self.missing_roles else 0
        priority = OVERDUE_PRIORITY if self.is_overdue else self.priority
        single = self.group is None
        order = (-priority, False, 0.0, self.deadline, self.created, self.name, single)
        structs.force_setattr(
            self, "needed", max(self.missing_members, of_roles, self.subgroup_prefix)
        )
        structs.force_setattr(self, "order", order)
        structs.force_setattr(
            self, "id", self.group if self.group is not None else single_pod_id(self.name)
        )
        structs.force_setattr(
            self, "pod_keys", tuple([pod.key for pod in self.pending if not pod.is_expected])
        )

    @property
    def is_broken(self) -> bool:
        """True if the gang runs with fewer members than its minimum."""
        return bool(self.running) and self.needed > 0

    @property
    def is_urgent(self) -> bool:
        """True if the gang lost a member or restarts: it is served before all queues."""
        return self.is_broken or bool(self.previous_nodes)

    @property
    def preferred_nodes(self) -> tuple[tuple[PodKey, NodeName], ...]:
        """Nodes on which its pods are tried first: nominated ones, else previous ones."""
        return self.nominated_nodes or self.previous_nodes

    def satisfied_by(self, placed: Iterable[PodInfo]) -> bool:
        """Return whether the gang may start once ``placed`` have their nodes."""
        if self.subgroup_rules:
            placed = list(placed)
            if not has_enough_complete(self.subgroup_rules, self.subgroups, placed):
                return False
        if not self.missing_roles:
            return sum(1 for _ in placed) >= self.missing_members
        roles = Counter(pod.role for pod in placed)
        return roles.total() >= self.missing_members and all(
            roles[role] >= count for role, count in self.missing_roles
        )


def pending_gangs(
    state: SchedulerCache, now: float, waiting_time_s: float = 0.0
) -> tuple[list[PendingGang], list[PendingReason]]:
    """Return the gangs that can be tried, and the reasons of those that cannot be tried.

    Args:
        waiting_time_s: after this time a gang comes first, unless its group states another one;
            0: never.
    """
    pool = node_group_terms_of(state.queues, DEFAULT_QUEUE)
    refresh_counted_resources(state)
    gangs: list[PendingGang] = []
    refused: list[PendingReason] = []
    for pod in state.pending_single_pods.values():
        verdict = admission.binding_refused(state, (pod,), now)
        if verdict is None and (pod.device_claims or state.devices.classes):
            verdict = admission.resource_claims(state, (pod,))
        if verdict is not None:
            refused.append(verdict)
        else:
            gang = _single_pod_gang(_with_queue_and_volume_terms(state, pod, pool))
            has_claims = pod.claims or pod.device_claims
            gangs.append(_with_claims_in_key(gang, state) if has_claims else gang)
    inner = {queue.parent for queue in state.queues.values()}
    open_leaves: dict[str, bool] = {}
    for key, waiting in state.pending_members.items():
        if verdict := admission.binding_refused(state, waiting.values(), now, key):
            refused.append(verdict)
            continue
        match _multi_pod_gang(state, key, waiting, inner, open_leaves):
            case PendingGang() as gang:
                gang = _with_previous_nodes(gang, state, now)
                limit_s = state.groups[key].waiting_time_s or waiting_time_s
                gangs.append(_with_deadline(gang, limit_s, now) if limit_s else gang)
            case PendingReason() as verdict:
                refused.append(verdict)
    refused.sort(key=lambda verdict: (verdict.group or "", verdict.pods))
    return gangs, refused


def _single_pod_gang(pod: PodInfo) -> PendingGang:
    return PendingGang(
        str(pod.key),
        (pod,),
        pod.priority,
        pod.created,
        pod.created,
        requested=pod.shape.request,
        max_run_time_s=pod.max_run_time_s,
        has_inter_pod_rules=pod.shape.constraints.inter_pod is not None,
        equivalence_key=_equivalence_key(pod.shape, pod.role, pod.may_preempt),
    )


def _with_claims_in_key(gang: PendingGang, state: SchedulerCache) -> PendingGang:
    """Return the gang with the volumes and devices that its pods need as part of its equivalence
    key.
    """
    storage = state.storage
    kinds: Counter[object] = Counter(
        (pod.shape, tuple(map(storage.volume_kind, claims)))
        for pod in gang.pending
        if pod.claims and (claims := storage.matched_claims(pod.claims))
    )
    kinds.update(
        (pod.shape, devices) for pod in gang.pending if (devices := state.devices.kinds(pod))
    )
    if not kinds:
        return gang
    key = _equivalence_key(gang.equivalence_key, frozenset(kinds.items()))
    return structs.replace(gang, equivalence_key=key)


def _with_deadline(gang: PendingGang, waiting_time_s: float, now: float) -> PendingGang:
    deadline = gang.created.timestamp() + waiting_time_s
    return structs.replace(gang, deadline=deadline, is_overdue=now >= deadline)


def _with_previous_nodes(gang: PendingGang, state: SchedulerCache, now: float) -> PendingGang:
    group = gang.group
    if group not in state.restarting_groups:
        return gang
    nodes = active_previous_nodes(state.groups[group], now)
    if not nodes:
        return gang
    return structs.replace(
        gang, previous_nodes=nodes, equivalence_key=(gang.equivalence_key, gang.id)
    )


def _multi_pod_gang(
    state: SchedulerCache,
    key: GroupKey,
    waiting: Mapping[PodKey, PodInfo],
    inner: Set[str],
    open_leaves: dict[str, bool],
) -> PendingGang | PendingReason:
    group = state.groups.get(key)
    if group is None:
        return admission.group_not_found(key, waiting.values())
    is_open = open_leaves.get(group.queue)
    if is_open is None:
        is_open = open_leaves[group.queue] = admission.is_open_leaf(state, group.queue, inner)
    if not is_open or state.quotas:
        refused = admission.check_admission(state, group, waiting.values(), inner)
        if refused is not None:
            return refused
        group = admission.in_present_queue(state, group, inner)
    if (refused := admission.resource_claims(state, waiting.values(), key)) is not None:
        return refused
    cached = state.derived.pending.get(key)
    if not isinstance(cached, PendingGang | PendingReason):
        members = state.members[key].values()
        expected = _expected_pods(group, members) if group.joining else ()
        ordered = sorted((*waiting.values(), *expected), key=_task_order)
        pool = node_group_terms_of(state.queues, group.queue)
        restricted = [_with_queue_and_volume_terms(state, pod, pool) for pod in ordered]
        cached = make_pending_gang(group, members, restricted)
        if isinstance(cached, PendingGang):
            cached = _with_claims_in_key(cached, state)
        state.derived.pending[key] = cached
    return cached


def _expected_pods(group: PodGroupInfo, members: Iterable[PodInfo]) -> list[PodInfo]:
    """Return the pods that join a gang later and do not exist now."""
    present = {pod.key for pod in members if pod.phase != "Failed" and not pod.is_terminating}
    return [pod for pod in group.joining if pod.key not in present]


def joining_gangs(state: SchedulerCache) -> list[PendingGang]:
    """Return the running gangs whose joining pods have no nodes yet, as gangs of these pods."""
    gangs = []
    for key in state.joining_groups:
        group, members = state.groups[key], state.members.get(key, {})
        if not any(pod.holds_resources for pod in members.values()):
            continue
        pending = [member for pod in group.joining if (member := members.get(pod.key)) is not None]
        pods = [pod for pod in pending if pod.is_pending] + _expected_pods(group, members.values())
        if not pods:
            continue
        pool = node_group_terms_of(state.queues, group.queue)
        if admission.resource_claims(state, pods) is not None:
            continue
        restricted = [_with_queue_and_volume_terms(state, pod, pool) for pod in pods]
        members_only = replace(group, min_member=0, min_task_member=(), joining=())
        gang = make_pending_gang(members_only, members.values(), restricted)
        if isinstance(gang, PendingGang):
            gangs.append(structs.replace(gang, missing_members=len(pods)))
    return sorted(gangs, key=lambda gang: (gang.created, gang.name))


def _with_joining(group: PodGroupInfo) -> PodGroupInfo:
    """Return a group whose minimum includes the pods that join it later."""
    roles = Counter(dict(group.min_task_member))
    roles.update(pod.role for pod in group.joining)
    return replace(group, min_member=group.size, min_task_member=tuple(sorted(roles.items())))


def make_pending_gang(
    group: PodGroupInfo, members: Collection[PodInfo], waiting: list[PodInfo]
) -> PendingGang | PendingReason:
    """Return what a gang still needs, or the reason if some of its pods do not exist."""
    settled = [pod for pod in members if counts_towards_min_member(pod)]
    required = _with_joining(group) if group.joining else group
    missing = max(0, required.min_member - len(settled))
    roles = missing_roles(required, settled)
    if missing > len(waiting):
        if gated := admission.held_by_gates(group, members, waiting):
            return gated
        existing_pods = [pod for pod in waiting if not pod.is_expected]
        return admission.too_few_pods(group, len(settled) + len(existing_pods), existing_pods)
    existing = Counter(pod.role for pod in waiting) if roles else Counter()
    for role, count in roles:
        if existing[role] < count:
            return admission.too_few_pods_of_role(group, role, count - existing[role], waiting)
    ordered = required_first(waiting, missing, dict(roles))
    subgroups = split_into_subgroups(group.subgroups, settled, waiting) if group.subgroups else ()
    if (few := missing_subgroups(group.subgroups, subgroups)) is not None:
        return admission.too_few_subgroups(group, *few, waiting)
    shapes = Counter((pod.shape, pod.role) for pod in waiting)
    near = tuple(sorted({pod.node or "" for pod in settled})) if group.network else ()
    gang = PendingGang(
        name=gang_name(GangId(group.key)),
        pending=ordered,
        priority=group.priority,
        created=group.created,
        pending_since=min(
            (pod.created for pod in waiting if not pod.is_expected), default=group.created
        ),
        group=group.key,
        queue=group.queue,
        missing_members=missing,
        missing_roles=roles,
        running=tuple(pod for pod in settled if pod.holds_resources),
        max_run_time_s=_max_run_time_s(waiting, group),
        has_inter_pod_rules=any(shape.constraints.inter_pod is not None for shape, _ in shapes),
        role_affinity=group.role_affinity
        or default_role_affinity(frozenset(role for _, role in shapes)),
        network=group.network,
        requested=_total(ordered[: max(missing, sum(count for _, count in roles))]),
        equivalence_key=_equivalence_key(
            frozenset(shapes.items()),
            missing,
            roles,
            group.role_affinity,
            group.network,
            near,
            all(pod.may_preempt for pod in waiting),
        ),
    )
    if group.subgroups:
        gang = _with_subgroups(gang, group.subgroups, subgroups)
        gang = structs.replace(gang, requested=_total(gang.pending[: gang.needed]))
    return gang


def _with_subgroups(
    gang: PendingGang, rules: tuple[SubgroupRule, ...], subgroups: tuple[Subgroup, ...]
) -> PendingGang:
    waiting = order_by_subgroup(subgroups, gang.pending)
    divided = structs.replace(
        gang,
        pending=waiting,
        subgroup_rules=rules,
        subgroups=subgroups,
        equivalence_key=(gang.equivalence_key, gang.id),
    )
    ends = [0]
    for subgroup in sorted(
        subgroups, key=lambda subgroup: len(subgroup.pending) < subgroup.missing
    ):
        ends.append(ends[-1] + len(subgroup.pending))
    ends += range(ends[-1] + 1, len(waiting) + 1)
    prefix = next((end for end in ends if divided.satisfied_by(waiting[:end])), len(waiting))
    return structs.replace(divided, subgroup_prefix=prefix)


def _with_queue_and_volume_terms(
    state: SchedulerCache, pod: PodInfo, pool: NodeGroupTerms
) -> PodInfo:
    pod = with_required_nodes(pod, *pool)
    if pod.device_claims:
        pod = with_required_nodes(pod, state.devices.requirements(pod))
    if not (pod.claims and state.storage.synced):
        return pod
    needs = count_requirements(state, pod)
    if needs.request:
        request = tuple(sorted((*pod.shape.request, *needs.request)))
        pod = structs.replace(
            pod, shape=shape_of(request, pod.shape.constraints, *pod.shape.images)
        )
    return with_required_nodes(pod, needs.required_node_terms)


def with_required_nodes(
    pod: PodInfo,
    required: tuple[RequiredNodeTerms, ...],
    preferred: tuple[tuple[int, NodeTerm], ...] = (),
) -> PodInfo:
    if not (required or preferred):
        return pod
    own = pod.shape.constraints
    constraints = replace(
        own,
        required_node_terms=(*own.required_node_terms, *required),
        preferred=(*own.preferred, *preferred),
    )
    return structs.replace(pod, shape=shape_of(pod.shape.request, constraints, *pod.shape.images))


@lru_cache(maxsize=16_384)
def _equivalence_key(*decisive: object) -> object:
    """Return one object for equal arguments: every cycle looks it up in tables, by identity."""
    return object()


def _max_run_time_s(pods: Iterable[PodInfo], group: PodGroupInfo) -> float:
    limits = [pod.max_run_time_s for pod in pods]
    own = max(limits, default=0.0) if all(limits) else 0.0
    return min((limit for limit in (own, group.max_run_time_s) if limit), default=0.0)


def with_allowed_pods_first(gang: PendingGang, allows: Callable[[Request], bool]) -> PendingGang:
    """Return an elastic gang whose first pods are within a limit, if others than its first ones
    are; else the gang itself.

    Args:
        allows: whether the limit allows a total request.
    """
    shapes = {pod.shape for pod in gang.pending}
    if len(shapes) == 1 or gang.needed == len(gang.pending) or gang.subgroup_rules:
        return gang
    chosen: list[PodInfo] = []
    total: Counter[str] = Counter()
    refused = set[PodShape]()
    waiting = required_first(gang.pending, gang.missing_members, dict(gang.missing_roles))
    for pod in waiting:
        if pod.shape in refused:
            continue
        more = total + Counter(dict(pod.shape.request))
        if not allows(tuple(sorted(more.items()))):
            refused.add(pod.shape)
            continue
        total = more
        chosen.append(pod)
        if len(chosen) >= gang.missing_members and gang.satisfied_by(chosen):
            keys = {pod.key for pod in chosen}
            others = [pod for pod in gang.pending if pod.key not in keys]
            requested = tuple(sorted(total.items()))
            return structs.replace(gang, pending=(*chosen, *others), requested=requested)
    return gang


def _total(pods: Iterable[PodInfo]) -> Request:
    """Return the total request of pods; pods of one shape are added in one step."""
    total: dict[str, int] = {}
    for shape, count in Counter(pod.shape for pod in pods).items():
        for name, amount in shape.request:
            total[name] = total.get(name, 0) + amount * count
    return tuple(sorted(total.items()))


def active_previous_nodes(group: PodGroupInfo, now: float) -> tuple[tuple[PodKey, NodeName], ...]:
    """Return the previous nodes of a gang whose reservation has not expired."""
    nodes = group.previous_nodes
    if nodes is None or not now < nodes.expires_at <= now + MAX_RESTART_RESERVATION_S:
        return ()
    return nodes.nodes


def counts_towards_min_member(pod: PodInfo) -> bool:
    """Return whether a member counts towards minMember: it runs and stays, or has succeeded."""
    return pod.phase == "Succeeded" or (pod.holds_resources and not pod.is_terminating)


def missing_roles(group: PodGroupInfo, settled: Iterable[PodInfo]) -> tuple[tuple[str, int], ...]:
    """Return the roles below their minimum, with the number of missing members."""
    existing = Counter(pod.role for pod in settled)
    return tuple(
        (role, minimum - existing[role])
        for role, minimum in group.min_task_member
        if existing[role] < minimum
    )


def required_first(
    waiting: Iterable[PodInfo], missing: int, roles: Mapping[str, int]
) -> tuple[PodInfo, ...]:
    """Return the pods that the roles need, then those that the gang needs, then the rest."""
    if not roles:
        return tuple(waiting)
    required = Counter(roles)
    needed: list[PodInfo] = []
    spare: list[PodInfo] = []
    for pod in waiting:
        if required[pod.role] > 0:
            required[pod.role] -= 1
            needed.append(pod)
        else:
            spare.append(pod)
    rest = max(0, missing - len(needed))
    return (*needed, *spare[:rest], *spare[rest:])


def _task_order(pod: PodInfo) -> tuple[int, list[str | int], str]:
    """Sort key of members: priority, then index (``worker-10`` comes after ``worker-9``)."""
    # Text and digits alternate, so numbers are compared only with numbers.
    subgroups: list[str | int] = list(_DIGITS.split(pod.key))
    subgroups[1::2] = map(int, subgroups[1::2])
    return (-pod.priority, subgroups, pod.key)


def refresh_counted_resources(state: SchedulerCache) -> None:
    """Count what pending pods need again, if it may have changed."""
    if state.counted_resources or not state.storage.synced:
        return
    state.counted_resources.add("")
    state.nodes.attachment_columns.clear()
    waiting = state.storage.waiting_pods.values()
    for key in sorted({key for keys in waiting for key in keys}):
        count_requirements(state, state.pods[key])


def count_requirements(state: SchedulerCache, pod: PodInfo) -> VolumeRequirements:
    """Return what a pod's claims require of its node, after counting it on all nodes."""
    needs = volume_requirements_of(state.storage, pod)
    if any(name not in state.counted_resources for name, _ in needs.request):
        listed = list(state.nodes.rows)
        supply = count_attachments(state.storage, pod, listed, state.counted_resources)
        for name, counted in supply.items():
            state.nodes.set_counted_resource(name, counted)
            state.counted_resources.add(name)
        state.nodes.attachment_columns |= attachment_columns(supply, state.nodes.columns)
    return needs


def split_into_subgroups(
    rules: Sequence[SubgroupRule], settled: Iterable[PodInfo], waiting: Iterable[PodInfo]
) -> tuple[Subgroup, ...]:
    """Return the subgroups of a gang: those with running members first, then by name."""
    had: dict[SubgroupKey, list[PodInfo]] = defaultdict(list)
    wait: dict[SubgroupKey, list[PodInfo]] = defaultdict(list)
    for pods, by_key in ((settled, had), (waiting, wait)):
        for pod in pods:
            if (key := subgroup_key(rules, pod)) is not None:
                by_key[key].append(pod)
    by_name = {rule.name: rule for rule in rules}
    parts = [
        Subgroup(
            key=key,
            size=by_name[key[0]].size,
            pending=tuple(wait[key]),
            running=tuple(pod for pod in had[key] if pod.holds_resources),
            settled=len(had[key]),
            network=by_name[key[0]].network,
        )
        for key in sorted(had.keys() | wait.keys())
    ]
    return tuple(sorted(parts, key=lambda part: (not part.settled, part.key)))


def subgroup_key(rules: Sequence[SubgroupRule], pod: PodInfo) -> SubgroupKey | None:
    """Return the key of a pod's subgroup; None: it belongs to no subgroup."""
    labels = dict(pod.labels)
    for rule in rules:
        if rule.selector.matches(labels):
            return rule.name, tuple(labels.get(key, "") for key in rule.keys)
    return None


def has_enough_complete(
    rules: Sequence[SubgroupRule], parts: Iterable[Subgroup], placed: Iterable[PodInfo]
) -> bool:
    """Return whether enough subgroups are complete once ``placed`` have their nodes."""
    count = Counter(subgroup_key(rules, pod) for pod in placed)
    complete = Counter(part.key[0] for part in parts if count[part.key] >= part.missing)
    return all(complete[rule.name] >= rule.min_subgroups for rule in rules)


def order_by_subgroup(parts: Iterable[Subgroup], waiting: Sequence[PodInfo]) -> tuple[PodInfo, ...]:
    """Return the pending pods, one subgroup after the other; pods of no subgroup come last.

    Subgroups that existing pods cannot complete come after those that they can.
    """
    listed = list(parts)
    listed.sort(key=lambda part: len(part.pending) < part.missing)
    ordered = [pod for part in listed for pod in part.pending]
    seen: set[PodKey] = {pod.key for pod in ordered}
    return (*ordered, *(pod for pod in waiting if pod.key not in seen))


def missing_subgroups(
    rules: Sequence[SubgroupRule], parts: Iterable[Subgroup]
) -> tuple[SubgroupRule, int] | None:
    """Return the first rule that existing pods cannot satisfy, and how many subgroups they
    complete.
    """
    listed = list(parts)
    for rule in rules:
        able = sum(
            part.key[0] == rule.name and len(part.pending) >= part.missing for part in listed
        )
        if able < rule.min_subgroups:
            return rule, able
    return None
