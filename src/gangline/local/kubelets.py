"""Creates the kubelets of the virtual nodes; they share one runtime and one HTTP server."""

import asyncio
import sys
from pathlib import Path

from gangline.api.resources import SERVICES
from gangline.kube.client.client import ApiClient
from gangline.kube.informers.shared_informers import SharedInformerFactory
from gangline.local.directory import ClusterError
from gangline.local.kubelet.containers.images import ImageMapError, load_image_map
from gangline.local.kubelet.kubelet import Kubelet
from gangline.local.kubelet.runtime.cgroups import ControlGroups
from gangline.local.kubelet.runtime.interface import ContainerRuntime
from gangline.local.kubelet.runtime.isolation import detect_isolation
from gangline.local.kubelet.runtime.process_runtime import ProcessRuntime
from gangline.local.kubelet.server.server import KubeletServer
from gangline.local.kubelet.settings import KubeletSettings, VirtualNodeSpec
from gangline.local.kubelet.volumes.pod_volumes import remove_memory_folders
from gangline.local.machine import NodeShape
from gangline.local.network.bridge import kernel_prefix
from gangline.local.network.interface import PodNetwork
from gangline.local.settings import ClusterSettings
from gangline.local.virtual_nodes import VIRTUAL_LABEL


class Kubelets:
    """Creates kubelets that share one runtime and one server for logs and streams."""

    def __init__(
        self,
        client: ApiClient,
        settings: ClusterSettings,
        network: PodNetwork,
        informers: SharedInformerFactory,
        token: str,
        runtime: ContainerRuntime | None = None,
    ) -> None:
        """Read the image map.

        Args:
            runtime: runs the containers; None selects processes of this machine.

        Raises:
            ClusterError: the image map cannot be used.
        """
        self._client = client
        self._settings = settings
        self._network = network
        self._services = informers.informer(SERVICES)
        self._mark = kernel_prefix(settings.directory.folder)
        try:
            self._images = load_image_map(settings.image_map)
        except ImageMapError as error:
            raise ClusterError(str(error)) from error
        self._runtime = runtime
        self._server = KubeletServer([], token)
        self._port = 0

    async def start(self) -> None:
        """Detect what the machine allows, and start the server."""
        if self._runtime is None:
            self._runtime = await asyncio.to_thread(self._make_runtime)
        await self._remove_leftovers()
        self._port = await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()
        await self._remove_leftovers()

    async def _remove_leftovers(self) -> None:
        """Remove what pods leave outside the data folder: control groups and memory volumes."""
        if self._runtime is not None:
            await self._runtime.clean_up()
        await asyncio.to_thread(remove_memory_folders, self._mark)

    def create_kubelet(self, shape: NodeShape) -> Kubelet:
        """Create the kubelet of a node; it replaces one that was created before."""
        assert self._runtime is not None
        node = VirtualNodeSpec(
            name=shape.name,
            cpu_milli=shape.cpu_milli,
            memory_bytes=shape.memory_bytes,
            gpus=shape.gpus,
            pods=shape.pods,
            labels={VIRTUAL_LABEL: "true"},
        )
        settings = KubeletSettings(
            data=self._settings.directory.folder / "kubelet" / shape.name,
            cluster=self._mark,
            port=self._port,
            heartbeat_s=self._settings.heartbeat_s,
        )
        kubelet = Kubelet(
            self._client,
            node,
            settings,
            self._network,
            self._runtime,
            images=self._images,
            services=lambda: list(self._services.items()),
        )
        others = [known for known in self._server.kubelets if known.node.name != shape.name]
        self._server.kubelets = [*others, kubelet]
        return kubelet

    def _make_runtime(self) -> ContainerRuntime:
        groups = ControlGroups(f"gangline-{self._mark}")
        return ProcessRuntime(detect_isolation(), groups, self._environments())

    def _environments(self) -> tuple[Path, ...]:
        """The folders that image names map to: pods see them even below a /tmp."""
        package = Path(__file__).parents[2]
        mapped = [
            Path(folder)
            for _, entry in self._images
            for folder in (entry.env, *("" if entry.root else entry.path).split(":"))
            if folder
        ]
        return tuple(dict.fromkeys([Path(sys.prefix), Path(sys.base_prefix), package, *mapped]))
