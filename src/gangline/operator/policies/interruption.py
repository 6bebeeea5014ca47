"""Interruptions: pods of a running job that were deleted or cannot run, and why.

The cluster deletes pods for a preemption, a drain or a lost node, and writes the reason into a
condition of the pod. The pod disappears soon after, so the reason is kept in
the message of the job's condition ``Running`` until all replicas run again.

Pods end one after the other. A cause that names fewer pods than the one that was reported, for
reasons that were reported, is part of it (``is_part_of``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gangline.api.failure import PREEMPTION_BY_SCHEDULER, find_disruption
from gangline.api.job_names import INTERRUPTED, PREEMPTED
from gangline.operator.model import labels
from gangline.operator.model.replicas import ObservedPod, PodPhase, ReplicaGang
from gangline.operator.policies import gang_restart

NOT_RUNNING = "they do not run."
_VERBS: Mapping[str, str] = {
    PREEMPTION_BY_SCHEDULER: "preempted",
    "EvictionByEvictionAPI": "evicted through the eviction API, as by a drain",
    "DeletionByTaintManager": "deleted for a taint of the node",
    "DeletionByPodGC": "deleted because the node does not exist any more",
    "TerminationByKubelet": "ended by the kubelet",
}
"""What happened to a pod, by the reason of this condition."""
_MAX_LISTED_PODS = 5
"""Number of pods that a message names."""
_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of waiting containers that are no problem."""


@dataclass(frozen=True, slots=True)
class MissingPods:
    """The pods that a job lacks."""

    count: int
    cause: str = ""
    """Which pods were deleted, and why; empty if no deletion is observed."""
    reason: str = INTERRUPTED
    pending: str = ""
    """Why their successors do not run yet; empty if no component has reported it."""


def describe_lost_pods(pods: list[ObservedPod]) -> str:
    """Return which pods were deleted, and why."""
    by_cause: dict[str, list[str]] = {}
    for pod in sorted(pods, key=lambda pod: pod.name):
        by_cause.setdefault(_cause(pod), []).append(pod.name)
    parts = [f"{_list_names(names)} {cause}" for cause, names in by_cause.items()]
    noun = "pod was" if len(pods) == 1 else "pods were"
    return f"{len(pods)} {noun} lost: {'; '.join(parts)}."


def is_preemption(pods: list[ObservedPod]) -> bool:
    return any(
        disruption.reason == PREEMPTION_BY_SCHEDULER
        for pod in pods
        if (disruption := find_disruption(pod.status.conditions))
    )


def lost_pods(
    gang: ReplicaGang, disrupted: Iterable[ObservedPod], counted: Mapping[str, int]
) -> list[ObservedPod]:
    """List the pods that other components delete or deleted, one for each replica.

    ``counted`` are those that have failed and are replaced by the operator.
    """
    lost = {pod.name: pod for pod in disrupted if _is_replaced(pod, gang)}
    lost |= {pod.name: pod for pod in gang_restart.externally_deleted(gang)}
    return [pod for pod in lost.values() if pod.uid not in counted]


def missing_pods(gang: ReplicaGang, lost: list[ObservedPod], unschedulable: str) -> MissingPods:
    """Describe the missing pods, given the lost ones and why the scheduler places no others."""
    slots = gang.roles.values()
    count = sum(role.desired - role.active - role.succeeded for role in slots)
    return MissingPods(
        count=count,
        cause=describe_lost_pods(lost) if lost else "",
        reason=PREEMPTED if is_preemption(lost) else INTERRUPTED,
        pending=pending_reason(gang, unschedulable),
    )


def pending_reason(gang: ReplicaGang, unschedulable: str) -> str:
    """Return why pods do not run: what the kubelet reports, or else the scheduler."""
    for pod in gang.pods:
        if pod.status.phase != PodPhase.PENDING or pod.is_terminating:
            continue
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            waiting = status.state.waiting
            if waiting and waiting.reason not in _STARTING:
                return ": ".join(filter(None, (pod.name, waiting.reason, waiting.message)))
    return unschedulable


def is_part_of(cause: str, earlier: str) -> bool:
    """Return whether a cause only repeats an earlier one, for as many pods or fewer."""
    total, parts = _parse(cause)
    known_total, known_parts = _parse(earlier)
    return total <= known_total and parts <= known_parts


def _parse(cause: str) -> tuple[int, set[str]]:
    """Return the number of pods in a cause, and what happened to them."""
    number, _, rest = cause.partition(" ")
    parts = rest.rstrip(".").partition(": ")[2].split("; ")
    events = {part.partition(" was ")[2] or part.partition(" were ")[2] for part in parts}
    return int(number) if number.isdecimal() else 0, events


def _is_replaced(pod: ObservedPod, gang: ReplicaGang) -> bool:
    """Return whether the replica of a deleted pod is still desired and has not succeeded."""
    role, index = labels.parse_replica_labels(pod.metadata) or ("", 0)
    return any(
        name.lower() == role and index < len(slots.pods) and index not in slots.completed
        for name, slots in gang.roles.items()
    )


def _cause(pod: ObservedPod) -> str:
    disruption = find_disruption(pod.status.conditions)
    if disruption is None:
        return "deleted"
    verb = _VERBS.get(disruption.reason, "deleted")
    message = disruption.message.rstrip(".").removeprefix("Evicted: ")
    if disruption.reason != PREEMPTION_BY_SCHEDULER or not message:
        return verb
    return message if message.startswith(verb) else f"{verb}: {message}"


def _list_names(names: list[str]) -> str:
    listed = ", ".join(names[:_MAX_LISTED_PODS])
    more = len(names) - _MAX_LISTED_PODS
    rest = f" and {more} more" if more > 0 else ""
    return f"{listed}{rest} {'was' if len(names) == 1 else 'were'}"
