"""What workers share: the services of a node, and the state of one pod on it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gangline.api.core.pod import Pod
from gangline.api.core.service import Service
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.local.kubelet.configuration import ConfigSource
from gangline.local.kubelet.containers.images import ImageMap
from gangline.local.kubelet.containers.plan import DeviceManager
from gangline.local.kubelet.records import ContainerRecord, PodRecord
from gangline.local.kubelet.runtime.interface import ContainerRuntime
from gangline.local.kubelet.settings import KubeletSettings, VirtualNodeSpec
from gangline.local.kubelet.volumes import PodFolders, PodTokens, pod_folders
from gangline.local.network.addresses import NetworkAttachment, PodNetwork

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The services that the workers of a node use."""

    client: ApiClient
    runtime: ContainerRuntime
    network: PodNetwork
    recorder: EventRecorder
    spec: VirtualNodeSpec
    settings: KubeletSettings
    images: ImageMap
    configs: ConfigSource
    devices: DeviceManager
    allocatable: Mapping[str, int]
    services: Callable[[], Sequence[Service]]
    """The present services of the cluster."""

    clock: Callable[[], datetime]
    online: asyncio.Event
    """Set while the node may use the API server; cleared while the node is partitioned."""


class PodContext:
    """The state that a pod's workers share; ``changed`` is set after each change that matters."""

    def __init__(self, node: NodeContext, pod: Pod, record: PodRecord) -> None:
        self.node = node
        self.pod = pod
        self.record = record
        self.folders: PodFolders = pod_folders(node.settings.data, node.settings.cluster, pod)
        self.attachment: NetworkAttachment | None = None
        self.volumes: Mapping[str, Path] = {}
        self.tokens = PodTokens(node.client, node.settings)
        self.changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def update_container(
        self, name: str, change: Callable[[ContainerRecord], ContainerRecord]
    ) -> None:
        before = self.record.container(name)
        after = change(before)
        if after != before:
            containers = {**self.record.containers, name: after}
            self.update_pod(containers=containers)

    def update_pod(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)
        self.changed.set()

    def record_event(self, kind: str, reason: str, message: str) -> None:
        self.node.recorder.event(self.pod, kind, reason, message)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task that ends with the pod at the latest."""
        meta = self.pod.metadata
        task = asyncio.create_task(work, name=f"{meta.namespace}/{meta.name}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def end_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("pod task failed", exc_info=error, extra={"task": task.get_name()})
