"""Jobs and events as tables, blocks and plain data: Arena's columns and keys, then ours."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gangline.cli.render.output import format_age, format_table
from gangline.sdk.progress import progress_data

if TYPE_CHECKING:
    from gangline.sdk.events import EventRecord
    from gangline.sdk.jobs import Job, Replica


_TIME = "%Y-%m-%d %H:%M:%S"


def job_table(jobs: "Sequence[Job]", now: datetime, *, namespaces: bool, wide: bool) -> str:
    """Return the list of jobs; ``wide`` adds the reason why a job is pending or failed."""
    head = ["NAME", "STATUS", "TRAINER", "DURATION", "GPU(Requested)", "GPU(Allocated)", "NODE"]
    head += ["RUNNING", "AGE"]
    reports = any(job.progress for job in jobs)
    if reports:
        head.append("PROGRESS")
    if wide:
        head += ["QUEUE", "PRIORITY", "REASON"]
    rows = []
    for job in jobs:
        row: list[object] = [
            job.name,
            job.state,
            job.kind.trainer.upper(),
            format_duration(job, now),
        ]
        allocated: object = "" if job.state.finished else job.allocated_gpus
        row += [job.requested_gpus, allocated, job.chief.node if job.chief else ""]
        row += [f"{job.running}/{job.desired}", format_age(job.created, now)]
        if reports:
            row.append(job.progress.summary if job.progress else "")
        if wide:
            row += [job.queue or "default", job.priority, job.reason]
        rows.append([job.namespace, *row] if namespaces else row)
    return format_table(["NAMESPACE", *head] if namespaces else head, rows)


def format_job(job: "Job", now: datetime, more: Sequence[tuple[str, str]] = ()) -> str:
    """Return one job: a block of facts with ``more`` at its end, then its replicas."""
    ended = job.finished.astimezone().strftime(_TIME) if job.finished else ""
    facts = [
        ("Name", job.name),
        ("Status", job.state),
        ("Namespace", job.namespace),
        ("Priority", job.priority or "N/A"),
        ("Trainer", job.kind.trainer.upper()),
        ("Duration", format_duration(job, now)),
        ("CreateTime", job.created.astimezone().strftime(_TIME)),
        ("EndTime", ended),
    ]
    if job.queue:
        facts.append(("Queue", job.queue))
    if job.reason:
        facts.append(("Reason", job.reason))
    if job.restarts:
        because = f", the last one because {job.last_restart}" if job.last_restart else ""
        facts.append(("Restarts", f"{job.restarts}{because}"))
    facts += [(name, value) for name, value in more if value]
    lines = [f"{name + ':':12}{value}".rstrip() for name, value in facts]
    return "\n".join([*lines, "", "Instances:", _replica_table(job.replicas, now)])


def _replica_table(replicas: "Sequence[Replica]", now: datetime) -> str:
    head = ["NAME", "STATUS", "AGE", "IS_CHIEF", "GPU(Requested)", "NODE", "RESTARTS", "EXIT"]
    rows: list[Sequence[object]] = [["-" * len(word) for word in head]]
    rows += [
        [
            replica.name,
            replica.status,
            format_age(replica.created, now),
            "true" if replica.chief else "false",
            replica.gpus,
            replica.node,
            replica.restarts,
            "-" if replica.exit_code is None else replica.exit_code,
        ]
        for replica in replicas
    ]
    return format_table(head, rows, indent="  ")


def format_duration(job: "Job", now: datetime) -> str:
    """Return how long a job has run; ``0s`` for a pending job."""
    return "0s" if job.started is None else format_age(job.started, job.finished or now)


def job_data(job: "Job", now: datetime) -> dict[str, Any]:
    return {
        "uuid": job.uid,
        "name": job.name,
        "namespace": job.namespace,
        "duration": format_duration(job, now),
        "status": str(job.state),
        "trainer": job.kind.trainer,
        "chiefName": job.chief.name if job.chief else "",
        "instances": [_replica_data(replica, now) for replica in job.replicas],
        "priority": job.priority or "N/A",
        "requestGPUs": job.requested_gpus,
        "allocatedGPUs": job.allocated_gpus,
        "creationTimestamp": int(job.created.timestamp()),
        "reason": job.reason,
        "queue": job.queue or "default",
        "running": job.running,
        "wanted": job.desired,
        **({"progress": progress_data(job.progress)} if job.progress else {}),
    }


def _replica_data(replica: "Replica", now: datetime) -> dict[str, Any]:
    created = replica.created or now
    return {
        "ip": replica.ip,
        "status": replica.status,
        "name": replica.name,
        "age": format_age(created, now),
        "node": replica.node,
        "nodeIP": replica.node_ip,
        "chief": replica.chief,
        "requestGPUs": replica.gpus,
        "creationTimestamp": int(created.timestamp()),
        "role": replica.role,
        "index": replica.index,
        "restarts": replica.restarts,
        "exitCode": replica.exit_code,
        "message": replica.message,
    }


def current_time() -> datetime:
    return datetime.now(UTC)


def event_table(
    events: "Sequence[EventRecord]", now: datetime, indent: str = "", *, wide: bool = False
) -> str:
    """Return events under Arena's header, the oldest first; ``wide`` adds namespace and count."""
    head = ["SOURCE", "TYPE", "AGE", "MESSAGE", *(["NAMESPACE", "COUNT"] if wide else [])]
    rows = []
    for event in events:
        row: list[object] = [event.subject, event.type, format_age(event.last, now)]
        row += [f"[{event.reason}] {event.message}"]
        rows.append([*row, *([event.namespace, event.count] if wide else [])])
    return format_table(head, rows, indent)


def event_data(event: "EventRecord") -> dict[str, Any]:
    return {
        "time": event.last.isoformat(),
        "type": event.type,
        "source": event.subject,
        "reason": event.reason,
        "message": event.message,
        "count": event.count,
        "namespace": event.namespace,
    }
