"""The dependencies that all pod workers of one node share."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gangline.api.core.service import Service
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.local.kubelet.config.config_source import ConfigSource
from gangline.local.kubelet.containers.devices import DeviceManager
from gangline.local.kubelet.containers.images import ImageMap
from gangline.local.kubelet.runtime.interface import ContainerRuntime
from gangline.local.kubelet.settings import KubeletSettings, VirtualNodeSpec
from gangline.local.network.interface import PodNetwork


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The services that the workers of a node use."""

    client: ApiClient
    runtime: ContainerRuntime
    network: PodNetwork
    recorder: EventRecorder
    node: VirtualNodeSpec
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
