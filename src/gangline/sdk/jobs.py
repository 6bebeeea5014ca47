"""The model of a job for users: state, replicas, and why it is pending or failed.

It is computed from stored objects: the conditions of the job, its pods, its pod group.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from gangline.api.job_names import (
    AWAITS_FORMER_PODS,
    INDEX_LABEL,
    JOB_NAME_LABEL,
    MANAGED_BY_MULTI_KUEUE,
    RELAUNCH_COUNT_LABEL,
    ROLE_LABEL,
    RUNS_AGAIN,
    index_text,
    is_interrupted,
    replica_name,
    unserved_message,
)
from gangline.api.meta.conditions import find_condition, is_condition_true
from gangline.api.meta.objects import Condition
from gangline.api.resource_list import GPU, pod_request_for
from gangline.sdk.kinds import JobKind, JobObject, ListedPodGroup, ListedTemplate, ReplicaSpecLike
from gangline.sdk.lean_pods import ListedCondition, ListedPod
from gangline.sdk.progress import Progress, read_progress

if TYPE_CHECKING:
    from gangline.api.core.pod import Pod
    from gangline.api.core.pod_status import ContainerStatus
    from gangline.api.jobs.kubeflow import JobStatus
    from gangline.api.verdict import Finding
    from gangline.api.volcano.scheduling import PodGroup
    from gangline.sdk.lean_pods import ListedContainerStatus

__all__ = [
    "INDEX_LABEL",
    "JOB_NAME_LABEL",
    "ROLE_LABEL",
    "AnyPod",
    "Job",
    "JobState",
    "Replica",
    "build_job",
    "format_run_time",
    "pod_status_text",
    "read_replica",
    "replica_name",
]

# Texts: a list of jobs imports none of the complete types.
AnyPod: TypeAlias = "Pod | ListedPod"
"""A complete pod, or one with the fields that lists read."""
_AnyContainerStatus: TypeAlias = "ContainerStatus | ListedContainerStatus"
_AnyPodGroup: TypeAlias = "PodGroup | ListedPodGroup"


class JobState(StrEnum):
    """State of a job, with the names that job lists show."""

    PENDING = "PENDING"
    QUEUING = "QUEUING"
    """The gang waits for resources."""
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def finished(self) -> bool:
        """True if the job has ended."""
        return self in {JobState.SUCCEEDED, JobState.FAILED}


@dataclass(frozen=True, slots=True)
class Replica:
    """One pod of a job."""

    name: str
    role: str
    index: int
    status: str
    """Status text as in kubectl: Running, ContainerCreating, Error, ..."""
    chief: bool
    node: str = ""
    ip: str = ""
    node_ip: str = ""
    restarts: int = 0
    """Restarts of its containers, and earlier pods of its rank in an ElasticJob."""
    exit_code: int | None = None
    gpus: int = 0
    created: datetime | None = None
    message: str = ""
    """Why the pod is not running, if a component has reported it."""

    @property
    def short_name(self) -> str:
        """Role and index, such as ``worker-3``."""
        return f"{self.role}-{self.index}" if self.role else self.name


@dataclass(frozen=True, slots=True, repr=False)
class Job:
    """A job with its replicas."""

    kind: JobKind
    name: str
    namespace: str
    uid: str
    state: JobState
    reason: str
    """Why the job is pending or failed; empty if there is no such reason."""
    replicas: tuple[Replica, ...]
    desired: int
    """Number of pods that the job requests."""
    requested_gpus: int
    created: datetime
    started: datetime | None = None
    finished: datetime | None = None
    priority: str = ""
    queue: str = ""
    roles: tuple[tuple[str, int], ...] = ()
    """Roles with their number of replicas, the leading role first."""
    observed: bool = False
    """True if an operator has set conditions on the job."""
    managed_elsewhere: bool = False
    """True if MultiKueue runs the job in another cluster, and writes its status."""
    recorded_restarts: int = 0
    """Restarts in the job's status, which also counts those of pods that no longer exist."""
    progress: Progress | None = None
    """What its training has reported last; None if it does not report."""
    last_restart: str = ""
    """Why the job restarts, or was restarted last; empty if it was not, or has ended."""

    @property
    def ranks(self) -> tuple[str, ...]:
        """Requested replicas in order of rank, such as ``master-0``, ``worker-0``."""
        return tuple(f"{role}-{index}" for role, count in self.roles for index in range(count))

    @property
    def awaits_former_pods(self) -> bool:
        """True if the job is resumed, and starts when its pods from before have ended."""
        return self.state is JobState.SUSPENDED and AWAITS_FORMER_PODS in self.reason

    @property
    def running(self) -> int:
        """Number of requested replicas that run, without the master of an elastic job."""
        roles = {role for role, _ in self.roles}
        replicas = [one for one in self.replicas if one.role in roles] if roles else self.replicas
        return [replica.status for replica in replicas].count("Running")

    @property
    def restarts(self) -> int:
        """Number of restarts, over all replicas: in place, and by another pod."""
        return max(self.recorded_restarts, sum(replica.restarts for replica in self.replicas))

    @property
    def qualified_name(self) -> str:
        """Kind and name, as other tools write them: ``pytorchjob/digits``."""
        return f"{self.kind.trainer}/{self.name}"

    @property
    def allocated_gpus(self) -> int:
        """GPUs of replicas that are bound to a node, while the job has not ended."""
        if self.state.finished:
            return 0
        return sum([replica.gpus for replica in self.replicas if replica.node])

    @property
    def chief(self) -> Replica | None:
        """The leading replica: the master, or else the first worker."""
        return next((replica for replica in self.replicas if replica.chief), None)

    def __repr__(self) -> str:
        running = "" if self.state.finished else f"{self.running}/{self.desired} running"
        facts = [self.state, running, format_run_time(self)]
        reason = f"; {self.reason}" if self.reason else ""
        return f"<job {self.name}: {', '.join(filter(None, facts))}{reason}>"

    def _repr_html_(self) -> str:
        from gangline import display

        facts = [f"{self.running} of {self.desired} replicas run", format_run_time(self)]
        if self.progress:
            facts.append(self.progress.summary)
        if self.requested_gpus:
            facts.append(f"{self.allocated_gpus} of {self.requested_gpus} GPUs")
        if self.queue:
            facts.append(f"queue {self.queue}")
        title = display.heading(self.qualified_name, self.state, facts)
        shown = display.lines([title, display.note(self.reason) if self.reason else ""])
        head = ("Replica", "Status", "Node", "GPUs", "Restarts", "Exit", "Message")
        rows = [
            (
                replica.short_name,
                replica.status,
                replica.node,
                replica.gpus,
                replica.restarts,
                "" if replica.exit_code is None else replica.exit_code,
                replica.message,
            )
            for replica in self.replicas
        ]
        return shown + (display.table(head, rows) if rows else "")


def format_run_time(job: Job) -> str:
    """Return how long a job has run, as ``H:MM:SS``; an empty text before it starts."""
    if job.started is None:
        return ""
    until = job.finished or datetime.now(UTC)
    seconds = max(0, int((until - job.started).total_seconds()))
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def build_job(
    kind: JobKind, job: JobObject, pods: Sequence[AnyPod], groups: Sequence[_AnyPodGroup]
) -> Job:
    """Build a job from its stored objects."""
    job = _with_spec_in_force(kind, job)
    specs = kind.replica_specs(job)
    leader = next(iter(specs), "").lower()
    findings = [_finding(pod) for pod in pods]
    replicas = sorted(
        (_build_replica(pod, leader, finding) for pod, finding in zip(pods, findings, strict=True)),
        key=lambda replica: (replica.role != leader, replica.role, replica.index),
    )
    status = kind.status(job)
    state = _state(status, pods, groups)
    policy = kind.scheduling_policy(job)
    return Job(
        kind=kind,
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        uid=job.metadata.uid,
        state=state,
        reason=_reason(status, state, findings, groups, replicas),
        replicas=tuple(replicas),
        desired=sum(_count(spec) for spec in specs.values()),
        requested_gpus=sum(_count(spec) * _gpus(spec) for spec in specs.values()),
        created=job.metadata.creation_timestamp or datetime.now(UTC),
        started=status.start_time,
        finished=status.completion_time or _end_time(status.conditions),
        priority=policy.priority_class if policy else "",
        queue=policy.queue if policy else "",
        observed=bool(status.conditions),
        roles=tuple((role.lower(), _count(spec)) for role, spec in specs.items()),
        managed_elsewhere=job.spec.run_policy.managed_by == MANAGED_BY_MULTI_KUEUE,
        recorded_restarts=status.restarts.total,
        progress=read_progress(status.trainer_status, has_ended=state.finished),
        last_restart=_last_restart(status.conditions),
    )


def _with_spec_in_force(kind: JobKind, job: JobObject) -> JobObject:
    """Return an invalid job with the specification by which it runs."""
    status = kind.status(job)
    if status.last_valid_spec is None or not is_condition_true(status.conditions, "InvalidSpec"):
        return job
    from gangline.api.jobs.spec_record import unpack_spec

    text = unpack_spec(status.last_valid_spec.spec)
    stored: Any = job
    if text is None:
        return job
    replaced: JobObject = msgspec.structs.replace(
        stored, spec=msgspec.json.decode(text, type=type(job.spec))
    )
    return replaced


def read_replica(pod: AnyPod, leader: str) -> Replica:
    """Convert one pod of a job; ``leader`` is the role whose first replica leads."""
    return _build_replica(pod, leader, _finding(pod))


def _build_replica(pod: AnyPod, leader: str, finding: "Finding | None") -> Replica:
    labels, statuses = pod.metadata.labels, pod.status.container_statuses
    role, index = labels.get(ROLE_LABEL, ""), int(index_text(pod.metadata) or 0)
    ended = [status.state.terminated for status in statuses if status.state.terminated]
    # No generators below: a list of jobs converts thousands of pods, most with one container.
    return Replica(
        name=pod.metadata.name,
        role=role,
        index=index,
        status=pod_status_text(pod),
        chief=role == leader and index == 0,
        node=pod.spec.node_name,
        ip=pod.status.pod_ip,
        node_ip=pod.status.host_ip,
        restarts=int(labels.get(RELAUNCH_COUNT_LABEL) or 0)
        + sum([s.restart_count for s in (*pod.status.init_container_statuses, *statuses)]),
        exit_code=finding.exit_code if finding else 0 if ended else None,
        gpus=pod_request_for(pod.spec, GPU),
        created=pod.metadata.creation_timestamp,
        message=_pod_problem(pod, finding),
    )


def pod_status_text(pod: AnyPod) -> str:
    """Return the status text of a pod, as ``kubectl get pods`` prints it."""
    word = pod.status.reason or pod.status.phase or "Pending"
    for status in pod.status.init_container_statuses:
        if status.state.terminated and status.state.terminated.exit_code == 0:
            continue
        if status.started and status.state.running:
            continue  # a sidecar container keeps running
        return f"Init:{_container_status_text(status) or 'Running'}"
    statuses: Sequence[_AnyContainerStatus] = pod.status.container_statuses
    for status in reversed(statuses):
        word = _container_status_text(status) or word
    if pod.metadata.deletion_timestamp is not None:
        return "Terminating"
    return word


def _container_status_text(status: _AnyContainerStatus) -> str:
    if status.state.waiting is not None:
        return status.state.waiting.reason
    if ended := status.state.terminated:
        by_signal = f"Signal:{ended.signal}" if ended.signal else f"ExitCode:{ended.exit_code}"
        return ended.reason or by_signal
    return ""


_STATES_BY_CONDITION = (
    ("Failed", JobState.FAILED),
    ("Succeeded", JobState.SUCCEEDED),
    ("Suspended", JobState.SUSPENDED),
    ("Restarting", JobState.RESTARTING),
    ("Running", JobState.RUNNING),
)


def _state(status: "JobStatus", pods: Sequence[AnyPod], groups: Sequence[_AnyPodGroup]) -> JobState:
    conditions = status.conditions
    for type_, state in _STATES_BY_CONDITION if conditions else ():
        if is_condition_true(conditions, type_):
            return state
    # Of a gang without a group of Volcano the pods alone say that it is pending.
    waits = any(map(_unschedulable_message, groups)) or any(map(_is_unschedulable, pods))
    has_node = any(pod.spec.node_name for pod in pods)
    return JobState.QUEUING if waits and not has_node else JobState.PENDING


def _reason(
    status: "JobStatus",
    state: JobState,
    findings: "Sequence[Finding | None]",
    groups: Sequence[_AnyPodGroup],
    replicas: Sequence[Replica],
) -> str:
    """Return the message that best explains why a job does not run."""
    conditions = status.conditions
    if state is JobState.SUCCEEDED:
        return ""
    for type_ in ("Failed", "InvalidSpec", "Stalled", "Suspended"):
        condition = find_condition(conditions, type_)
        if condition is not None and condition.status == "True":
            return condition.message or condition.reason
    for condition in conditions:
        if is_interrupted(condition):
            return condition.message
    waiting = [_unschedulable_message(group) for group in groups if _unschedulable_message(group)]
    restarting = find_condition(conditions, "Restarting")
    if waiting and restarting is not None and state is JobState.RESTARTING:
        return f"{restarting.message} Pending: {waiting[0]}"
    failures = [finding for finding in findings if finding]
    failed = [_root_message(failures)] if failures else []
    troubles = [
        f"{replica.short_name}: {replica.message}" for replica in replicas if replica.message
    ]
    return next(iter([*waiting, *failed, *troubles]), "")


def _last_restart(conditions: Iterable[Condition]) -> str:
    for condition in conditions:
        if condition.status == "True" and condition.type == "Restarting":
            return condition.message.partition(" because ")[2] or condition.message
        if condition.status == "True" and condition.type == "Running":
            return condition.message.partition(RUNS_AGAIN)[2]
    return ""


def _root_message(findings: "Sequence[Finding]") -> str:
    from gangline.api.verdict import root_finding

    root = root_finding(findings)
    return f"{root.replica}: {root}" if root else ""


def _unschedulable_message(group: _AnyPodGroup) -> str:
    for condition in group.status.conditions:
        if condition.type == "Unschedulable" and condition.status == "True":
            return condition.message or condition.reason
    return ""


def _is_unschedulable(pod: AnyPod) -> bool:
    conditions: Sequence[Condition | ListedCondition] = pod.status.conditions
    scheduled = find_condition(conditions, "PodScheduled")
    return scheduled is not None and scheduled.reason == "Unschedulable"


def _pod_problem(pod: AnyPod, finding: "Finding | None") -> str:
    """Return why a pod does not run: from the scheduler, the kubelet, or a container."""
    conditions: Sequence[Condition | ListedCondition] = pod.status.conditions
    scheduled = find_condition(conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return scheduled.message or scheduled.reason
    unserved = unserved_message(pod.spec.scheduler_name, pod.spec.node_name, conditions)
    if unserved and pod.status.phase in ("", "Pending"):
        return unserved
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason not in {"ContainerCreating", "PodInitializing"}:
            return " ".join(part for part in (waiting.reason, waiting.message) if part)
    return str(finding or "") or pod.status.message


def _finding(pod: AnyPod) -> "Finding | None":
    """Return the verdict about a failed pod; None if it has not failed.

    A pod of a list has only some of the fields, and is decoded completely only if it has failed.
    """
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    if pod.status.phase != "Failed" and not any(map(_has_failed, statuses)):
        return None
    from gangline.api.core.pod import Pod
    from gangline.api.verdict import finding_of_pod

    complete = pod if isinstance(pod, Pod) else msgspec.convert(msgspec.to_builtins(pod), Pod)
    return finding_of_pod(complete)


def _has_failed(status: _AnyContainerStatus) -> bool:
    """True if a container has ended badly and does not run again."""
    end = status.state.terminated or (status.state.waiting and status.last_state.terminated)
    return bool(end and (end.exit_code or end.signal or end.reason == "OOMKilled"))


def _end_time(conditions: Iterable[Condition]) -> datetime | None:
    for condition in conditions:
        if condition.type in {"Failed", "Succeeded"} and condition.status == "True":
            return condition.last_transition_time
    return None


def _count(spec: ReplicaSpecLike) -> int:
    return 1 if spec.replicas is None else spec.replicas


def _gpus(spec: ReplicaSpecLike) -> int:
    """Return the GPUs of one replica, from the template in the job."""
    template: object = spec.template
    if not isinstance(template, ListedTemplate):
        template = msgspec.convert(template, ListedTemplate)
    total = 0
    for container in (template.spec and template.spec.containers) or ():
        if resources := container.resources:
            asked = {**(resources.limits or {}), **(resources.requests or {})}
            amount = str(asked.get(GPU, 0))
            total += int(amount) if amount.isdecimal() else 0
    return total
