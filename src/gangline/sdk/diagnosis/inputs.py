"""Reads the input of a diagnosis: status, pods, events, and the ends of logs."""

import asyncio
from collections.abc import Sequence

from gangline.api.core.pod import Pod
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, Forbidden
from gangline.sdk.client import JobClient
from gangline.sdk.diagnosis.diagnosis import Diagnosis, diagnose
from gangline.sdk.events import EventRecord, job_events
from gangline.sdk.jobs import JOB_NAME_LABEL, Job, JobState
from gangline.sdk.logs import deleted_pods

TAIL_LINES = 200
MAX_LOGS = 64
"""Limit of replicas whose logs are read: the logs of a large gang repeat each other."""


async def diagnose_job(jobs: JobClient, name: str, namespace: str) -> Diagnosis:
    """Diagnose a job.

    Raises:
        NoSuchJob, AmbiguousJob: no job, or several jobs have this name.
    """
    client = jobs.client
    job = await jobs.get(name, namespace)
    listing = await client.list(PODS, namespace, labels=f"{JOB_NAME_LABEL}={name}")
    owners = {pod.metadata.name: pod.metadata.controller for pod in listing.items}
    pods = [pod for pod in listing.items if (o := owners[pod.metadata.name]) and o.uid == job.uid]
    events = await _events(client, namespace, name)
    deleted = await _deleted_pods(client, job, pods) if job.state is JobState.FAILED else []
    pods += deleted
    deleted_uids = {pod.metadata.uid for pod in deleted}
    failed = [pod for pod in pods if _has_failed_container(pod)][:MAX_LOGS]
    tails = await asyncio.gather(
        *(_tail(client, pod, job.uid if pod.metadata.uid in deleted_uids else "") for pod in failed)
    )
    logs = dict(zip((pod.metadata.name for pod in failed), tails, strict=True))
    return diagnose(job, pods, events, logs)


async def _deleted_pods(client: ApiClient, job: Job, present: Sequence[Pod]) -> list[Pod]:
    """Return the last deleted pod of each name whose log the cluster has stored."""
    names = {pod.metadata.name for pod in present}
    last = {pod.metadata.name: pod for pod in await deleted_pods(client, job) or ()}
    return [pod for name, pod in last.items() if name not in names]


async def _events(client: ApiClient, namespace: str, name: str) -> Sequence[EventRecord]:
    try:
        return await job_events(client, namespace, name)
    except Forbidden:
        return []


def _has_failed_container(pod: Pod) -> bool:
    """True if a container of the pod has failed, now or before."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    ends = [
        end
        for status in statuses
        for end in (status.state.terminated, status.last_state.terminated)
        if end is not None
    ]
    return any(end.exit_code or end.signal for end in ends)


async def _tail(client: ApiClient, pod: Pod, kept_for: str) -> str:
    """Return the end of the log of the failed container; ``kept_for`` as in ``Client.logs``."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        now, before = status.state.terminated, status.last_state.terminated
        if now is not None and now.exit_code:
            return await _lines(client, pod, status.name, kept_for, previous=False)
        if before is not None and before.exit_code:
            return await _lines(client, pod, status.name, kept_for, previous=True)
    return ""


async def _lines(
    client: ApiClient, pod: Pod, container: str, kept_for: str, *, previous: bool
) -> str:
    stream = client.logs(
        pod.metadata.name,
        pod.metadata.namespace,
        container=container,
        tail=TAIL_LINES,
        previous=previous,
        kept_for=kept_for,
    )
    try:
        return "\n".join([line.decode(errors="replace") async for line in stream])
    except ApiError:
        return ""
