"""Messages of pending gangs and pods: sentences for people, Kubernetes' wording for programs.

A pod's message starts like kube-scheduler's (``0/3 nodes are available: 3 Insufficient cpu.``),
since autoscalers and people parse that. A gang's message states the request, the free amounts, the
shortage and what would help.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from gangline.api.figures import plain_number
from gangline.api.resource_list import PODS
from gangline.scheduler.plugins.inter_pod import (
    AFFINITY_MISMATCH,
    ANTI_AFFINITY_MISMATCH,
    EXISTING_ANTI_AFFINITY,
    SPREAD_VIOLATED,
)
from gangline.scheduler.plugins.volumes import CLAIM_IN_USE, VOLUME_AFFINITY_CONFLICT
from gangline.scheduler.types import (
    ATTACHMENT_PREFIX,
    HOST_PORT_PREFIX,
    INTERNAL_RESOURCE_PREFIXES,
    NetworkTopologyRule,
    PodInfo,
)

NOT_ENOUGH_RESOURCES = "NotEnoughResources"
NOT_ENOUGH_PODS = "NotEnoughTasks"
NOT_ENOUGH_PODS_OF_ROLE = "NotEnoughPodsOfTask"
NO_SUCH_GROUP = "PodGroupNotFound"
NO_SUCH_QUEUE = "QueueNotFound"
QUEUE_CLOSED = "QueueClosed"
QUEUE_NOT_LEAF = "QueueNotLeaf"
QUEUE_LIMIT = "QueueLimit"
QUOTA_EXCEEDED = "QuotaExceeded"
RESOURCE_CLAIMS = "ResourceClaimsNotSupported"
CLAIMS_NOT_CREATED = "ResourceClaimsNotCreated"
BINDING_REFUSED = "BindingRefused"
OVERCOMMITTED = "Overcommitted"
SCHEDULING_GATED = "SchedulingGated"

GANG_CREATION_REASONS = frozenset(
    {
        NOT_ENOUGH_PODS,
        NOT_ENOUGH_PODS_OF_ROLE,
        NO_SUCH_GROUP,
        QUOTA_EXCEEDED,
        OVERCOMMITTED,
        CLAIMS_NOT_CREATED,
    }
)
"""Reasons that apply to every gang while its objects are being created."""

OVERCOMMITTED_MESSAGE = (
    "It waits for admission, and has no pods until then: it asks for {}. {} are in use or asked "
    "for by admitted gangs, and gangs are admitted up to {} (the cluster times "
    "overcommit-factor). It is admitted when others have ended, or when the fair share of its "
    "queue covers it."
)
PREEMPTING = "Pods are being evicted for it: it starts when they have ended."
ENDING = "Pods that are ending make enough resources free: it starts when they have ended."
EVICTED = "Pods of its gang are being evicted."
DISPLACED = "Its reservation went to {}, which has a higher priority."
DISPLACED_BY_SHARE = "Its reservation went to {}: its queue would be above its fair share."

NETWORK_DOMAIN_REQUIRED = (
    "All of its pods must be within one network domain of its highest tier or below. "
)

LABEL_REQUIRED = "All of its pods must be on nodes with the same value of the label {}. "

MAX_MESSAGE = 1024
"""Maximal characters of a message: the limit of events."""
_EXACT = 10
"""Positions below this number are exact, others are rounded."""
_SHOWN_NAMES = 3
_NO_NODES = "no nodes available to schedule pods"
_POD_RULES = ("node affinity/selector", "untolerated taint")
_INTER_POD_RULES = {
    AFFINITY_MISMATCH: "its affinity to other pods",
    ANTI_AFFINITY_MISMATCH: "its anti-affinity to other pods",
    EXISTING_ANTI_AFFINITY: "the anti-affinity of other pods",
    SPREAD_VIOLATED: "its topology spread constraints",
}
_NOT_TOGETHER = "node(s) didn't fit the pods of the gang together"
_SHOWN_FIRST = ("cpu", "memory")
_BINARY_UNITS = tuple(
    (suffix, 2**power)
    for suffix, power in (("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10))
)
_BYTES = frozenset({"memory", "ephemeral-storage"})


@dataclass(frozen=True, slots=True)
class GangCapacity:
    """Resources for a gang, summed over the nodes that accept its pods."""

    requested: Mapping[str, int]
    """What it cannot start without."""
    free: Mapping[str, int]
    max_node_free: Mapping[str, int]
    """The most that a single node has free."""
    total: Mapping[str, int]
    eligible_nodes: int
    """Number of nodes that accept its pods, apart from free resources."""


@dataclass(frozen=True, slots=True)
class ResourceHolders:
    """The users of a scarce resource."""

    resource: str
    gangs: tuple[tuple[str, int], ...] = ()
    """The largest users."""
    single_pods: int = 0
    """Amount of the pods without a gang that may never end."""
    others: int = 0
    lasting_pods: tuple[tuple[str, int], ...] = ()
    """The largest of these pods, if they alone keep the gang from ever starting."""


@dataclass(frozen=True, slots=True)
class ReservationSummary:
    """The reserved nodes of the first pending gang, and the gangs that run there."""

    nodes: tuple[str, ...]
    gangs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementAttempt:
    """A failed placement: the input of a gang's messages."""

    pending: int
    fitted: int
    missing: int
    running: int
    unplaced_pod: PodInfo
    """A pod that found no node."""
    kubernetes_message: str
    """The cause in Kubernetes' wording."""
    shortages: Mapping[str, int]
    """Number of nodes that lack each resource."""
    capacity: GangCapacity
    is_feasible: bool
    """True if the gang would fit once all running gangs have ended."""
    reserved_for: str = ""
    """Gangs with reservations, if these alone keep it pending."""
    holders: ResourceHolders | None = None
    """The users of the scarce resource."""
    claims: str = ""
    """What would help if only volumes or devices are missing."""
    fits_amounts: bool = False
    """True if a node has enough free for the unplaced pod, and something else excludes it."""
    is_uniform: bool = True
    """True if all pending pods have the same shape."""
    in_domain: bool = False
    """True if all pods must be within one domain of the network, or of a label."""


def availability_message(
    nodes: int, refusals: Mapping[str, int], shortages: Mapping[str, int]
) -> str:
    """Return, in Kubernetes' wording, why no node accepts a pod."""
    if not nodes:
        return _NO_NODES
    reasons = Counter(refusals)
    for resource, count in shortages.items():
        why = shortage_message(resource)
        # A node without two of the ports counts once.
        reasons[why] = max(reasons[why], count)
    # Each node has room for this pod, and not for all that must start with it.
    reasons = reasons or Counter({_NOT_TOGETHER: nodes})
    listed = ", ".join(sorted(f"{count} {why}" for why, count in reasons.items()))
    return f"0/{nodes} nodes are available: {listed}."


def shortage_message(resource: str) -> str:
    """Return, in Kubernetes' wording, that a node has too little of a resource."""
    if resource.startswith(ATTACHMENT_PREFIX):
        return "node(s) exceed max volume count"
    if resource.startswith(HOST_PORT_PREFIX):
        return "node(s) didn't have free ports for the requested pod ports"
    return "Too many pods" if resource == PODS else f"Insufficient {resource}"


def domain_required(rule: NetworkTopologyRule | None) -> str:
    """Return the part of a message about the domain that must hold all pods; empty: none must."""
    if rule is None or not rule.hard:
        return ""
    return LABEL_REQUIRED.format(rule.label) if rule.label else NETWORK_DOMAIN_REQUIRED


def gang_message(attempt: PlacementAttempt) -> str:
    """Return the message of a pending gang: causes with numbers, and what would help."""
    return clip_message(
        " ".join([_gang_text(attempt), attempt.kubernetes_message, *_cause_texts(attempt)])
    )


def pod_message(attempt: PlacementAttempt) -> str:
    """Return the message of one of its pods: Kubernetes' wording first."""
    gang = [_gang_text(attempt)] if attempt.pending > 1 or attempt.running else []
    return clip_message(" ".join([attempt.kubernetes_message, *gang, *_cause_texts(attempt)]))


def extra_pod_message(message: str) -> str:
    return clip_message(f"{message} The gang has its minimum and runs without this pod.")


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """The limit of a queue, for the resources that are short."""

    queue: str
    used: Mapping[str, int]
    reserved: Mapping[str, int]
    """The part of it that is reserved for an earlier gang."""
    limit: Mapping[str, int]
    requested: Mapping[str, int]
    leaves_guarantees: bool = False
    """True if not its own limit blocks, but what other queues are guaranteed."""


def queue_limit_message(limit: QueueLimit, users: ResourceHolders | None = None) -> str:
    figures = "; ".join(
        f"{_amount(name, limit.used[name])} of {_amount(name, most)} {name} in use, "
        f"{_amount(name, limit.requested[name])} requested"
        for name, most in limit.limit.items()
    )
    if any(limit.requested[name] > most for name, most in limit.limit.items()):
        advice = (
            "other queues are guaranteed the rest; lower their guarantees"
            if limit.leaves_guarantees
            else "raise its limit"
        )
        return clip_message(f"Queue {limit.queue!r} can never run it ({figures}): {advice}.")
    earlier = " An earlier gang waits for the same limit." if any(limit.reserved.values()) else ""
    used = in_use_message(users) if users is not None else ""
    cause, change = (
        ("uses all that the guarantees of other queues leave", "these guarantees are lowered")
        if limit.leaves_guarantees
        else ("is at its limit", "its limit is raised")
    )
    return clip_message(
        f"Queue {limit.queue!r} {cause} ({figures}).{earlier} It waits until jobs of the queue "
        f"end, or {change}. {used}".rstrip()
    )


def fifo_message(queue: str, first: str) -> str:
    return f"Queue {queue!r} is first in, first out: {first} comes first."


def _gang_text(attempt: PlacementAttempt) -> str:
    if attempt.pending == 1 and not attempt.running:
        return "The pod finds no node."
    running = f" ({attempt.running} run already)" if attempt.running else ""
    return (
        f"{attempt.fitted} of the gang's {attempt.pending} waiting pods would find a node, "
        f"{attempt.missing} must start together{running}."
    )


def _cause_texts(attempt: PlacementAttempt) -> list[str]:
    capacity = attempt.capacity
    if not capacity.eligible_nodes:
        is_placed_by_rules = any(rule in attempt.kubernetes_message for rule in _POD_RULES)
        advice = ": check its node selector, affinity and tolerations" if is_placed_by_rules else ""
        return [f"No node accepts it{advice}."]
    nodes = _nodes(capacity.eligible_nodes)
    amounts = f"Requested: {amounts_text(capacity.requested)}; free on {nodes} that accept it: "
    amounts += f"{amounts_text(capacity.free)}."
    if attempt.claims:
        return [attempt.claims]
    if not attempt.is_feasible:
        return [amounts, _infeasible_message(attempt)]
    if attempt.reserved_for:
        return [
            amounts,
            f"The resources are reserved for {attempt.reserved_for}, which comes first.",
        ]
    used = [in_use_message(attempt.holders)] if attempt.holders is not None else []
    return [amounts, _what_helps(attempt), *(text for text in used if text)]


def volumes_message(
    refusals: Mapping[str, int], claims: Sequence[str], holders: Sequence[str]
) -> str:
    """Return what would help a pod that cannot have its volumes.

    Args:
        refusals: number of nodes by message.
        claims: those of its claims that compete with others.
        holders: running pods that use its ReadWriteOncePod claims.
    """
    if holders:
        return f"One pod at a time may use its claim: it waits until {_listed(holders)} has ended."
    if CLAIM_IN_USE in refusals:
        return "One pod at a time may use its claim: a pod of its gang, or one before it, does."
    if VOLUME_AFFINITY_CONFLICT in refusals:
        return f"All pods that share {_listed(claims)} must fit on nodes that reach its volume."
    return "The free volumes do not suffice for its claims and for those before: add volumes."


def devices_message(claims: Sequence[str]) -> str:
    """Return what would help a pod that cannot have the devices of these claims."""
    return (
        f"No node has free devices for {_listed(claims)} that meet all of its requests, selectors "
        "and constraints: they are in use, tainted, or do not exist."
    )


def in_use_message(holders: ResourceHolders) -> str:
    """Return the users of a resource; empty: none."""
    resource = holders.resource
    parts = [f"{name} {_amount(resource, amount)}" for name, amount in holders.gangs]
    if holders.single_pods:
        parts.append(f"pods without a gang {_amount(resource, holders.single_pods)}")
    if holders.others:
        parts.append(f"others {_amount(resource, holders.others)}")
    return f"Usage of {resource}: {', '.join(parts)}." if parts else ""


def reservation_message(plan: ReservationSummary, free_at: float = 0.0) -> str:
    """Return the nodes that are reserved for a gang, and which gangs run there now.

    Args:
        free_at: latest time at which they are free, in seconds since the epoch; 0: unknown.
    """
    held = f"; running there now: {_listed(plan.gangs)}" if plan.gangs else ""
    free = f"; free by {_time(datetime.fromtimestamp(free_at, UTC))}" if free_at else ""
    return f"Nodes are reserved for it: {_listed(plan.nodes)}{held}{free}."


@lru_cache(maxsize=16_384)
def position_message(queue: str, before: int, since: datetime, ahead: tuple[str, ...] = ()) -> str:
    """Return a gang's position in its queue, the first gangs before it, and since when it waits.

    Large numbers are rounded: they change all the time, and each change would be written.
    """
    place = f"{_rounded(before)} before it in" if before else "First in"
    more = " and more" if before > len(ahead) else ""
    names = f" ({', '.join(ahead)}{more})" if ahead else ""
    return f"{place} queue {queue!r}{names}, waiting since {_time(since)}."


@lru_cache(maxsize=16_384)
def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _rounded(count: int) -> str:
    step: int = 10 ** (len(str(count)) - 1)
    return str(count) if count < _EXACT else f"about {round(count / step) * step}"


def _listed(names: Sequence[str]) -> str:
    shown, more = ", ".join(names[:_SHOWN_NAMES]), len(names) - _SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _nodes(count: int) -> str:
    return "the 1 node" if count == 1 else f"the {count} nodes"


def _what_helps(attempt: PlacementAttempt) -> str:
    capacity = attempt.capacity
    lacking = {
        name: asked - capacity.free[name]
        for name, asked in capacity.requested.items()
        if asked > capacity.free[name]
    }
    if lacking:
        return f"It needs at least {amounts_text(lacking)} more, freed or added."
    if ports := _taken_ports(attempt):
        return f"It needs nodes that have these ports free: {ports}."
    requested = dict(attempt.unplaced_pod.shape.request)
    largest = {
        name: capacity.max_node_free[name] for name in requested if name in capacity.max_node_free
    }
    limits = _other_limits(attempt)
    if limits and attempt.fits_amounts:
        return f"Nodes with that much free are excluded by {limits}."
    pods = max(1, attempt.missing - attempt.fitted)
    needed = " with that much free" if attempt.is_uniform else ""
    if limits or attempt.unplaced_pod.shape.constraints.inter_pod is not None:
        needed += f" that accepts {'it' if pods == 1 else 'them'}"
    most = ""
    if any(amount < requested[name] for name, amount in largest.items()):
        most = f", the most that one node has free is {amounts_text(largest)}"
    return (
        f"There is enough in total, but not {_place(attempt)}: "
        f"a pod requests {amounts_text(requested)}{most}. It starts when {pods} more "
        f"of its pods {'finds' if pods == 1 else 'find'} a node{needed}."
    )


def _place(attempt: PlacementAttempt) -> str:
    return "within one domain" if attempt.in_domain else "on single nodes"


def _other_limits(attempt: PlacementAttempt) -> str:
    """Return what excludes nodes for the pod, apart from amounts; empty: nothing."""
    limits = [text for rule, text in _INTER_POD_RULES.items() if rule in attempt.kubernetes_message]
    if PODS in attempt.shortages:
        limits.append("their number of pods")
    if any(name.startswith(ATTACHMENT_PREFIX) for name in attempt.shortages):
        limits.append("their number of attached volumes")
    return " and ".join(limits)


def _taken_ports(attempt: PlacementAttempt) -> str:
    """Return the host ports that are in use on some eligible node."""
    taken = sorted(name for name in attempt.shortages if name.startswith(HOST_PORT_PREFIX))
    return ", ".join(name.removeprefix(HOST_PORT_PREFIX) for name in taken)


def _infeasible_message(attempt: PlacementAttempt) -> str:
    advice = (
        f"It would not fit even if all running gangs had ended ({_obstacle(attempt)}): add nodes, "
        "or request less."
    )
    kept = attempt.holders
    if kept is None or not kept.lasting_pods:
        return advice
    names = ", ".join(f"{name} {_amount(kept.resource, used)}" for name, used in kept.lasting_pods)
    return (
        f"{advice} Pods without a gang or a Job may never end, and it may not evict them; "
        f"{kept.resource} of the largest: {names}."
    )


def _obstacle(attempt: PlacementAttempt) -> str:
    """Return why a gang would not fit even if all running gangs had ended."""
    capacity, kept = attempt.capacity, attempt.holders
    lacking = [
        f"{_amount(name, asked)} {name} requested, {_amount(name, capacity.total[name])} in total"
        for name, asked in capacity.requested.items()
        if asked > capacity.total[name]
    ]
    if lacking:
        return "; ".join(lacking)
    if kept is not None and kept.single_pods and kept.resource in capacity.requested:
        asked, total = capacity.requested[kept.resource], capacity.total[kept.resource]
        if asked > total - kept.single_pods:
            return (
                f"{_amount(kept.resource, asked)} {kept.resource} requested, "
                f"{_amount(kept.resource, total)} in total, of which pods that may never end use "
                f"{_amount(kept.resource, kept.single_pods)}"
            )
    if ports := _taken_ports(attempt):
        return f"ports {ports}"
    if attempt.fits_amounts and (limits := _other_limits(attempt)):
        return f"nodes are excluded by {limits}"
    return f"there is enough in total, but not {_place(attempt)}"


def is_amount(resource: str) -> bool:
    """Return whether messages show amounts of a resource: not for pod slots, ports and volumes."""
    return resource != PODS and not resource.startswith(INTERNAL_RESOURCE_PREFIXES)


def amounts_text(amounts: Mapping[str, int]) -> str:
    """Format amounts: ``cpu 2, memory 4Gi, nvidia.com/gpu 8``."""
    names = [name for name in amounts if is_amount(name) and amounts[name]]
    names.sort(key=lambda name: (name not in _SHOWN_FIRST, name))
    return ", ".join(f"{name} {_amount(name, amounts[name])}" for name in names) or "nothing"


def _amount(resource: str, amount: int) -> str:
    if resource == "cpu":
        return plain_number(amount / 1000)
    if resource in _BYTES or resource.startswith("hugepages-"):
        for suffix, size in _BINARY_UNITS:
            if abs(amount) >= size:
                return f"{plain_number(round(amount / size, 1))}{suffix}"
    return str(amount)


def clip_message(message: str, last: str = "") -> str:
    """Cut a message to the limit of conditions and events; ``last`` is appended uncut."""
    most = MAX_MESSAGE - (len(last) + 1 if last else 0)
    cut = message if len(message) <= most else message[: most - 1] + "…"
    return f"{cut} {last}" if last else cut


def total_request(pods: Iterable[PodInfo]) -> Counter[str]:
    total: Counter[str] = Counter()
    for pod in pods:
        total.update(dict(pod.shape.request))
    return total
