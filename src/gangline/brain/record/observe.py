"""What the observed state of a job adds to its record. Pure.

1. Times come from the objects themselves wherever these have them, so that a second process, or a
   list after an outage, finds the same entries.
2. A restart is identified by its number in the status of the job. Its cause and blame are those of
   the replica that failed first since the restart before.
3. Why a job waits is the reason that lists show; each new one is an explanation with its time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.failure import blame_of_cause
from gangline.api.jobs.kubeflow import CommonStatus
from gangline.api.meta.conditions import find_condition
from gangline.api.verdict import Finding, root_finding
from gangline.brain.facts.job_record import (
    MAX_REPLICAS,
    Curves,
    JobRecord,
    Moment,
    ReplicaRecord,
    TimelineEntry,
    with_entries,
    with_explanation,
)
from gangline.sdk.goodput import Goodput, goodput_data
from gangline.sdk.jobs import Job, JobState, Replica
from gangline.sdk.progress import progress_data

_WAITING = frozenset({JobState.PENDING, JobState.QUEUING, JobState.RESTARTING, JobState.SUSPENDED})
_SECOND_MS = 1_000


@dataclass(frozen=True, slots=True)
class JobAtTime:
    """A job at one time."""

    job: Job
    status: CommonStatus
    pods: Sequence[Pod]
    failures: Sequence[Finding] = ()
    """Of all replicas so far, also of pods that are deleted."""
    goodput: Goodput | None = None
    global_batch: int | None = None
    """Records of a step, as its master reports them."""
    at_ms: int = 0
    is_deleted: bool = False


def observe(record: JobRecord, seen: JobAtTime) -> JobRecord:
    """Return the record with what the observation adds."""
    job = seen.job
    updated = with_entries(record, _entries(record, seen))
    if job.state in _WAITING and not seen.is_deleted:
        updated = with_explanation(updated, seen.at_ms, job.reason)
    replicas = [_replica_record(replica) for replica in job.replicas]
    if job.state.finished or seen.is_deleted:
        # Pods are deleted when their job has ended: what was observed of them stays.
        present = {replica.name for replica in replicas}
        replicas += [replica for replica in record.replicas if replica.name not in present]
    return msgspec.structs.replace(
        updated,
        state=str(job.state),
        reason=job.reason,
        desired=job.desired,
        world=seen.goodput.nodes if seen.goodput else record.world,
        replicas=tuple(replicas[:MAX_REPLICAS]) or record.replicas,
        goodput=goodput_data(seen.goodput) if seen.goodput else record.goodput,
        progress=progress_data(job.progress) if job.progress else record.progress,
        curves=_with_training(record.curves, seen),
    )


def _entries(record: JobRecord, seen: JobAtTime) -> Iterator[TimelineEntry]:
    job = seen.job
    yield TimelineEntry(what=Moment.SUBMITTED, at_ms=to_ms(job.created))
    yield from _placement(record, seen)
    conditions = seen.status.conditions
    running = find_condition(conditions, "Running")
    if running and running.status == "True" and running.last_transition_time:
        yield TimelineEntry(what=Moment.STARTED, at_ms=to_ms(running.last_transition_time))
    yield from _restarts(record, seen)
    if record.desired and record.desired != job.desired:
        text = f"{record.desired} to {job.desired} replicas"
        yield TimelineEntry(what=Moment.RESIZED, at_ms=seen.at_ms, number=job.desired, text=text)
    if seen.goodput and record.world and seen.goodput.nodes not in {0, record.world}:
        text = f"{record.world} to {seen.goodput.nodes} nodes train"
        nodes = seen.goodput.nodes
        yield TimelineEntry(what=Moment.RESIZED, at_ms=seen.at_ms, number=nodes, text=text)
    suspended = find_condition(conditions, "Suspended")
    if suspended and suspended.last_transition_time:
        at_ms = to_ms(suspended.last_transition_time)
        what = Moment.SUSPENDED if suspended.status == "True" else Moment.RESUMED
        yield TimelineEntry(what=what, at_ms=at_ms, text=suspended.message)
    if job.state.finished:
        what = Moment.SUCCEEDED if job.state is JobState.SUCCEEDED else Moment.FAILED
        at_ms = to_ms(job.finished) if job.finished else seen.at_ms
        entry = TimelineEntry(what=what, at_ms=at_ms, text=job.reason)
        root = root_finding(seen.failures) if job.state is JobState.FAILED else None
        yield _with_cause(entry, root) if root else entry
    if seen.is_deleted:
        yield TimelineEntry(what=Moment.DELETED, at_ms=seen.at_ms)


def _placement(record: JobRecord, seen: JobAtTime) -> Iterator[TimelineEntry]:
    """Yield when the gang began to wait for nodes, and when all of it had them."""
    scheduled = [find_condition(pod.status.conditions, "PodScheduled") for pod in seen.pods]
    waiting = [
        to_ms(condition.last_transition_time)
        for condition in scheduled
        if condition and condition.status == "False" and condition.last_transition_time
    ]
    last = max((entry.at_ms for entry in record.timeline if entry.what == Moment.QUEUED), default=0)
    placed = max(
        (entry.at_ms for entry in record.timeline if entry.what == Moment.PLACED), default=0
    )
    is_waiting = seen.job.state is JobState.QUEUING or waiting
    if is_waiting and (not last or placed > last):
        yield TimelineEntry(what=Moment.QUEUED, at_ms=min(waiting, default=seen.at_ms))
    times = [
        to_ms(condition.last_transition_time)
        for condition, pod in zip(scheduled, seen.pods, strict=True)
        if condition
        and condition.status == "True"
        and condition.last_transition_time
        and pod.spec.node_name
    ]
    complete = times and len(times) == len(seen.pods) >= max(1, seen.job.desired)
    # A time is exact to a second; a restart in place has no new one.
    if complete and max(times) > placed:
        nodes = len({pod.spec.node_name for pod in seen.pods})
        text = f"{_count(len(times), 'pod')} on {_count(nodes, 'node')}"
        yield TimelineEntry(what=Moment.PLACED, at_ms=max(times), text=text)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _restarts(record: JobRecord, seen: JobAtTime) -> Iterator[TimelineEntry]:
    job = seen.job
    before = [entry for entry in record.timeline if entry.what == Moment.RESTARTED]
    last = max((entry.at_ms for entry in before), default=0)
    if job.restarts > max((entry.number for entry in before), default=0):
        root = root_finding(
            finding for finding in seen.failures if finding.at is None or to_ms(finding.at) >= last
        )
        condition = find_condition(seen.status.conditions, "Restarting")
        changed = (
            condition.last_transition_time if condition and condition.status == "True" else None
        )
        at = (root.at if root else None) or changed
        entry = TimelineEntry(
            what=Moment.RESTARTED,
            at_ms=max(to_ms(at), last) if at else seen.at_ms,
            number=job.restarts,
            text=job.last_restart or (root.meaning if root else ""),
        )
        yield _with_cause(entry, root) if root else entry
    restart = seen.goodput.last_restart if seen.goodput else None
    if restart is not None:
        blame = blame_of_cause(restart.cause)
        took = f" after {restart.seconds:.1f} s" if restart.seconds else ""
        yield TimelineEntry(
            what=Moment.WORKERS_RESTARTED,
            at_ms=seen.at_ms,
            number=restart.number,
            text=f"training continues{took}",
            cause=restart.cause,
            blame=str(blame or ""),
            replica=restart.replica,
            exit_code=restart.exit_code,
            step=restart.step,
        )


def _with_cause(entry: TimelineEntry, root: Finding) -> TimelineEntry:
    return msgspec.structs.replace(
        entry,
        cause=root.cause,
        blame=str(root.blame),
        replica=root.replica,
        node=root.node,
        exit_code=root.exit_code,
    )


def _replica_record(replica: Replica) -> ReplicaRecord:
    names = ReplicaRecord.__struct_fields__
    return ReplicaRecord(**{name: getattr(replica, name) for name in names})


def _with_training(curves: dict[str, Curves], seen: JobAtTime) -> dict[str, Curves]:
    """Add what the training has reported: step, loss, speed, and every number of the script."""
    values: dict[str, float] = {}
    progress, goodput = seen.job.progress, seen.goodput
    for name, text in progress.metrics.items() if progress else ():
        if (number := _number(text)) is not None:
            values[name] = number
    if goodput is not None:
        reported = {
            "step": goodput.step,
            "loss": goodput.loss,
            "steps/s": goodput.steps_per_s or None,
            "samples/s": goodput.steps_per_s * (seen.global_batch or 0) or None,
        }
        values |= goodput.metrics
        values |= {name: float(value) for name, value in reported.items() if value is not None}
    table = curves.get("training", Curves())
    last = {name: column[-1] for name, column in table.values.items() if column}
    if all(last.get(name) == value for name, value in values.items()):
        return curves
    return {**curves, "training": table.with_point(seen.at_ms, values)}


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 1e30 else None  # NaN and infinity are no points of a curve


def to_ms(time: datetime) -> int:
    """Return a time in milliseconds since 1970."""
    return round(time.timestamp() * _SECOND_MS)
