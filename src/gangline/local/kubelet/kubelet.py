"""The kubelet of one virtual node: runs the pods that are bound to it, and reports the node."""

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gangline.api.core.node import Node
from gangline.api.core.pod import Pod
from gangline.api.core.service import Service
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.informers.informer import Informer
from gangline.local.kubelet.configuration import ConfigSource
from gangline.local.kubelet.containers.images import ImageMap
from gangline.local.kubelet.containers.plan import DeviceManager
from gangline.local.kubelet.node import NodeStatusReporter, node_allocatable, node_labels
from gangline.local.kubelet.pods.admission import admit_pod
from gangline.local.kubelet.pods.pod_context import NodeContext
from gangline.local.kubelet.pods.pod_worker import PodWorker
from gangline.local.kubelet.records import (
    PodFailureReason,
    PodRecord,
    is_pod_finished,
    recover_record,
)
from gangline.local.kubelet.runtime.interface import ContainerRuntime
from gangline.local.kubelet.settings import KubeletSettings, VirtualNodeSpec
from gangline.local.network.addresses import PodNetwork

log = logging.getLogger(__name__)

DEFAULT_STOP_GRACE_S = 2.0
_WORKER_RESTART_S = 1.0


@dataclass(frozen=True, slots=True)
class ObservedCluster:
    """The part of the cluster that a kubelet reads from informers of its process."""

    services: Callable[[], Sequence[Service]]
    node: Callable[[], Node | None]
    """Returns the kubelet's own node as last observed; None if it is not observed."""


class Kubelet:
    """Runs the pods of one node. Call `run` in a task; `stop` ends the pods."""

    def __init__(
        self,
        client: ApiClient,
        node: VirtualNodeSpec,
        settings: KubeletSettings,
        network: PodNetwork,
        runtime: ContainerRuntime,
        *,
        observed: ObservedCluster,
        images: ImageMap,
    ) -> None:
        self.node = node
        self.workers: dict[str, PodWorker] = {}
        """The workers of this node's pods by uid."""

        self._settings = settings
        self._recorder = EventRecorder(client, "kubelet")
        self._observed = observed
        self._context = NodeContext(
            client=client,
            runtime=runtime,
            network=network,
            recorder=self._recorder,
            spec=node,
            settings=settings,
            images=images,
            configs=ConfigSource(client),
            devices=DeviceManager(node.gpus),
            allocatable=node_allocatable(node),
            services=observed.services,
            clock=lambda: datetime.now(UTC),
            online=asyncio.Event(),
        )
        self._reporter = NodeStatusReporter(
            client, node, settings, runtime.describe_limitations(), observed.node
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._postponed: dict[str, Pod] = {}
        """Pods that fit once pods that leave have left, by uid."""
        self._bound: Callable[[], Iterable[Pod]] = tuple

    async def run(self) -> None:
        """Watch the API server and report to it, until cancelled.

        A cancel partitions the node: its containers continue, and a later call reports what
        happened to them meanwhile. Only `stop` ends them.
        """
        pods = Informer(self._context.client, PODS, fields=f"spec.nodeName={self.node.name}")
        self._bound = pods.items
        try:
            async with self._recorder, asyncio.TaskGroup() as tasks:
                tasks.create_task(pods.run())
                await self._reporter.register()
                tasks.create_task(self._reporter.run())
                await pods.wait_for_sync()
                bound = {pod.metadata.uid for pod in pods.items()}
                await asyncio.to_thread(self._remove_leftovers, bound | set(self.workers))
                self._context.online.set()
                self._reconcile(list(pods.items()))
                pods.add_listener(self._on_change)
                log.info("node is ready", extra={"node": self.node.name})
        finally:
            self._context.online.clear()

    async def stop(self, grace_s: float = DEFAULT_STOP_GRACE_S) -> None:
        """End all pods' processes, with SIGTERM first if ``grace_s`` is above zero.

        Nothing is reported: the next kubelet of the node finds the processes ended, as after a
        power loss.
        """
        self._context.online.clear()
        await asyncio.gather(*(worker.shut_down(grace_s) for worker in self.workers.values()))
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @property
    def data(self) -> Path:
        return self._settings.data

    def find_pod(self, namespace: str, name: str) -> PodWorker | None:
        matching = [
            worker
            for worker in self.workers.values()
            if (worker.pod.metadata.namespace, worker.pod.metadata.name) == (namespace, name)
        ]
        return matching[-1] if matching else None

    def _reconcile(self, pods: Sequence[Pod]) -> None:
        """Compare with the present workers, and start the missing ones in the order of an earlier
        run.
        """
        now = self._context.clock()
        present = {pod.metadata.uid for pod in pods}
        self._postponed.clear()
        for uid, worker in self.workers.items():
            if uid not in present:
                worker.handle_deletion()

        def start_order(pod: Pod) -> tuple[bool, datetime]:
            started = pod.status.start_time
            return started is None, started or pod.metadata.creation_timestamp or now

        for pod in sorted(pods, key=start_order):
            self._on_change(None, pod)

    def _on_change(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            assert old is not None
            self._postponed.pop(old.metadata.uid, None)
            if worker := self.workers.get(old.metadata.uid):
                worker.handle_deletion()
            return
        worker = self.workers.get(new.metadata.uid)
        if worker is None:
            self._start_worker(new)
        elif worker.pod is not new:
            worker.update(new)

    def _start_worker(self, pod: Pod) -> None:
        now, uid = self._context.clock(), pod.metadata.uid
        self._postponed.pop(uid, None)
        record = recover_record(pod, now)
        if pod.status.start_time is None and not is_pod_finished(pod):
            refusal = self._refusal(pod)
            if refusal is not None and self._refusal(pod, after_leaving=True) is None:
                self._postponed[uid] = pod
                return
            record = PodRecord(started_at=now, failure=refusal)
        worker = PodWorker(self._context, pod, record, self._start_postponed)
        self.workers[uid] = worker
        task = asyncio.create_task(worker.run(), name=f"pod {pod.metadata.name}")
        self._tasks[uid] = task
        task.add_done_callback(lambda task: self._worker_done(uid, task))

    def _refusal(self, pod: Pod, *, after_leaving: bool = False) -> PodFailureReason | None:
        """Return why a new pod cannot run here; None if it can.

        Args:
            after_leaving: assume that pods that schedulers do not count any more have left.
        """
        if pod.metadata.deletion_timestamp is not None:
            return None
        others = [
            worker.pod
            for worker in self.workers.values()
            if worker.holds_resources and not (after_leaving and worker.is_leaving)
        ]
        node = self._observed.node()
        # Users may have added labels; the kubelet's own ones are those of its configuration.
        labels = {**(node.metadata.labels if node else {}), **node_labels(self.node)}
        postponed = self._postponed.values()
        return admit_pod(pod, [*others, *postponed], self._context.allocatable, labels)

    def _start_postponed(self) -> None:
        if self._context.online.is_set():
            for pod in list(self._postponed.values()):
                self._start_worker(pod)

    def _worker_done(self, uid: str, task: asyncio.Task[None]) -> None:
        self.workers.pop(uid, None)
        self._tasks.pop(uid, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("pod worker failed", exc_info=error, extra={"pod": uid})
            asyncio.get_running_loop().call_later(_WORKER_RESTART_S, self._restart_worker, uid)
        self._start_postponed()

    def _restart_worker(self, uid: str) -> None:
        """Restart the worker of a pod after it failed, as after a restart of the kubelet."""
        pod = next((bound for bound in self._bound() if bound.metadata.uid == uid), None)
        if pod is not None and uid not in self.workers and self._context.online.is_set():
            self._start_worker(pod)

    def _remove_leftovers(self, retained: set[str]) -> None:
        pods, logs = self._settings.data / "pods", self._settings.data / "logs"
        for folder in (*pods.glob("*"), *logs.glob("*_*_*")):
            if folder.name.rpartition("_")[2] not in retained:
                shutil.rmtree(folder, ignore_errors=True)
        for uid in retained - set(self.workers):
            shutil.rmtree(pods / uid / "containers", ignore_errors=True)
