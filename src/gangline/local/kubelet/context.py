"""The dependencies that all pod workers of one node share."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gangline.api.service import Service
from gangline.kube.client import ApiClient
from gangline.kube.events import EventRecorder
from gangline.local.kubelet.api_access import ServiceAccountAccess
from gangline.local.kubelet.config_source import ConfigSource
from gangline.local.kubelet.devices import DeviceManager
from gangline.local.kubelet.images import ImageMap
from gangline.local.kubelet.runtime.contract import ContainerRuntime
from gangline.local.kubelet.settings import KubeletSettings, VirtualNodeSpec
from gangline.local.network.contract import PodNetwork


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
    service_accounts: ServiceAccountAccess
    devices: DeviceManager
    allocatable: Mapping[str, int]
    services: Callable[[], Sequence[Service]]
    """The present services of the cluster."""

    clock: Callable[[], datetime]
    online: asyncio.Event
    """Set while the node may use the API server; cleared while the node is partitioned."""
