"""Waits for the pods of a release, and reports what keeps them from being ready.

A cause is reported when it is first seen: a pod that no node takes, an image that cannot be pulled,
a program that ends, a volume that cannot be mounted, a quota that is used up. A pod that merely is
not ready is reported after ``QUIET_S``. The wait goes on, as most causes can be removed meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from gangline.api.core.core import Event
from gangline.api.core.pod import Pod
from gangline.api.figures import plain_number
from gangline.api.meta.conditions import find_condition
from gangline.api.resources import EVENTS, PODS
from gangline.api.verdict import pod_problem
from gangline.deploy.chart import Manifest, ReleaseSettings
from gangline.deploy.manifests import object_path
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError

POLL_S = 1.0
QUIET_S = 8.0
"""Seconds that pods may take to become ready without a report."""
_TAIL_LINES = 20
_MOUNT_FAILURES = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
Report = Callable[[str], None]


class RolloutError(Exception):
    """The pods of a release do not become ready."""


async def wait_for_rollout(
    client: ApiClient,
    objects: Sequence[Manifest],
    release: ReleaseSettings,
    timeout_s: float,
    report: Report,
) -> None:
    """Wait until all replicas of the release are available; report each cause of a delay once.

    Raises:
        RolloutError: they are not in time; the message has the reason of each pod.
    """
    waiting = [object_ for object_ in objects if object_["kind"] == "Deployment"]
    began, reported = time.monotonic(), set[str]()
    problems: list[str] = []
    try:
        async with asyncio.timeout(timeout_s):
            while waiting := [item for item in waiting if not await _is_available(client, item)]:
                is_late = time.monotonic() - began >= QUIET_S
                problems = [
                    problem
                    for item in waiting
                    for problem in await _problems(client, item, release, is_late=is_late)
                ]
                for problem in problems:
                    # Pod and cause: the rest may have times and numbers.
                    key = " ".join(problem.split()[:2])
                    if key not in reported:
                        report(f"waiting for {problem}")
                    reported.add(key)
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        names = ", ".join(deployment["metadata"]["name"] for deployment in waiting)
        lines = [f"not ready after {plain_number(timeout_s)} s: {names}", *problems]
        raise RolloutError("\n  ".join(lines)) from None


async def _is_available(client: ApiClient, manifest: Manifest) -> bool:
    deployment = await client.request_json("GET", object_path(manifest))
    status, desired = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    return bool(
        status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
        and status.get("updatedReplicas", 0) >= desired
        and status.get("availableReplicas", 0) >= desired
        and status.get("replicas", 0) <= desired
    )


async def _problems(
    client: ApiClient, deployment: Manifest, release: ReleaseSettings, *, is_late: bool
) -> list[str]:
    """Return what keeps the pods of a Deployment from being ready."""
    labels = deployment["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    name = deployment["metadata"]["name"]
    try:
        pods = (await client.list(PODS, release.namespace, labels=selector)).items
        tails = [await _last_log(client, pod) for pod in pods]
        events = (await client.list(EVENTS, release.namespace)).items
    except ApiError as error:
        return [f"{name}: {error}"]
    if not pods:
        refusal = _newest(events, ("FailedCreate",), name)
        if refusal or is_late:
            return [f"{name}: {refusal or 'it has no pod; see the events of its ReplicaSet'}"]
    problems = (
        (pod.metadata.name, _problem(pod, tail, events, is_late=is_late))
        for pod, tail in zip(pods, tails, strict=True)
    )
    return [f"{pod}: {problem}" for pod, problem in problems if problem]


def _problem(pod: Pod, log_tail: str, events: Sequence[Event], *, is_late: bool) -> str:
    """Return why a pod is not ready; empty if it is, or may soon be."""
    ready = find_condition(pod.status.conditions, "Ready")
    if ready is not None and ready.status == "True":
        return ""
    if problem := pod_problem(pod, log_tail):
        return problem
    if not any(status.state.running for status in pod.status.container_statuses) and (
        failed := _newest(events, _MOUNT_FAILURES, pod.metadata.name)
    ):
        return failed
    waits = f"{pod.status.phase or 'Pending'}, but not ready; {ready.message if ready else ''}"
    return waits.removesuffix("; ") if is_late else ""


def _newest(events: Sequence[Event], reasons: Sequence[str], name: str) -> str:
    """Return the last message with one of the reasons about an object, or one with that prefix."""
    messages = [
        f"{event.reason}: {event.message}"
        for event in sorted(events, key=lambda event: str(event.last_timestamp or event.event_time))
        if event.reason in reasons and event.involved_object.name.startswith(name)
    ]
    return messages[-1] if messages else ""


async def _last_log(client: ApiClient, pod: Pod) -> str:
    """Return the end of the log of a container that has ended; empty if none has."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if status.state.terminated or status.last_state.terminated:
            lines = client.logs(
                pod.metadata.name,
                pod.metadata.namespace,
                container=status.name,
                tail=_TAIL_LINES,
                previous=status.state.terminated is None,
            )
            try:
                return "\n".join([line.decode(errors="replace") async for line in lines])
            except ApiError:
                return ""  # a further restart has replaced it
    return ""
