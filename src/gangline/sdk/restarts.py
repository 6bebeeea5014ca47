"""Restarts of the replicas of a job: which one failed first, and why."""

from dataclasses import dataclass
from datetime import datetime

from gangline.api.core.pod import Pod
from gangline.api.resources import PODS
from gangline.api.verdict import Finding, finding_of_pod, finding_order
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError
from gangline.sdk.jobs import Job


@dataclass(frozen=True, slots=True)
class LastRestart:
    """The last restart of workers."""

    replica: str
    """The replica that failed first, such as ``worker-1``."""
    cause: str
    """A cause such as ``Killed``."""
    exit_code: int | None
    """The exit code, above 128 for a signal; None if it is not known."""
    step: int | None
    """The step at which all ranks continue; None if it is not known."""
    seconds: float | None
    """Time from the failure to the first step, or to the start of the container."""
    number: int
    """Counts the restarts of the job, so that two equal restarts differ."""


async def read_container_restart(client: ApiClient, job: Job, before: Job) -> LastRestart | None:
    """Return the restart of containers between two states of a job; None without one."""
    counts = {replica.name: replica.restarts for replica in before.replicas}
    names = [
        replica.name
        for replica in job.replicas
        if replica.restarts > counts.get(replica.name, replica.restarts)
    ]
    ends: list[tuple[Finding, Pod]] = []
    for name in names:
        try:
            pod = await client.get(PODS, name, job.namespace)
        except ApiError:
            continue
        if finding := finding_of_pod(pod):
            ends.append((finding, pod))
    if not ends:
        return None
    finding, pod = min(ends, key=lambda end: finding_order(end[0]))
    return LastRestart(
        replica=finding.replica,
        cause=finding.cause,
        exit_code=finding.exit_code,
        step=None,
        seconds=_restart_time_s(finding.at, pod),
        number=job.restarts,
    )


def _restart_time_s(ended_at: datetime | None, pod: Pod) -> float | None:
    """Return the time between two runs; None if it is less than a second, as times are in these."""
    starts = [
        running.started_at
        for status in pod.status.container_statuses
        if (running := status.state.running) and running.started_at
    ]
    return ((max(starts) - ended_at).total_seconds() or None) if ended_at and starts else None
