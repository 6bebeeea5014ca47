"""Runs one pod: decides, executes and reports in a loop until the pod is removed."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from gangline.api.core.pod import Pod
from gangline.api.resources import PODS
from gangline.kube.errors import ApiError, Conflict, NotFound
from gangline.local.kubelet.configuration import (
    ContainerConfigError,
    DeviceClaimError,
    names_in_volumes,
    refreshed_volumes,
    token_specs,
)
from gangline.local.kubelet.logs import archive_logs
from gangline.local.kubelet.pods.actions import PodActions, compute_pod_actions, grace_period_s
from gangline.local.kubelet.pods.admission import unsupported_fields
from gangline.local.kubelet.pods.container_worker import ContainerWorker, fetch_value_sources
from gangline.local.kubelet.pods.pod_context import NodeContext, PodContext
from gangline.local.kubelet.pods.pod_status import (
    StatusInputs,
    StatusWriter,
    build_pod_status,
    crash_looping_containers,
)
from gangline.local.kubelet.records import PodRecord, StartProblem, is_pod_finished
from gangline.local.kubelet.volumes import make_volumes, refresh_volumes, remove_files
from gangline.local.network.addresses import NetworkAttachment, NetworkError, system_name

log = logging.getLogger(__name__)

MAX_HOSTNAME = 64
"""The kernel's limit."""

API_ACCESS = "kube-api-access-"
"""The prefix of the volumes that the API server adds to pods, as Kubernetes does."""

_FORCED_GRACE_S = 2
"""The grace period of pods that were already removed from the server, as in Kubernetes."""

_KILL_WAIT_S = 2.0


class PodWorker:
    """Runs one pod until it is removed.

    Args:
        on_release: called when the pod has released its resources.
    """

    def __init__(
        self, node: NodeContext, pod: Pod, record: PodRecord, on_release: Callable[[], None]
    ) -> None:
        self.context = PodContext(node, pod, record)
        self.status = pod.status
        self._writer = StatusWriter(node.client, pod, node.online)
        self._deleted_from_server = False
        self._shutting_down = False
        self._on_release = on_release
        self.containers = {
            container.name: ContainerWorker(self.context, container)
            for container in [*pod.spec.init_containers, *pod.spec.containers]
        }
        if pod.metadata.deletion_timestamp is not None:
            self._begin_termination()

    @property
    def pod(self) -> Pod:
        return self.context.pod

    @property
    def holds_resources(self) -> bool:
        """True until the pod's processes have ended; False for a pod that was refused."""
        record = self.context.record
        is_refused = record.failure is not None and not (record.prepared or record.preparing)
        return not (record.released or is_refused)

    @property
    def is_leaving(self) -> bool:
        """True if schedulers do not count the pod any more: it was deleted, or is finished."""
        return self._deleted_from_server or is_pod_finished(self.pod)

    def update(self, pod: Pod) -> None:
        self.context.pod = pod
        self._writer.observe(pod)
        if pod.metadata.deletion_timestamp is not None:
            self._begin_termination()
        self.context.changed.set()

    def handle_deletion(self) -> None:
        """The object was removed from the server: end what is left of the pod."""
        self._deleted_from_server = True
        pod = self.context.pod
        if grace_period_s(pod) > _FORCED_GRACE_S:
            meta = replace(pod.metadata, deletion_grace_period_seconds=_FORCED_GRACE_S)
            self.context.pod = replace(pod, metadata=meta)
        self._begin_termination()

    async def run(self) -> None:
        writing = asyncio.create_task(self._writer.run())
        try:
            while not await self._sync():
                pass
        finally:
            writing.cancel()
            await self.context.end_tasks()
            await asyncio.wait({writing})

    async def shut_down(self, grace_s: float) -> None:
        """End all containers because the kubelet stops; the pod's status stays unchanged."""
        self._shutting_down = True
        running = [container.running for container in self.containers.values() if container.running]
        for container in running:
            container.terminate()
        ends = [asyncio.create_task(container.wait()) for container in running]
        if ends:
            await asyncio.wait(ends, timeout=grace_s)
            for container in running:
                container.kill()
            await asyncio.wait(ends, timeout=_KILL_WAIT_S)
            for end in ends:
                end.cancel()

    async def _sync(self) -> bool:
        """One pass; True if the pod was removed."""
        self.context.changed.clear()
        if self._shutting_down:
            # Containers that end now must not be restarted.
            await self._wait(None)
            return False
        now = self.context.node.clock()
        decision = self._decide(now)
        await self._execute(decision)
        if not self._deleted_from_server:
            self._report(decision)
        if decision.remove and await self._remove_object():
            return True
        await self._wait(decision.requeue_at)
        return False

    def _decide(self, now: datetime) -> PodActions:
        node = self.context.node
        decision = compute_pod_actions(
            self.context.pod, self.context.record, now, node.settings.backoff
        )
        if decision.failure is not None and self.context.record.failure is None:
            self.context.update_pod(failure=decision.failure)
            self.context.record_event("Warning", decision.failure.reason, decision.failure.message)
        return decision

    async def _execute(self, decision: PodActions) -> None:
        if decision.prepare:
            self.context.update_pod(preparing=True, problem=None)
            self.context.spawn(self._prepare(), "preparation")
        for stop in decision.stop:
            self.containers[stop.container].stop(stop.kill_at, stop.reason)
        for name in decision.start:
            self.containers[name].start()
        if decision.release:
            await self._release()

    def _report(self, decision: PodActions) -> None:
        node, now = self.context.node, self.context.node.clock()
        inputs = StatusInputs(node.spec.address, node.settings.backoff)
        before = crash_looping_containers(self.status)
        self.status = build_pod_status(
            self.context.pod, self.context.record, decision, self.status, inputs, now
        )
        for name in crash_looping_containers(self.status) - before:
            meta = self.context.pod.metadata
            pod = f"{meta.name}_{meta.namespace}({meta.uid})"
            message = f"Back-off restarting failed container {name} in pod {pod}"
            self.context.record_event("Warning", "BackOff", message)
        self._writer.report(self.status)

    async def _wait(self, until: datetime | None) -> None:
        if until is None:
            await self.context.changed.wait()
            return
        left_s = (until - self.context.node.clock()).total_seconds()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(left_s, 0.0)):
                await self.context.changed.wait()

    async def _prepare(self) -> None:
        """Attach the network and create the volumes; a failure is reported and retried."""
        try:
            attachment = await self._attach()
            self.context.update_pod(ip=attachment.ip)
            await self.context.node.configs.check_device_claims(self.context.pod)
            self.context.volumes = await self._make_volumes()
        except (NetworkError, ContainerConfigError, ApiError, OSError) as error:
            self._delay_preparation(error)
            return
        if refreshed_volumes(self.context.pod):
            self.context.spawn(self._keep_volumes_fresh(), "volumes")
        mounts_files = self.context.node.runtime.mounts_files
        if ignored := unsupported_fields(
            self.context.pod, as_root=os.geteuid() == 0, mounts_files=mounts_files
        ):
            self.context.record_event(
                "Warning", "Ignored", f"without effect here: {', '.join(ignored)}"
            )
        self.context.update_pod(prepared=True, preparing=False)

    def _delay_preparation(self, error: Exception) -> None:
        reason = "FailedMount"
        if isinstance(error, NetworkError):
            reason = "FailedCreatePodSandBox"
        elif isinstance(error, DeviceClaimError):
            reason = "FailedPrepareDynamicResources"
        node = self.context.node
        retry = node.clock() + timedelta(seconds=node.settings.retry_s)
        self.context.record_event("Warning", reason, str(error))
        self.context.update_pod(preparing=False, problem=StartProblem(reason, str(error), retry))

    async def _attach(self) -> NetworkAttachment:
        if self.context.attachment is None:
            name = system_name(self.context.pod)
            if len(name) > MAX_HOSTNAME:
                message = f"FQDN {name} is too long ({MAX_HOSTNAME} characters at most)"
                raise NetworkError(f"setHostnameAsFQDN: {message}")
            network = self.context.node.network
            self.context.attachment = await network.attach(self.context.pod)
        return self.context.attachment

    async def _make_volumes(self) -> dict[str, Path]:
        context = self.context
        names = names_in_volumes(context.pod)
        sources = await fetch_value_sources(context, names)
        find_claim = context.node.configs.claim_folder
        return await make_volumes(context.pod, context.folders, sources, find_claim)

    async def _keep_volumes_fresh(self) -> None:
        context = self.context
        while True:
            delay_s = context.node.settings.refresh_s
            if all(name.startswith(API_ACCESS) for name in refreshed_volumes(context.pod)):
                # Only the token changes: thousands of pods need not read their files for it.
                renewals = [context.tokens.renewal_in_s(spec) for spec in token_specs(context.pod)]
                delay_s = max(delay_s, min(renewals, default=0.0))
            await asyncio.sleep(delay_s)
            await context.node.online.wait()
            names = names_in_volumes(context.pod)
            try:
                sources = await fetch_value_sources(context, names)
                await asyncio.to_thread(refresh_volumes, context.pod, context.folders, sources)
            except (ContainerConfigError, ApiError, OSError) as error:
                log.debug("volumes not refreshed: %s", error)

    async def _release(self) -> None:
        """Release network, devices and files; logs stay until the object is deleted."""
        uid = self.context.pod.metadata.uid
        self.context.node.devices.release(uid)
        try:
            await self.context.node.network.detach(uid)
        except NetworkError as error:
            log.warning("network not released: %s", error, extra={"pod": uid})
        await asyncio.to_thread(remove_files, self.context.folders, logs=False)
        self.context.attachment = None
        self.context.update_pod(released=True)
        self._on_release()

    async def _remove_object(self) -> bool:
        """Delete the object after its last status is stored; True if it is deleted."""
        meta = self.context.pod.metadata
        if not self._deleted_from_server:
            await self._writer.wait_stored()
            await self.context.node.online.wait()
            try:
                await self.context.node.client.delete(
                    PODS, meta.name, meta.namespace, grace_seconds=0, uid=meta.uid
                )
            except (NotFound, Conflict):
                pass
            except ApiError as error:
                log.debug("pod not removed yet: %s", error, extra={"pod": meta.name})
                await asyncio.sleep(self.context.node.settings.retry_s)
                self.context.changed.set()
                return False
        await asyncio.to_thread(self._remove_files)
        return True

    def _remove_files(self) -> None:
        """Remove the pod's files; the logs of a job's pod are archived."""
        remove_files(self.context.folders, logs=False)
        archive_logs(self.context.node.settings.data, self.context.folders, self.context.pod)

    def _begin_termination(self) -> None:
        if self.context.record.terminating_since is None:
            self.context.update_pod(terminating_since=self.context.node.clock())
        self.context.changed.set()
