"""What the workers of one node share."""

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
    """The services that every pod of a node is run with."""

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
    """The services of the cluster as they are now."""

    clock: Callable[[], datetime]
    online: asyncio.Event
    """Set while the node may talk to the API server: a node that was cut off keeps to itself."""
