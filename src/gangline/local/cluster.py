"""The embedded cluster in one process: API server, controllers, nodes, network, other components.

Start order: directory and lock, network (the API server assigns addresses of its service range),
API server, run record and kubeconfig. From then on clients are served while the rest starts. The
stop order is the reverse: pods end first.

The kubelets of the virtual nodes share one runtime and one HTTP server. Each has a certificate and
a client of the API server of its own: a kubelet has the rights of its node only.

Invariant: after a kill at any point the next start cleans up. Everything in the kernel carries the
cluster's mark, and a write is acknowledged only after it is on disk.
"""

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from gangline.api.resources import NODES, SERVICES
from gangline.kube.client.client import ApiClient
from gangline.kube.config.embedded import RunRecord, process_start_ticks
from gangline.kube.informers.informer import SharedInformerFactory
from gangline.local import cleanup, machine, ports
from gangline.local.apiserver.audit import AuditSettings
from gangline.local.apiserver.auth.node_authorizer import (
    NodeCertificates,
    prepare_node_certificates,
)
from gangline.local.apiserver.auth.pki import CertificateError
from gangline.local.apiserver.memory import configure_allocator
from gangline.local.apiserver.server import ApiServer, ApiServerSettings
from gangline.local.apiserver.storage.encryption import EncryptionKeyError
from gangline.local.apiserver.storage.sqlite import DatabaseError
from gangline.local.daemon import report_ready
from gangline.local.directory import ClusterError, ClusterLock
from gangline.local.kubelet.containers.images import ImageMapError, load_image_map
from gangline.local.kubelet.kubelet import Kubelet, ObservedCluster
from gangline.local.kubelet.runtime.cgroups import ControlGroups
from gangline.local.kubelet.runtime.interface import ContainerRuntime
from gangline.local.kubelet.runtime.isolation import detect_isolation
from gangline.local.kubelet.runtime.process_runtime import ProcessRuntime
from gangline.local.kubelet.runtime.warm_start import ForkServerPool
from gangline.local.kubelet.server import KubeletServer, NodeTls
from gangline.local.kubelet.settings import KubeletSettings, VirtualNodeSpec
from gangline.local.network.addresses import NODE_ADDRESS, NetworkError, PodNetwork
from gangline.local.network.bridge import kernel_prefix
from gangline.local.network.cluster_network import ClusterNetwork
from gangline.local.settings import ClusterSettings
from gangline.local.supervision import keep_running


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
        """Read the image map. Without ``runtime`` containers are processes of this machine. Raises
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
        """Detect what the machine allows, give each node its identity, and start the server. Raises
        ClusterError: a certificate cannot be used.
        """
        if self._runtime is None:
            self._runtime = await asyncio.to_thread(self._make_runtime)
        self._fork_servers.start(self._images.warm_environments())
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

    def _serving_files(self, node: str) -> tuple[Path, Path] | None:
        if (certificates := self._certificates.get(node)) is None:
            return None
        return certificates.server.certificate, certificates.server.key

    async def stop(self) -> None:
        await self._fork_servers.stop()
        await self._server.stop()
        await self._resources.aclose()

    def create_kubelet(self, node: VirtualNodeSpec) -> Kubelet:
        """Create the kubelet of a node; it replaces one that was created before."""
        assert self._runtime is not None
        settings = KubeletSettings(
            data=self._folder(node.name),
            cluster=self._mark,
            port=self._port,
            heartbeat_s=self._settings.heartbeat_s,
        )
        kubelet = Kubelet(
            self._clients[node.name],
            node,
            settings,
            self._network,
            self._runtime,
            observed=ObservedCluster(
                services=lambda: list(self._services.items()),
                node=lambda: self._nodes.get(None, node.name),
            ),
            images=self._images,
        )
        others = [other for other in self._server.kubelets if other.node.name != node.name]
        self._server.kubelets = [*others, kubelet]
        return kubelet

    def _make_runtime(self) -> ContainerRuntime:
        groups = ControlGroups(f"gangline-{self._mark}")
        return ProcessRuntime(detect_isolation(), groups, self._environments(), self._fork_servers)

    def _environments(self) -> tuple[Path, ...]:
        """The folders that image names map to: pods see them even below a /tmp."""
        package = Path(__file__).parents[2]
        mapped = [
            Path(folder)
            for _, entry in self._images.entries
            for folder in (entry.env, *("" if entry.root else entry.path).split(":"))
            if folder
        ]
        return tuple(dict.fromkeys([Path(sys.prefix), Path(sys.base_prefix), package, *mapped]))


DEFAULT_PORT = 16460


@dataclass(frozen=True, slots=True)
class Component:
    """Another component that runs with the cluster, such as the operator or the scheduler."""

    name: str
    run: Callable[[ApiClient, asyncio.Event], Awaitable[None]]
    """It runs until the event is set or it is cancelled."""


@dataclass(frozen=True, slots=True)
class ClusterReady:
    """What is reported when the API server answers."""

    url: str
    kubeconfig: str
    limitation: str
    """The cluster feature that is missing on this machine, and why; empty if none is missing."""


ReadyCallback = Callable[[ClusterReady], None]


def run_foreground(
    settings: ClusterSettings,
    components: Sequence[Component] = (),
    announce: ReadyCallback = lambda ready: None,
    runtime: ContainerRuntime | None = None,
) -> None:
    """Run a cluster until SIGTERM or Ctrl-C; a second signal does not wait for pods to end. Without
    ``runtime`` containers are processes of this machine. Raises ClusterError, with the remedy.
    """
    import uvloop

    _allow_many_files()
    configure_allocator()
    uvloop.run(_until_signalled(EmbeddedCluster(settings, components, announce, runtime)))


def _allow_many_files() -> None:
    """Raise the soft limit of open files: each container takes a few, Debian allows 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _until_signalled(cluster: "EmbeddedCluster") -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    await cluster.run(stop, hurry)


class EmbeddedCluster:
    def __init__(
        self,
        settings: ClusterSettings,
        components: Sequence[Component] = (),
        announce: ReadyCallback = lambda ready: None,
        runtime: ContainerRuntime | None = None,
    ) -> None:
        self._settings = settings
        self._directory = settings.directory
        self._components = components
        self._announce = announce
        self._runtime = runtime

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Run until ``stop`` is set; ``hurry`` ends the pods without their grace period. Raises
        ClusterError: it cannot be started.
        """
        self._nodes = machine.divide_machine(self._settings, machine.detect_machine())
        self._directory.prepare()
        with ClusterLock(self._directory):
            self._directory.refuse_interrupted_restore()
            await cleanup.remove_leftovers(self._directory.folder)
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(cleanup.remove_leftovers, self._directory.folder)
                network = await stack.enter_async_context(self._network())
                server = await stack.enter_async_context(self._server(network))
                ready = self._publish(server, network)
                await self._work(server, network, ready, stop, hurry)

    @contextlib.asynccontextmanager
    async def _network(self) -> AsyncIterator[ClusterNetwork]:
        settings = self._settings
        network = ClusterNetwork(
            self._directory.folder, mode=settings.network, pod_cidr=settings.pod_cidr
        )
        try:
            await network.open()
        except NetworkError as error:
            raise ClusterError(str(error)) from error
        try:
            yield network
        finally:
            await network.close()

    @contextlib.asynccontextmanager
    async def _server(self, network: ClusterNetwork) -> AsyncIterator[ApiServer]:
        settings = self._settings
        port = ports.choose_port(settings.host, settings.port, self._preferred_ports())
        server = ApiServer(
            ApiServerSettings(
                data=self._directory.folder,
                host=settings.host,
                port=port,
                durability=settings.durability,
                encryption_key=settings.encryption_key,
                service_cidr=network.service_cidr,
                audit=_audit_settings(settings),
                context="gangline" if settings.name == "default" else f"gangline-{settings.name}",
            )
        )
        try:
            await server.start()
        except (OSError, DatabaseError, EncryptionKeyError, CertificateError) as error:
            await server.stop()
            raise ClusterError(f"the API server does not start: {error}") from error
        try:
            yield server
        finally:
            await server.stop()

    def _preferred_ports(self) -> tuple[int, ...]:
        """The port of the last run comes first, so that existing kubeconfigs stay valid."""
        last = self._directory.last_run_record()
        before = urlsplit(last.url).port if last is not None else None
        return tuple(port for port in (before, DEFAULT_PORT) if port)

    def _publish(self, server: ApiServer, network: ClusterNetwork) -> ClusterReady:
        pid = os.getpid()
        now = datetime.now(UTC)
        kubeconfig = self._directory.publish_kubeconfig()
        self._directory.write_settings(self._settings.encode())
        # The run record comes last: a process that finds it relies on the kubeconfig.
        self._directory.write_run_record(RunRecord(pid, process_start_ticks(pid), server.url, now))
        return ClusterReady(server.url, str(kubeconfig), network.limitation)

    async def _work(
        self,
        server: ApiServer,
        network: ClusterNetwork,
        ready: ClusterReady,
        stop: asyncio.Event,
        hurry: asyncio.Event,
    ) -> None:
        # Imported after the API server answers, which clients wait for: these take longer.
        from gangline.kube.controller.event_recorder import EventRecorder
        from gangline.local import custom_resources
        from gangline.local.controllers import manager
        from gangline.local.controllers.context import ControllerSettings, shared_informers
        from gangline.local.ports import PortConflicts
        from gangline.local.virtual_nodes import VirtualNodes

        async with (
            ApiClient(server.config, user_agent="gangline-cluster") as client,
            EventRecorder(client, "network") as recorder,
        ):
            await custom_resources.install_definitions(client)
            await custom_resources.install_runtimes(client)
            # After the definitions: clients submit jobs as soon as the cluster is reported ready.
            self._announce(ready)
            report_ready()
            informers = shared_informers(client)
            address = urlsplit(server.url)
            publisher = network.updater(
                informers, (address.hostname or "127.0.0.1", address.port or 443)
            )
            controlling = ControllerSettings(
                volumes=self._directory.volumes, node_silence_s=self._settings.node_silence_s
            )
            kubelets = Kubelets(server, self._settings, network.pods, informers, self._runtime)
            await kubelets.start([node.name for node in self._nodes])
            nodes = VirtualNodes(
                client, self._nodes, informers.informer(NODES), kubelets.create_kubelet
            )
            halt = asyncio.Event()
            tasks = [
                keep_running("network", publisher.run, halt),
                keep_running(
                    "controllers",
                    lambda: manager.run_controllers(client, controlling, informers),
                    halt,
                ),
                keep_running("nodes", nodes.run, halt),
                *(self._component(server, component, halt) for component in self._components),
            ]
            if not network.isolated:
                clashes = PortConflicts(informers, recorder)
                tasks.append(keep_running("port clashes", clashes.run, halt))
            running = [asyncio.create_task(task) for task in tasks]
            gc.freeze()
            try:
                await stop.wait()
            finally:
                halt.set()
                await nodes.stop(self._settings.shutdown_grace_s, hurry)
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
                await kubelets.stop()

    async def _component(
        self, server: ApiServer, component: Component, halt: asyncio.Event
    ) -> None:
        async with ApiClient(server.config, user_agent=f"gangline-{component.name}") as client:
            await keep_running(component.name, lambda: component.run(client, halt), halt)


def _audit_settings(settings: ClusterSettings) -> AuditSettings | None:
    if settings.audit_log is None:
        return None
    return AuditSettings(
        settings.audit_log, settings.audit_log_maxsize, settings.audit_log_maxbackup
    )
