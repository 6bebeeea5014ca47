"""Digestion of jobs and their pods: stored objects of any kind become records of the history. Pure.

A job becomes a ``RecordedJob`` with what its pods get by the specification and by plans; a pod
becomes the runs of its main container.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from msgspec.structs import replace

from gangline.api.brain.job_advice import (
    BRAIN_ANNOTATION,
    LEARNING_RATE_ANNOTATION,
    LEARNING_RATE_RULES,
    MAX_GLOBAL_BATCH_ANNOTATION,
    MAY_ANNOTATION,
    MAYS,
    OWNER_ANNOTATION,
)
from gangline.api.core.container import ResourceRequirements
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import ContainerStateTerminated, ContainerStatus
from gangline.api.failure import DEVICE_OUT_OF_MEMORY, failure_of_exit, failure_of_pod
from gangline.api.job_names import INDEX_LABEL, ROLE_LABEL
from gangline.api.job_resources import MAIN_CONTAINERS
from gangline.api.jobs.elastic import (
    MANUAL_MODES,
    PARAMETER_SERVER,
    WORKER,
    ElasticJob,
    job_node_range,
    node_unit,
)
from gangline.api.jobs.kind import JobKind, JobObject, ReplicaSpecLike
from gangline.api.jobs.kubeflow import JobStatus, PyTorchJob
from gangline.api.jobs.paddle import PaddleJob
from gangline.api.meta.conditions import find_condition
from gangline.api.names import name_stem
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import CPU, GPU, MEMORY, parse_resource
from gangline.api.symptoms import find_symptom
from gangline.brain.facts.records import (
    Image,
    Mode,
    Outcome,
    PlannedSize,
    PodRun,
    RecordedJob,
    RoleSize,
    Wishes,
)

MODEL_LABELS = ("nvidia.com/gpu.product", "gangline.dev/gpu-model")
"""Labels of GPU feature discovery, then of nodes that are labelled by hand."""


def main_container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container of a template that trains; empty if there is none."""
    containers = [
        container
        for container in (template.get("spec") or {}).get("containers") or ()
        if isinstance(container, dict)
    ]
    named = (container for container in containers if container.get("name") in MAIN_CONTAINERS)
    return next(named, containers[0] if containers else {})


def role_sizes(roles: Mapping[str, ReplicaSpecLike], since_ms: int) -> Iterator[RoleSize]:
    """Yield what the specification requests for each role that trains or serves."""
    for role, spec in roles.items():
        if role in ("dlrover-master", "launcher"):
            continue
        container = main_container(spec.template)
        selector = ((spec.template or {}).get("spec") or {}).get("nodeSelector") or {}
        model = next((str(selector[key]) for key in MODEL_LABELS if key in selector), "")
        yield RoleSize(
            role=role,
            since_ms=since_ms,
            replicas=1 if spec.replicas is None else spec.replicas,
            cpu_millis=_amount(container, CPU),
            memory_bytes=_amount(container, MEMORY),
            gpus=_amount(container, GPU) or 0,
            gpu_model=model,
        )


def planned_sizes(job: ElasticJob) -> Iterator[PlannedSize]:
    """Yield what plans have set, first of roles: memory that grew after a kill is not planned."""
    for role, record in sorted(job.status.roles.items()):
        ranks = [(int(rank), node.resources) for rank, node in record.nodes.items()]
        for rank, resources in [(None, record.resources), *ranks]:
            cpu, memory = (parsed_amount(name, resources.get(name)) for name in (CPU, MEMORY))
            if cpu is not None or memory is not None:
                yield PlannedSize(role=role, rank=rank, cpu_millis=cpu, memory_bytes=memory)


def _amount(container: Mapping[str, Any], resource: str) -> int | None:
    """Return what a container requests: its request, else its limit; None if it has neither."""
    resources = container.get("resources") or {}
    written = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return parsed_amount(resource, written.get(resource))


def parsed_amount(resource: str, written: str | int | float | None) -> int | None:
    """Return an amount in the smallest unit; None if there is none or it is no amount."""
    try:
        return None if written is None else parse_resource(resource, written)
    except QuantityError:
        return None


WORKER_ROLES = ("worker", "master", "chief")
"""Roles that train, in the order in which they stand for the job."""
_DIGEST = re.compile(r"@([a-z0-9]+:[0-9a-f]{16,128})$")


@dataclass(frozen=True, slots=True)
class DigestSettings:
    """What digestion needs beside the job."""

    cluster: str
    """Identity of the cluster: the uid of its namespace kube-system."""
    digest: Callable[..., str]
    """Keyed digest of JSON values: equal ones match within one cluster only."""


class DigestedJob(NamedTuple):
    """The record, and the mistakes in the annotations, as sentences for the user."""

    job: RecordedJob
    problems: tuple[str, ...] = ()


def digest_job(kind: JobKind, job: JobObject, settings: DigestSettings) -> DigestedJob:
    meta, specs = job.metadata, kind.replica_specs(job)
    roles = {role.lower(): spec for role, spec in specs.items()}
    leading = next((role for role in WORKER_ROLES if role in roles), next(iter(roles), ""))
    container = main_container(roles[leading].template) if leading else {}
    wishes, problems = read_wishes(meta.annotations, job)
    status = kind.status(job)
    outcome, finished, cause = _outcome(status)
    low, high, asked = _worker_range(job, meta.annotations, container, roles)
    # Scripts get the job's own name as directory of their output.
    command = [
        [str(word).replace(meta.name, "") for word in container.get(part) or ()]
        for part in ("command", "args")
    ]
    return DigestedJob(
        RecordedJob(
            cluster=settings.cluster,
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            stem=name_stem(meta.name),
            kind=kind.identity,
            strategy=_strategy(job, roles),
            owner=meta.annotations.get(OWNER_ANNOTATION, ""),
            queue=_queue(job),
            image=parse_image(str(container.get("image") or "")),
            command_digest=settings.digest(*command),
            spec_digest=settings.digest(kind.identity, *_comparable(roles, ranged=low != high)),
            submitted_ms=to_ms(meta.creation_timestamp) or 0,
            started_ms=to_ms(status.start_time),
            finished_ms=finished,
            outcome=outcome,
            cause=cause,
            workers_min=low,
            workers_max=high,
            workers_asked=asked,
            unit=node_unit(container) if isinstance(job, ElasticJob) else 1,
            wishes=wishes,
            roles=tuple(role_sizes(roles, to_ms(meta.creation_timestamp) or 0)),
            planned=tuple(planned_sizes(job)) if isinstance(job, ElasticJob) else (),
            restarts=status.restarts.total,
        ),
        problems,
    )


def to_ms(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


def parse_image(written: str) -> Image:
    match = _DIGEST.search(written)
    digest = match[1] if match else ""
    rest = written[: match.start()] if match else written
    head, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:  # a port of the registry, not a tag
        head, tag = rest, ""
    return Image(repository=head, tag=tag, digest=digest)


def read_wishes(annotations: Mapping[str, str], job: JobObject) -> tuple[Wishes, tuple[str, ...]]:
    """Read what a job allows, and the mistakes in it. A mistake never allows more."""
    problems: list[str] = []
    mode = _wished_mode(annotations, job, problems)
    batch = annotations.get(MAX_GLOBAL_BATCH_ANNOTATION, "")
    if batch and not (batch.isascii() and batch.isdecimal() and 0 < int(batch) < 2**40):
        problems.append(f"{MAX_GLOBAL_BATCH_ANNOTATION}: {batch!r} is not a number of records")
        batch = ""
    rule = annotations.get(LEARNING_RATE_ANNOTATION, "")
    if rule and rule not in LEARNING_RATE_RULES:
        expected = ", ".join(LEARNING_RATE_RULES)
        problems.append(f"{LEARNING_RATE_ANNOTATION}: {rule!r} is none of {expected}")
        rule = ""
    named = _named(annotations, problems)
    wishes = Wishes(
        mode=mode,
        may=_without_fixed_roles(named, job),
        named=named or frozenset(),
        max_global_batch=int(batch) if batch else None,
        learning_rate_rule="" if rule == "none" else rule,
    )
    return wishes, tuple(problems)


def _wished_mode(annotations: Mapping[str, str], job: JobObject, problems: list[str]) -> Mode:
    written = annotations.get(BRAIN_ANNOTATION)
    if written is not None:
        try:
            return Mode(written.strip().lower())
        except ValueError:
            problems.append(f"{BRAIN_ANNOTATION}: {written!r} is none of off, advise, apply")
            return Mode.ADVISE
    if not isinstance(job, ElasticJob):
        return Mode.ADVISE
    optimize = job.spec.optimize_mode or ""
    if optimize in MANUAL_MODES:
        return Mode.OFF
    return Mode.APPLY if optimize == "cluster" else Mode.ADVISE


def _named(annotations: Mapping[str, str], problems: list[str]) -> frozenset[str] | None:
    written = annotations.get(MAY_ANNOTATION)
    if written is None:
        return None
    words = {word.strip() for word in written.split(",") if word.strip()}
    if unknown := sorted(words - set(MAYS)):
        problems.append(f"{MAY_ANNOTATION}: {', '.join(unknown)} is none of {', '.join(MAYS)}")
    return frozenset(words & set(MAYS))


def _without_fixed_roles(allowed: frozenset[str] | None, job: JobObject) -> frozenset[str] | None:
    withdrawn = {"worker": {"workers", "memory", "cpu"}, "ps": {"ps"}}
    for role, spec in job.spec.replica_specs.items() if isinstance(job, ElasticJob) else ():
        if spec.auto_scale is False:
            base = frozenset(MAYS) if allowed is None else allowed
            allowed = base - withdrawn.get(role, set())
    return allowed


def _comparable(roles: Mapping[str, ReplicaSpecLike], *, ranged: bool) -> Iterator[list[Any]]:
    """Yield what identifies a specification: without what advice changes, and without metadata.

    Advice changes amounts of CPU and memory, and the number of workers of a job that trains with
    any number of a range.
    """
    for role, spec in sorted(roles.items()):
        pod = dict((spec.template or {}).get("spec") or {})
        pod["containers"] = [
            {**container, "resources": _devices(container.get("resources"))}
            for container in pod.get("containers") or ()
            if isinstance(container, dict)
        ]
        is_advised = ranged and role.lower() == WORKER
        yield [role, None if is_advised else spec.replicas, pod]


def _devices(resources: Any) -> dict[str, Any]:
    limits = (resources or {}).get("limits") if isinstance(resources, dict) else None
    return {name: str(n) for name, n in (limits or {}).items() if name not in (CPU, MEMORY)}


def _strategy(job: JobObject, roles: Mapping[str, ReplicaSpecLike]) -> str:
    if isinstance(job, ElasticJob):
        known = {PARAMETER_SERVER: "ps", "AllreduceStrategy": "allreduce"}
        return known.get(job.spec.distribution_strategy or PARAMETER_SERVER, "other")
    return "ps" if "ps" in roles else "allreduce"


def _queue(job: JobObject) -> str:
    policy = JobKind.scheduling_policy(job)
    return (policy.queue if policy else "") or "default"


def _outcome(status: JobStatus) -> tuple[Outcome, int | None, str]:
    for type_, outcome in (("Succeeded", Outcome.SUCCEEDED), ("Failed", Outcome.FAILED)):
        condition = find_condition(status.conditions, type_)
        if condition is not None and condition.status == "True":
            ended = to_ms(status.completion_time or condition.last_transition_time)
            return outcome, ended, condition.reason if outcome is Outcome.FAILED else ""
    return Outcome.RUNNING, None, ""


def _worker_range(
    job: object,
    annotations: Mapping[str, str],
    container: Mapping[str, Any],
    roles: Mapping[str, ReplicaSpecLike],
) -> tuple[int | None, int | None, int | None]:
    specs = (spec for role, spec in roles.items() if role in WORKER_ROLES)
    asked = sum(1 if spec.replicas is None else spec.replicas for spec in specs)
    if not asked:
        return None, None, None
    low = high = asked
    if isinstance(job, ElasticJob):
        if node_range := job_node_range(annotations, container, asked):
            low, high = node_range.min_nodes, node_range.max_nodes
    elif isinstance(job, PyTorchJob) and (policy := job.spec.elastic_policy):
        low = policy.min_replicas or policy.max_replicas or asked
        high = policy.max_replicas or max(low, asked)
    elif isinstance(job, PaddleJob) and job.spec.elastic is not None and job.spec.worker:
        low, high = job.spec.worker.requests or asked, job.spec.worker.limits or asked
    return min(low, high), max(low, high), asked


RANK_LABEL = "elasticjob.dlrover/rank-index"
"""On pods of ElasticJobs, whose replica index is the number of the pod."""
DELETED = "Deleted"
"""Cause of a run whose pod was deleted while it ran."""
_OOM_CAUSE = "OutOfMemory"
"""Of a container that the kernel killed. The memory of a device is not that of the container."""
_PROGRAM_FAILURES = frozenset(("Error", "Aborted"))


class ContainerRun(PodRun, frozen=True, kw_only=True):
    """One run of the main container of one pod. ``(role, rank, started_ms)`` identifies it."""

    pod: str
    number: int = 0

    @property
    def key(self) -> tuple[str, int, int]:
        return self.role, self.rank, self.started_ms


def digest_pod(pod: Pod) -> list[ContainerRun]:
    """Return the runs that the status of a pod shows: at most the current and the last one."""
    place, status = _role_and_rank(pod), _main_status(pod)
    if place is None or status is None:
        return []
    runs = []
    for state, is_current in ((status.last_state, False), (status.state, True)):
        end = state.terminated
        started = end or state.running
        if started is None or started.started_at is None:
            continue
        cause, oom = _cause(pod, status, end, is_current=is_current) if end else ("", False)
        runs.append(
            ContainerRun(
                pod=pod.metadata.name,
                role=place[0],
                rank=place[1],
                node=pod.spec.node_name,
                started_ms=to_ms(started.started_at) or 0,
                ended_ms=to_ms(end.finished_at) if end else None,
                cause=cause,
                oom=oom,
                limit_memory_bytes=parsed_amount(MEMORY, _resources(pod).limits.get(MEMORY)),
            )
        )
    return runs


def end_of_deleted(run: ContainerRun, at_ms: int) -> ContainerRun:
    """Return the run of a pod that was deleted: it ended then, unless it had ended before."""
    ended = replace(run, ended_ms=max(at_ms, run.started_ms), cause=DELETED)
    return run if run.ended_ms is not None else ended


def merge_runs(first: ContainerRun, second: ContainerRun) -> ContainerRun:
    """Join two observations of one run; their order has no effect."""
    ended = [run for run in (first, second) if run.ended_ms is not None]
    # A status with a cause knows more than a deletion that was observed without one.
    ended.sort(key=lambda run: (run.cause != DELETED, run.ended_ms or 0, run.cause, run.oom))
    better = ended[-1] if ended else max(first, second, key=lambda run: run.node)
    limits = [x for x in (first.limit_memory_bytes, second.limit_memory_bytes) if x is not None]
    return replace(
        better,
        node=max(first.node, second.node),
        pod=max(first.pod, second.pod),
        oom=first.oom or second.oom,
        limit_memory_bytes=max(limits, default=None),
    )


def _role_and_rank(pod: Pod) -> tuple[str, int] | None:
    labels = pod.metadata.labels
    role = labels.get(ROLE_LABEL, "").lower()
    rank = labels.get(RANK_LABEL) or labels.get(INDEX_LABEL, "")
    if not role or not (rank.isascii() and rank.isdecimal() and len(rank) < 10):
        return None
    return role, int(rank)


def _main_status(pod: Pod) -> ContainerStatus | None:
    statuses = pod.status.container_statuses
    named = (status for status in statuses if status.name in MAIN_CONTAINERS)
    return next(named, statuses[0] if statuses else None)


def _cause(
    pod: Pod, status: ContainerStatus, end: ContainerStateTerminated, *, is_current: bool
) -> tuple[str, bool]:
    code = end.exit_code or (128 + end.signal if end.signal else 0)
    failure = failure_of_exit(code, end.reason, end.message)
    if is_current and pod.status.phase == "Failed":
        failure = failure_of_pod(pod, status.name) or failure
    cause = failure.cause if failure else ""
    # Exit codes do not distinguish it, termination messages do.
    symptom = find_symptom(end.message) if cause in _PROGRAM_FAILURES else None
    if symptom is not None and symptom[0].cause == "GpuOutOfMemory":
        return DEVICE_OUT_OF_MEMORY, False
    return cause, cause == _OOM_CAUSE or end.reason == "OOMKilled"


def pod_limits(pod: Pod) -> tuple[int | None, int | None]:
    """Return the limits of the main container: millicores and bytes; None without one.

    A request counts where there is no limit: it is what the pod is sure to have.
    """
    resources = _resources(pod)
    written = {**resources.requests, **resources.limits}
    return parsed_amount(CPU, written.get(CPU)), parsed_amount(MEMORY, written.get(MEMORY))


def _resources(pod: Pod) -> ResourceRequirements:
    """Return the resources of the main container."""
    status = _main_status(pod)
    name = status.name if status is not None else ""
    written = (one.resources for one in pod.spec.containers if one.name == name)
    return next(written, ResourceRequirements())
