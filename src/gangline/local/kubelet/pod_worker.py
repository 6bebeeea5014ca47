"""Runs one pod: decides, executes and reports in a loop until the pod is removed."""

import asyncio
import contextlib
import logging
import os
from datetime import datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from gangline.api.pod import Pod
from gangline.api.resources import PODS
from gangline.kube.errors import ApiError, Conflict, NotFound
from gangline.local.kubelet.config_source import has_refreshed_volumes, names_in_volumes
from gangline.local.kubelet.container_worker import ContainerWorker
from gangline.local.kubelet.context import NodeContext
from gangline.local.kubelet.decide import Decision, decide
from gangline.local.kubelet.environment import ConfigProblem
from gangline.local.kubelet.kept_logs import keep
from gangline.local.kubelet.pod_home import PodHome
from gangline.local.kubelet.pod_status import Surroundings, build_status, crash_looping
from gangline.local.kubelet.records import PodRecord, Problem
from gangline.local.kubelet.run_setup import gather_sources
from gangline.local.kubelet.status_writer import StatusWriter
from gangline.local.kubelet.unsupported import ignored_fields
from gangline.local.kubelet.volumes import make_volumes, refresh_volumes, remove_files
from gangline.local.network.contract import Attachment, NetworkError

log = logging.getLogger(__name__)

_FORCED_GRACE_S = 2
"""The grace period of pods that were already removed from the server, as in Kubernetes."""

_KILL_WAIT_S = 2.0


class PodWorker:
    """The worker of one pod."""

    def __init__(self, context: NodeContext, pod: Pod, record: PodRecord) -> None:
        self.home = PodHome(context, pod, record)
        self.status = pod.status
        self._writer = StatusWriter(context.client, pod, context.online)
        self._vanished = False
        self._shutting_down = False
        self.containers = {
            each.name: ContainerWorker(self.home, each)
            for each in [*pod.spec.init_containers, *pod.spec.containers]
        }
        if pod.metadata.deletion_timestamp is not None:
            self._leave()

    @property
    def pod(self) -> Pod:
        return self.home.pod

    def update(self, pod: Pod) -> None:
        """Store a newer version of the object."""
        self.home.pod = pod
        self._writer.observe(pod)
        if pod.metadata.deletion_timestamp is not None:
            self._leave()
        self.home.changed.set()

    def vanish(self) -> None:
        """The object was removed from the server: end what is left of the pod."""
        self._vanished = True
        pod = self.home.pod
        if self.home.record.leaving_since is None:
            meta = replace(pod.metadata, deletion_grace_period_seconds=_FORCED_GRACE_S)
            self.home.pod = replace(pod, metadata=meta)
        self._leave()

    async def run(self) -> None:
        """Reconcile the pod until it is removed."""
        writing = asyncio.create_task(self._writer.run())
        try:
            while not await self._step():
                pass
        finally:
            writing.cancel()
            await self.home.end_tasks()
            await asyncio.wait({writing})

    async def shut_down(self, grace_s: float) -> None:
        """End all containers because the kubelet stops; the pod's status stays unchanged."""
        self._shutting_down = True
        running = [each.running for each in self.containers.values() if each.running]
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

    async def _step(self) -> bool:
        """One pass; True if the pod was removed."""
        self.home.changed.clear()
        if self._shutting_down:
            # Containers that end now must not be restarted.
            await self._wait(None)
            return False
        now = self.home.context.clock()
        decision = self._decide(now)
        await self._carry_out(decision)
        if not self._vanished:
            self._report(decision)
        if decision.remove and await self._removed():
            return True
        await self._wait(decision.look_again)
        return False

    def _decide(self, now: datetime) -> Decision:
        context = self.home.context
        decision = decide(self.home.pod, self.home.record, now, context.settings.backoff)
        if decision.failure is not None and self.home.record.failure is None:
            self.home.note_pod(failure=decision.failure)
            self.home.tell("Warning", decision.failure.reason, decision.failure.message)
        return decision

    async def _carry_out(self, decision: Decision) -> None:
        if decision.prepare:
            self.home.note_pod(preparing=True, problem=None)
            self.home.spawn(self._prepare(), "preparation")
        for stop in decision.stop:
            self.containers[stop.container].stop(stop.by, stop.why)
        for name in decision.start:
            self.containers[name].start()
        if decision.release:
            await self._release()

    def _report(self, decision: Decision) -> None:
        context, now = self.home.context, self.home.context.clock()
        around = Surroundings(context.node.address, context.settings.backoff)
        before = crash_looping(self.status)
        self.status = build_status(
            self.home.pod, self.home.record, decision, self.status, around, now
        )
        for name in crash_looping(self.status) - before:
            meta = self.home.pod.metadata
            pod = f"{meta.name}_{meta.namespace}({meta.uid})"
            message = f"Back-off restarting failed container {name} in pod {pod}"
            self.home.tell("Warning", "BackOff", message)
        self._writer.report(self.status)

    async def _wait(self, until: datetime | None) -> None:
        if until is None:
            await self.home.changed.wait()
            return
        left_s = (until - self.home.context.clock()).total_seconds()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(left_s, 0.0)):
                await self.home.changed.wait()

    async def _prepare(self) -> None:
        """Attach the network and create the volumes; a failure is reported and retried."""
        try:
            attachment = await self._attach()
            self.home.note_pod(ip=attachment.ip)
            self.home.volumes = await self._make_volumes()
        except (NetworkError, ConfigProblem, ApiError, OSError) as error:
            self._hold(error)
            return
        if has_refreshed_volumes(self.home.pod):
            self.home.spawn(self._keep_volumes_fresh(), "volumes")
        if ignored := ignored_fields(self.home.pod, as_root=os.geteuid() == 0):
            self.home.tell("Warning", "Ignored", f"without effect here: {', '.join(ignored)}")
        self.home.note_pod(prepared=True, preparing=False)

    def _hold(self, error: Exception) -> None:
        network = isinstance(error, NetworkError)
        reason = "FailedCreatePodSandBox" if network else "FailedMount"
        context = self.home.context
        retry = context.clock() + timedelta(seconds=context.settings.retry_s)
        self.home.tell("Warning", reason, str(error))
        self.home.note_pod(preparing=False, problem=Problem(reason, str(error), retry))

    async def _attach(self) -> Attachment:
        if self.home.attachment is None:
            meta, spec = self.home.pod.metadata, self.home.pod.spec
            self.home.attachment = await self.home.context.network.attach(
                meta.uid,
                meta.namespace,
                meta.name,
                spec.host_network,
                hostname=spec.hostname,
                subdomain=spec.subdomain,
                aliases=tuple((each.ip, tuple(each.hostnames)) for each in spec.host_aliases),
            )
        return self.home.attachment

    async def _make_volumes(self) -> dict[str, Path]:
        home = self.home
        names = names_in_volumes(home.pod)
        sources = await gather_sources(home.context, home.pod, names, home.record.ip)
        find_claim = home.context.configs.claimed_folder
        home.api_access = await home.context.access.folder(home.pod)
        return await make_volumes(home.pod, home.folders, sources, find_claim)

    async def _keep_volumes_fresh(self) -> None:
        home = self.home
        while True:
            await asyncio.sleep(home.context.settings.refresh_s)
            names = names_in_volumes(home.pod)
            try:
                sources = await gather_sources(home.context, home.pod, names, home.record.ip)
                await asyncio.to_thread(refresh_volumes, home.pod, home.folders, sources)
            except (ConfigProblem, ApiError, OSError) as error:
                log.debug("volumes not refreshed: %s", error)

    async def _release(self) -> None:
        """Release network, devices and files; logs stay until the object is deleted."""
        uid = self.home.pod.metadata.uid
        self.home.context.devices.release(uid)
        try:
            await self.home.context.network.detach(uid)
        except NetworkError as error:
            log.warning("network not released: %s", error, extra={"pod": uid})
        await asyncio.to_thread(remove_files, self.home.folders, logs=False)
        self.home.attachment = None
        self.home.note_pod(released=True)

    async def _removed(self) -> bool:
        """Delete the object after its last status is stored; True if it is deleted."""
        meta = self.home.pod.metadata
        if not self._vanished:
            await self._writer.settled()
            await self.home.context.online.wait()
            try:
                await self.home.context.client.delete(
                    PODS, meta.name, meta.namespace, grace_seconds=0, uid=meta.uid
                )
            except (NotFound, Conflict):
                pass
            except ApiError as error:
                log.debug("pod not removed yet: %s", error, extra={"pod": meta.name})
                await asyncio.sleep(self.home.context.settings.retry_s)
                self.home.changed.set()
                return False
        await asyncio.to_thread(self._clear_away)
        return True

    def _clear_away(self) -> None:
        """Remove the pod's files; the logs of a job's pod are archived."""
        remove_files(self.home.folders, logs=False)
        keep(self.home.context.settings.data, self.home.folders, self.home.pod)

    def _leave(self) -> None:
        if self.home.record.leaving_since is None:
            self.home.note_pod(leaving_since=self.home.context.clock())
        self.home.changed.set()
