"""Creates the kubelets of the virtual nodes; they share one runtime and one HTTP server.

Each node has certificates of its own below its folder, and a client of the API server that uses
them: a kubelet has the rights of its node only.
"""

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from gangline.api.resources import NODES, SERVICES
from gangline.kube.client.client import ApiClient
from gangline.kube.informers.shared_informers import SharedInformerFactory
from gangline.local.apiserver.auth.node_certificates import (
    NodeCertificates,
    prepare_node_certificates,
)
from gangline.local.apiserver.server import ApiServer
from gangline.local.directory import ClusterError
from gangline.local.kubelet.containers.images import ImageMap, ImageMapError, load_image_map
from gangline.local.kubelet.kubelet import Kubelet, ObservedCluster
from gangline.local.kubelet.runtime.cgroups import ControlGroups
from gangline.local.kubelet.runtime.interface import ContainerRuntime, WarmEnvironment
from gangline.local.kubelet.runtime.isolation import detect_isolation
from gangline.local.kubelet.runtime.process_runtime import ProcessRuntime
from gangline.local.kubelet.runtime.warm_start.pool import ForkServerPool
from gangline.local.kubelet.server.server import KubeletServer
from gangline.local.kubelet.server.tls import NodeTls, ServingFiles
from gangline.local.kubelet.settings import KubeletSettings, VirtualNodeSpec
from gangline.local.kubelet.volumes.pod_volumes import remove_memory_folders
from gangline.local.machine import NodeShape
from gangline.local.network.bridge import kernel_prefix
from gangline.local.network.interface import PodNetwork
from gangline.local.settings import ClusterSettings
from gangline.local.virtual_nodes import VIRTUAL_LABEL

NODE_ADDRESS = "127.0.0.1"
"""The address of all virtual nodes, at which their kubelets' server listens."""


class Kubelets:
    """Creates kubelets that share one runtime and one server for logs and streams."""

    def __init__(
        self,
        server: ApiServer,
        settings: ClusterSettings,
        network: PodNetwork,
        informers: SharedInformerFactory,
        runtime: ContainerRuntime | None = None,
    ) -> None:
        """Read the image map.

        Args:
            runtime: runs the containers; None selects processes of this machine.

        Raises:
            ClusterError: the image map cannot be used.
        """
        self._api_server = server
        self._settings = settings
        self._network = network
        self._services = informers.informer(SERVICES)
        self._nodes = informers.informer(NODES)
        self._mark = kernel_prefix(settings.directory.folder)
        try:
            self._images = load_image_map(settings.image_map)
        except ImageMapError as error:
            raise ClusterError(str(error)) from error
        self._runtime = runtime
        self._fork_servers = ForkServerPool()
        self._certificates: dict[str, NodeCertificates] = {}
        self._clients: dict[str, ApiClient] = {}
        self._server = KubeletServer([], NodeTls(server.ca_path, self._serving_files))
        self._port = 0
        self._resources = contextlib.AsyncExitStack()

    async def start(self, nodes: Sequence[str]) -> None:
        """Detect what the machine allows, give each node its identity, and start the server.

        Raises:
            ClusterError: a certificate cannot be used.
        """
        if self._runtime is None:
            self._runtime = await asyncio.to_thread(self._make_runtime)
        await self._remove_leftovers()
        self._fork_servers.start(self._warm_environments())
        try:
            await asyncio.to_thread(self._issue_certificates, nodes)
        except (OSError, ValueError) as error:
            raise ClusterError(f"the certificates of the nodes cannot be made: {error}") from error
        for node in nodes:
            config = self._api_server.client_config(self._certificates[node].client)
            client = ApiClient(config, user_agent="gangline-kubelet")
            self._clients[node] = await self._resources.enter_async_context(client)
        self._port = await self._server.start(host=NODE_ADDRESS)

    def _issue_certificates(self, nodes: Sequence[str]) -> None:
        authority = self._api_server.authority
        for node in nodes:
            self._certificates[node] = prepare_node_certificates(
                authority, self._folder(node) / "pki", node, [NODE_ADDRESS]
            )

    def _folder(self, node: str) -> Path:
        return self._settings.directory.folder / "kubelet" / node

    def _serving_files(self, node: str) -> ServingFiles | None:
        found = self._certificates.get(node)
        return ServingFiles(found.server.certificate, found.server.key) if found else None

    async def stop(self) -> None:
        await self._fork_servers.stop()
        await self._server.stop()
        await self._resources.aclose()
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
            resources=shape.resources,
            pods=shape.pods,
            address=NODE_ADDRESS,
            labels={VIRTUAL_LABEL: "true"},
        )
        settings = KubeletSettings(
            data=self._folder(shape.name),
            cluster=self._mark,
            port=self._port,
            heartbeat_s=self._settings.heartbeat_s,
        )
        kubelet = Kubelet(
            self._clients[shape.name],
            node,
            settings,
            self._network,
            self._runtime,
            images=self._images,
            observed=ObservedCluster(
                services=lambda: list(self._services.items()),
                node=lambda: self._nodes.get(None, shape.name),
            ),
        )
        others = [known for known in self._server.kubelets if known.node.name != shape.name]
        self._server.kubelets = [*others, kubelet]
        return kubelet

    def _make_runtime(self) -> ContainerRuntime:
        groups = ControlGroups(f"gangline-{self._mark}")
        return ProcessRuntime(detect_isolation(), groups, self._environments(), self._fork_servers)

    def _warm_environments(self) -> list[WarmEnvironment]:
        settings = KubeletSettings(data=Path())
        images = ImageMap(settings.environment, settings.path, self._images)
        return images.warm_environments()

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
