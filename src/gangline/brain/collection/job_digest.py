"""Digestion of jobs: a stored job of any kind becomes a ``Job`` of the history. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from gangline.api.brain.job_advice import (
    BRAIN_ANNOTATION,
    LEARNING_RATE_ANNOTATION,
    LEARNING_RATE_RULES,
    MAX_GLOBAL_BATCH_ANNOTATION,
    MAY_ANNOTATION,
    MAYS,
    OWNER_ANNOTATION,
)
from gangline.api.jobs.elastic import MANUAL_MODES, PARAMETER_SERVER, WORKER, ElasticJob
from gangline.api.jobs.elastic_fields import job_node_range
from gangline.api.jobs.kind import JobKind, JobObject, ReplicaSpecLike
from gangline.api.jobs.kubeflow import JobStatus, PyTorchJob
from gangline.api.jobs.paddle import PaddleJob
from gangline.api.meta.conditions import find_condition, is_condition_true
from gangline.api.names import name_stem
from gangline.api.resource_list import CPU, MEMORY
from gangline.brain.collection.role_sizes import main_container, planned_sizes, role_sizes
from gangline.brain.facts.records import Image, Job, Mode, Outcome, Wishes

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

    job: Job
    problems: tuple[str, ...] = ()


def digest_job(kind: JobKind, job: JobObject, settings: DigestSettings) -> DigestedJob:
    """Return the record of a job."""
    meta, specs = job.metadata, kind.replica_specs(job)
    roles = {role.lower(): spec for role, spec in specs.items()}
    leading = _leading_role(roles)
    container = main_container(roles[leading].template) if leading else {}
    wishes, problems = read_wishes(meta.annotations, job)
    status = kind.status(job)
    outcome, finished, cause = _outcome(status)
    low, high, asked = _worker_range(job, meta.annotations, container, roles)
    command = [container.get("command") or [], container.get("args") or []]
    return DigestedJob(
        Job(
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
            command_digest=settings.digest(*_without_name(command, meta.name)),
            spec_digest=settings.digest(kind.identity, *_comparable(roles, ranged=low != high)),
            submitted_ms=to_ms(meta.creation_timestamp) or 0,
            started_ms=to_ms(status.start_time),
            finished_ms=finished,
            outcome=outcome,
            cause=cause,
            workers_min=low,
            workers_max=high,
            workers_asked=asked,
            wishes=wishes,
            roles=tuple(role_sizes(roles, to_ms(meta.creation_timestamp) or 0)),
            planned=tuple(planned_sizes(job)) if isinstance(job, ElasticJob) else (),
            restarts=status.restarts.total,
        ),
        problems,
    )


def to_ms(time: datetime | None) -> int | None:
    """Return a time in milliseconds since 1970."""
    return None if time is None else round(time.timestamp() * 1000)


def parse_image(written: str) -> Image:
    """Split an image into repository, tag and digest."""
    found = _DIGEST.search(written)
    digest = found[1] if found else ""
    rest = written[: found.start()] if found else written
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
    """Withdraw the fields of roles with ``autoScale: false``."""
    if isinstance(job, ElasticJob):
        specs = job.spec.replica_specs
        fixed = {role for role, spec in specs.items() if spec.auto_scale is False}
        withdrawn = {"worker": {"workers", "memory", "cpu"}, "ps": {"ps"}}
        for role in fixed:
            base = frozenset(MAYS) if allowed is None else allowed
            allowed = base - withdrawn.get(role, set())
    return allowed


def _leading_role(roles: Mapping[str, ReplicaSpecLike]) -> str:
    return next((role for role in WORKER_ROLES if role in roles), next(iter(roles), ""))


def _without_name(command: list[list[Any]], name: str) -> list[list[str]]:
    """Replace the job's own name: scripts get it as directory of their output."""
    return [[str(word).replace(name, "") for word in words] for words in command]


def _comparable(roles: Mapping[str, ReplicaSpecLike], *, ranged: bool) -> Iterator[list[Any]]:
    """Yield what identifies a specification: without what advice changes, and without metadata.

    Advice changes amounts of CPU and memory, and the number of workers of a job that trains with
    any number of a range.
    """
    for role, spec in sorted(roles.items()):
        pod = dict((spec.template or {}).get("spec") or {})
        pod["containers"] = [
            {**each, "resources": _devices(each.get("resources"))}
            for each in pod.get("containers") or ()
            if isinstance(each, dict)
        ]
        is_advised = ranged and role.lower() == WORKER
        yield [role, None if is_advised else spec.replicas, pod]


def _devices(resources: Any) -> dict[str, Any]:
    limits = (resources or {}).get("limits") if isinstance(resources, dict) else None
    return {name: str(n) for name, n in (limits or {}).items() if name not in (CPU, MEMORY)}


def _strategy(job: JobObject, roles: Mapping[str, ReplicaSpecLike]) -> str:
    if isinstance(job, ElasticJob):
        written = job.spec.distribution_strategy or PARAMETER_SERVER
        if written == PARAMETER_SERVER:
            return "ps"
        return "allreduce" if written == "AllreduceStrategy" else "other"
    return "ps" if "ps" in roles else "allreduce"


def _queue(job: JobObject) -> str:
    policy = JobKind.scheduling_policy(job)
    return (policy.queue if policy else "") or "default"


def _outcome(status: JobStatus) -> tuple[Outcome, int | None, str]:
    conditions = status.conditions
    for type_, outcome in (("Succeeded", Outcome.SUCCEEDED), ("Failed", Outcome.FAILED)):
        if is_condition_true(conditions, type_):
            found = find_condition(conditions, type_)
            ended = to_ms(status.completion_time) or to_ms(
                found.last_transition_time if found else None
            )
            cause = found.reason if found and outcome is Outcome.FAILED else ""
            return outcome, ended, cause
    return Outcome.RUNNING, None, ""


def _worker_range(
    job: object,
    annotations: Mapping[str, str],
    container: Mapping[str, Any],
    roles: Mapping[str, ReplicaSpecLike],
) -> tuple[int | None, int | None, int | None]:
    """Return the fewest, most and requested workers."""
    asked = sum(
        1 if spec.replicas is None else spec.replicas
        for role, spec in roles.items()
        if role in WORKER_ROLES
    )
    if not asked:
        return None, None, None
    low = high = asked
    if isinstance(job, ElasticJob):
        found = job_node_range(annotations, container)
        low, high = (found.min_nodes, found.max_nodes) if found else (asked, asked)
    elif isinstance(job, PyTorchJob) and (policy := job.spec.elastic_policy):
        low = policy.min_replicas or policy.max_replicas or asked
        high = policy.max_replicas or max(low, asked)
    elif isinstance(job, PaddleJob) and job.spec.elastic is not None and job.spec.worker:
        low, high = job.spec.worker.requests or asked, job.spec.worker.limits or asked
    return min(low, high), max(low, high), asked
