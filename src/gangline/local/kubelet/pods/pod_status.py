"""The status of a pod: built from its record (phase, conditions, containers), and written.

``previous`` is the status that was reported before: it preserves transition times and conditions of
other writers. `StatusWriter` writes only the newest status, after a change, until it is stored.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from gangline.api.core.container import Container
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import (
    TERMINAL_PHASES,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodIP,
    PodStatus,
)
from gangline.api.meta.conditions import FALSE, TRUE, is_condition_true, set_condition
from gangline.api.meta.objects import Condition
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import ApiError, Conflict, NotFound
from gangline.local.kubelet.pods.actions import PodActions, has_initialized, is_sidecar
from gangline.local.kubelet.records import (
    ALWAYS,
    NEVER,
    BackoffSettings,
    ContainerInstance,
    ContainerRecord,
    PodRecord,
    is_pod_finished,
    restart_time,
    should_restart,
)

log = logging.getLogger(__name__)

CRASH_LOOP = "CrashLoopBackOff"
SCHEDULED = "PodScheduled"
OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", SCHEDULED)


@dataclass(frozen=True, slots=True)
class StatusInputs:
    host_ip: str
    backoff: BackoffSettings


def build_pod_status(
    pod: Pod,
    record: PodRecord,
    decision: PodActions,
    previous: PodStatus,
    inputs: StatusInputs,
    now: datetime,
) -> PodStatus:
    inits = [
        _container_status(pod, init_container, record, inputs.backoff, now)
        for init_container in pod.spec.init_containers
    ]
    mains = [
        _container_status(pod, container, record, inputs.backoff, now)
        for container in pod.spec.containers
    ]
    phase = previous.phase if previous.phase in TERMINAL_PHASES else _phase(pod, record, decision)
    # As in Kubernetes a pod counts as failed only after all its containers have ended.
    failure = decision.failure if decision.finished else None
    conditions = previous.conditions
    if not is_condition_true(conditions, SCHEDULED):  # Nothing scheduled a pod with a preset node.
        scheduled = Condition(type=SCHEDULED, status=TRUE)
        conditions = set_condition(conditions, scheduled, _truncate_to_second(now))
    for condition in _conditions(pod, record, phase, inits, mains):
        conditions = set_condition(conditions, condition, _truncate_to_second(now))
    return msgspec.structs.replace(
        previous,
        phase=phase,
        conditions=conditions,
        reason=failure.reason if failure else "",
        message=failure.message if failure else "",
        host_ip=inputs.host_ip,
        host_ips=[PodIP(inputs.host_ip)],
        pod_ip=record.ip,
        pod_ips=[PodIP(record.ip)] if record.ip else [],
        start_time=_truncate_to_second(record.started_at),
        init_container_statuses=inits,
        container_statuses=mains,
        observed_generation=pod.metadata.generation or None,
    )


def pod_status_patch(status: PodStatus, uid: str) -> dict[str, Any]:
    """A strategic merge patch that writes a status; fields that have become empty are set to null.

    It contains only the kubelet's own conditions, since other components write conditions too.
    Fields that clients require are present even when they are empty.
    """
    wire: dict[str, Any] = msgspec.to_builtins(status)
    wire["conditions"] = [
        condition for condition in wire.get("conditions", ()) if condition["type"] in OWN_CONDITIONS
    ]
    # A merge patch leaves missing fields unchanged, so fields that became empty are nulled.
    for condition in wire["conditions"]:
        condition.setdefault("reason", None)
        condition.setdefault("message", None)
    for name in ("reason", "message", "podIP", "podIPs"):
        wire.setdefault(name, None)
    for container in [*wire.get("initContainerStatuses", ()), *wire.get("containerStatuses", ())]:
        _fill_required(container)
    return {"metadata": {"uid": uid}, "status": wire}


def _fill_required(container: dict[str, Any]) -> None:
    for name, nothing in (("ready", False), ("restartCount", 0), ("image", ""), ("imageID", "")):
        container.setdefault(name, nothing)
    for state in ("state", "lastState"):
        terminated = container.setdefault(state, {}).get("terminated")
        if terminated is not None:
            terminated.setdefault("exitCode", 0)


def _container_status(
    pod: Pod, container: Container, record: PodRecord, backoff: BackoffSettings, now: datetime
) -> ContainerStatus:
    container_record = record.container(container.name)
    newest = container_record.instance
    state, last = _states(pod, container, record, backoff, now)
    return ContainerStatus(
        name=container.name,
        state=state,
        last_state=last,
        ready=_is_ready(container, container_record, pod),
        started=container_record.running and container_record.started,
        restart_count=newest.number if newest else 0,
        image=container.image,
        image_id=container.image,
        container_id=newest.container_id if newest else "",
    )


def _is_ready(container: Container, record: ContainerRecord, pod: Pod) -> bool:
    if container in pod.spec.init_containers and not is_sidecar(container):
        return record.ended is not None and record.ended.exit_code == 0
    return record.running and record.started and record.ready


def _states(
    pod: Pod, container: Container, record: PodRecord, backoff: BackoffSettings, now: datetime
) -> tuple[ContainerState, ContainerState]:
    """The present state of a container, and that of its previous run."""
    container_record = record.container(container.name)
    before = _terminated(container_record.previous)
    newest = container_record.instance
    if newest is not None and newest.ended is None:
        return ContainerState(
            running=ContainerStateRunning(_truncate_to_second(newest.started_at))
        ), before
    if container_record.problem is not None:
        waiting = ContainerStateWaiting(
            container_record.problem.reason, container_record.problem.message
        )
        return ContainerState(waiting=waiting), _terminated(newest)
    if newest is None:
        return ContainerState(waiting=_first_wait(pod, container, record)), ContainerState()
    due = restart_time(container_record, backoff)
    if due is not None and due > now and _will_restart(pod, container, record):
        return ContainerState(waiting=_crash_loop(pod, container, container_record)), _terminated(
            newest
        )
    return _terminated(newest), before


def _first_wait(pod: Pod, container: Container, record: PodRecord) -> ContainerStateWaiting:
    if record.problem is not None:
        return ContainerStateWaiting("ContainerCreating", record.problem.message)
    held_up = container in pod.spec.containers and not has_initialized(pod, record)
    return ContainerStateWaiting("PodInitializing" if held_up else "ContainerCreating")


def _will_restart(pod: Pod, container: Container, record: PodRecord) -> bool:
    ended = record.container(container.name).ended
    if ended is None or record.failure or record.terminating_since or is_pod_finished(pod):
        return False
    if container in pod.spec.init_containers:
        return is_sidecar(container) or (ended.exit_code != 0 and pod.spec.restart_policy != NEVER)
    return should_restart(pod.spec.restart_policy, ended)


def crash_looping_containers(status: PodStatus) -> set[str]:
    return {
        container.name
        for container in (*status.init_container_statuses, *status.container_statuses)
        if container.state.waiting is not None and container.state.waiting.reason == CRASH_LOOP
    }


def _crash_loop(pod: Pod, container: Container, record: ContainerRecord) -> ContainerStateWaiting:
    delay_s = record.backoff.delay_s if record.backoff else 0
    meta = pod.metadata
    return ContainerStateWaiting(
        CRASH_LOOP,
        f"back-off {_duration(delay_s)} restarting failed container={container.name} "
        f"pod={meta.name}_{meta.namespace}({meta.uid})",
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"


def _terminated(instance: ContainerInstance | None) -> ContainerState:
    if instance is None or instance.ended is None:
        return ContainerState()
    ended = instance.ended
    return ContainerState(
        terminated=ContainerStateTerminated(
            exit_code=ended.exit_code,
            reason=ended.reason,
            message=ended.message,
            started_at=_truncate_to_second(instance.started_at),
            finished_at=_truncate_to_second(ended.finished_at),
            container_id=instance.container_id,
        )
    )


def _truncate_to_second(time: datetime) -> datetime:
    """Drop fractions of a second: Kubernetes' times have none, and some clients reject them."""
    return time.replace(microsecond=0)


def _phase(pod: Pod, record: PodRecord, decision: PodActions) -> str:
    if decision.failure is not None and decision.finished:
        return "Failed"
    containers = [record.container(container.name) for container in pod.spec.containers]
    if not any(container.instance for container in containers):
        return "Failed" if decision.finished and record.terminating_since is None else "Pending"
    if decision.finished and (
        record.terminating_since is None or not _restartable(pod, containers)
    ):
        failed = any(container.ended and container.ended.exit_code != 0 for container in containers)
        return "Failed" if failed else "Succeeded"
    if any(container.instance is None for container in containers):
        return "Pending"
    return "Running"


def _restartable(pod: Pod, containers: Sequence[ContainerRecord]) -> bool:
    """True if a container would run again if the pod stayed."""
    policy = pod.spec.restart_policy
    return policy in (ALWAYS, "") or any(container.ended is None for container in containers)


def _conditions(
    pod: Pod,
    record: PodRecord,
    phase: str,
    inits: Sequence[ContainerStatus],
    mains: Sequence[ContainerStatus],
) -> list[Condition]:
    sandbox = record.prepared and not record.released
    finished = phase in TERMINAL_PHASES
    initialized = has_initialized(pod, record) or phase == "Succeeded"
    waiting = [init.name for init in inits if not init.ready]
    containers_ready, ready = _readiness(pod, phase, [*inits, *mains], finished)
    return [
        Condition(type="PodReadyToStartContainers", status=TRUE if sandbox else FALSE),
        Condition(type="Initialized", status=TRUE)
        if initialized
        else Condition(
            type="Initialized",
            status=FALSE,
            reason="ContainersNotInitialized",
            message=f"containers with incomplete status: [{' '.join(waiting)}]",
        ),
        ready,
        containers_ready,
    ]


def _readiness(
    pod: Pod, phase: str, statuses: Sequence[ContainerStatus], finished: bool
) -> tuple[Condition, Condition]:
    inits = {
        init_container.name
        for init_container in pod.spec.init_containers
        if not is_sidecar(init_container)
    }
    unready = [status.name for status in statuses if not status.ready and status.name not in inits]
    if finished:
        reason = "PodCompleted" if phase == "Succeeded" else "PodFailed"
        condition = Condition(status=FALSE, reason=reason)
    elif unready:
        message = f"containers with unready status: [{' '.join(unready)}]"
        condition = Condition(status=FALSE, reason="ContainersNotReady", message=message)
    else:
        condition = Condition(status=TRUE)
    containers = msgspec.structs.replace(condition, type="ContainersReady")
    ready = msgspec.structs.replace(condition, type="Ready")
    shut = [
        gate.condition_type
        for gate in pod.spec.readiness_gates
        if not is_condition_true(pod.status.conditions, gate.condition_type)
    ]
    if shut and ready.status == TRUE:
        message = f"the status of pod readiness gates is not True: {' '.join(shut)}"
        ready = Condition(
            type="Ready", status=FALSE, reason="ReadinessGatesNotReady", message=message
        )
    return containers, ready


_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 10.0


class StatusWriter:
    """Keeps the stored status of one pod equal to the reported one."""

    def __init__(self, client: ApiClient, pod: Pod, online: asyncio.Event) -> None:
        self.removed = False
        """True if the pod is no longer on the server, or another pod has its name."""

        self._client = client
        self._online = online
        self._meta = pod.metadata
        self._stored = pod_status_patch(pod.status, pod.metadata.uid)
        self._stored_version = pod.metadata.resource_version
        self._desired: dict[str, Any] | None = None
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def report(self, status: PodStatus) -> None:
        patch = pod_status_patch(status, self._meta.uid)
        if self._desired is None and patch == self._stored:
            return
        self._desired = patch
        self._settled.clear()
        self._changed.set()

    def observe(self, pod: Pod) -> None:
        """Record the server's version, which another component may have written."""
        if _is_newer(pod.metadata.resource_version, self._stored_version):
            self._stored = pod_status_patch(pod.status, self._meta.uid)
            self._stored_version = pod.metadata.resource_version

    async def wait_stored(self) -> None:
        """Wait until the last reported status is stored, or the pod is removed."""
        await self._settled.wait()

    async def run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self.removed:
            await self._changed.wait()
            await self._online.wait()
            self._changed.clear()
            desired = self._desired
            if desired is None:
                continue
            try:
                await self._write(desired)
                retry_s = _FIRST_RETRY_S
            except (NotFound, Conflict):
                # The uid precondition failed: this pod no longer exists.
                self.removed = True
                self._settled.set()
            except ApiError as error:
                log.debug("status not written: %s", error, extra={"pod": self._meta.name})
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _LONGEST_RETRY_S)
                self._changed.set()

    async def _write(self, desired: dict[str, Any]) -> None:
        if desired != self._stored:
            stored = await self._client.patch(
                PODS,
                self._meta.name,
                desired,
                self._meta.namespace,
                kind=PatchKind.STRATEGIC,
                subresource="status",
            )
            self._stored = desired
            self._stored_version = stored.metadata.resource_version
        if self._desired is desired:
            self._desired = None
            self._settled.set()


def _is_newer(version: str, than: str) -> bool:
    """Compare resource versions of one server as numbers; if they are none, any other version is
    newer.
    """
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version != than
