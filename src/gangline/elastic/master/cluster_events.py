"""The job's timeline as Kubernetes events about the ElasticJob, for ``kubectl describe``."""

from collections.abc import Mapping
from typing import Final

from gangline.api.elastic import GROUP, VERSION
from gangline.api.reference import ObjectReference
from gangline.elastic.protocol.messages import JobEvent
from gangline.kube.events import EventRecorder

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
_WARNINGS = frozenset(
    {"NodeLost", "WorkersFailed", "RendezvousFailed", "JournalFailed", "CheckpointNotSaved"}
)
_UNREPORTED = frozenset({"WorldBroken"})
"""Reasons that only accompany another event, which is published."""


def job_reference(environment: Mapping[str, str], namespace: str) -> ObjectReference | None:
    """Return the ElasticJob of this master, from the operator's variables; None without them.

    Args:
        environment: the master's environment variables.
        namespace: the job's namespace.
    """
    name, uid = environment.get("ELASTIC_JOB_NAME"), environment.get("JOB_UID")
    if not name or not uid:
        return None
    api_version = f"{GROUP}/{VERSION}"
    return ObjectReference(
        kind="ElasticJob", api_version=api_version, namespace=namespace, name=name, uid=uid
    )


def record_job_event(recorder: EventRecorder, job: ObjectReference, event: JobEvent) -> None:
    """Publish the event, unless its reason only accompanies another one."""
    if event.reason in _UNREPORTED:
        return
    where = "" if event.node_id is None else f"node {event.node_id}: "
    type_ = WARNING if event.reason in _WARNINGS else NORMAL
    recorder.event(job, type_, event.reason, f"{where}{event.message}".rstrip(": "))
