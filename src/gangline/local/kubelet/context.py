"""The dependencies that all pod workers of one node share."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gangline.api.service import Service
from gangline.kube.client import Client
from gangline.kube.events import EventRecorder
from gangline.local.kubelet.api_access import ApiAccess
from gangline.local.kubelet.config_source import ConfigSource
from gangline.local.kubelet.devices import DeviceTable
from gangline.local.kubelet.images import ImageMap
from gangline.local.kubelet.runtime.contract import Runtime
from gangline.local.kubelet.settings import KubeletSettings, NodeSpec
from gangline.local.network.contract import PodNetwork


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The services that the workers of a node use."""

    client: Client
    runtime: Runtime
    network: PodNetwork
    recorder: EventRecorder
    node: NodeSpec
    settings: KubeletSettings
    images: ImageMap
    configs: ConfigSource
    access: ApiAccess
    devices: DeviceTable
    allocatable: Mapping[str, int]
    services: Callable[[], Sequence[Service]]
    """The present services of the cluster."""

    clock: Callable[[], datetime]
    online: asyncio.Event
    """Set while the node may use the API server; cleared while the node is partitioned."""
