"""The job's timeline as events of the cluster, about the ElasticJob: for ``kubectl describe``."""

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
_UNTOLD = frozenset({"WorldBroken"})
"""What only says that something else has happened, which is told."""


def job_of(environment: Mapping[str, str], namespace: str) -> ObjectReference | None:
    """Return the ElasticJob whose master this is, by what the operator told it; None: nobody did.

    Args:
        environment: the master's.
        namespace: the job's.
    """
    name, uid = environment.get("ELASTIC_JOB_NAME"), environment.get("JOB_UID")
    if not name or not uid:
        return None
    api_version = f"{GROUP}/{VERSION}"
    return ObjectReference(
        kind="ElasticJob", api_version=api_version, namespace=namespace, name=name, uid=uid
    )


def show(recorder: EventRecorder, job: ObjectReference, event: JobEvent) -> None:
    """Tell people, unless the event says nothing by itself."""
    if event.reason in _UNTOLD:
        return
    where = "" if event.node_id is None else f"node {event.node_id}: "
    type_ = WARNING if event.reason in _WARNINGS else NORMAL
    recorder.event(job, type_, event.reason, f"{where}{event.message}".rstrip(": "))
