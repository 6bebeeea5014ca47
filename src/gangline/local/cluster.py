"""The embedded cluster in one process: API server, controllers, nodes, network, and other
components.

Start order: directory and lock, network (the API server assigns addresses of its service range),
API server, run record and kubeconfig. From then on clients are served while the rest starts. The
stop order is the reverse: pods end first.

Invariant: after a kill at any point the next start cleans up. Everything in the kernel carries the
cluster's mark, and a write is acknowledged only after it is on disk.
"""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gangline.api.resources import NODES
from gangline.kube.client.client import ApiClient
from gangline.kube.informers.shared_informers import SharedInformerFactory
from gangline.local import cleanup, machine, ports
from gangline.local.apiserver.audit.audit_log import AuditSettings
from gangline.local.apiserver.auth.pki import CertificateError
from gangline.local.apiserver.memory import configure_allocator
from gangline.local.apiserver.server import ApiServer, ApiServerSettings
from gangline.local.apiserver.storage.encryption import EncryptionKeyError
from gangline.local.apiserver.storage.sqlite import DatabaseError
from gangline.local.daemon import report_ready
from gangline.local.directory import ClusterError, ClusterLock, RunRecord, process_start_ticks
from gangline.local.network.cluster_network import ClusterNetwork
from gangline.local.network.interface import NetworkError
from gangline.local.settings import ClusterSettings

if TYPE_CHECKING:
    from gangline.local.kubelet.runtime.interface import ContainerRuntime

log = logging.getLogger(__name__)

DEFAULT_PORT = 16460
RESTART_S = (0.5, 30.0)
"""The first and the longest delay before a failed component is restarted, in seconds."""


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
    runtime: "ContainerRuntime | None" = None,
) -> None:
    """Run a cluster until SIGTERM or Ctrl-C; a second signal does not wait for pods to end.

    Args:
        settings: the settings of the cluster.
        components: what runs with the cluster.
        announce: called when the API server answers.
        runtime: runs the containers of all nodes; None selects processes of this machine.

    Raises:
        ClusterError: it cannot be started; the message gives the remedy.
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
        runtime: "ContainerRuntime | None" = None,
    ) -> None:
        self._settings = settings
        self._home = settings.directory
        self._components = components
        self._announce = announce
        self._runtime = runtime

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Run until ``stop`` is set; ``hurry`` ends the pods without their grace period.

        Raises:
            ClusterError: it cannot be started.
        """
        self._shapes = machine.divide_machine(self._settings, machine.detect_machine())
        self._home.prepare()
        with ClusterLock(self._home):
            self._home.refuse_interrupted_restore()
            await cleanup.remove_leftovers(self._home.folder)
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(cleanup.remove_leftovers, self._home.folder)
                network = await stack.enter_async_context(self._network())
                server = await stack.enter_async_context(self._server(network))
                ready = self._publish(server, network)
                await self._work(server, network, ready, stop, hurry)

    @contextlib.asynccontextmanager
    async def _network(self) -> AsyncIterator[ClusterNetwork]:
        settings = self._settings
        network = ClusterNetwork(
            self._home.folder, mode=settings.network, pod_cidr=settings.pod_cidr
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
                data=self._home.folder,
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
        last = self._home.last_run_record()
        before = urlsplit(last.url).port if last is not None else None
        return tuple(port for port in (before, DEFAULT_PORT) if port)

    def _publish(self, server: ApiServer, network: ClusterNetwork) -> ClusterReady:
        pid = os.getpid()
        now = datetime.now(UTC)
        kubeconfig = self._home.publish_kubeconfig()
        self._home.write_settings(self._settings.encode())
        # The run record comes last: a process that finds it relies on the kubeconfig.
        self._home.write_run_record(RunRecord(pid, process_start_ticks(pid), server.url, now))
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
        from gangline.local.controllers.context import ControllerSettings
        from gangline.local.kubelets import Kubelets
        from gangline.local.port_conflicts import PortConflicts
        from gangline.local.training_runtimes import install_runtimes
        from gangline.local.virtual_nodes import VirtualNodes

        async with (
            ApiClient(server.config, user_agent="gangline-cluster") as client,
            EventRecorder(client, "network") as recorder,
        ):
            await custom_resources.install_definitions(client)
            await install_runtimes(client)
            # After the definitions: clients submit jobs as soon as the cluster is reported ready.
            self._announce(ready)
            report_ready()
            informers = SharedInformerFactory(client)
            address = urlsplit(server.url)
            publisher = network.updater(
                informers, (address.hostname or "127.0.0.1", address.port or 443)
            )
            controlling = ControllerSettings(
                volumes=self._home.volumes, node_silence_s=self._settings.node_silence_s
            )
            kubelets = Kubelets(server, self._settings, network.pods, informers, self._runtime)
            await kubelets.start([shape.name for shape in self._shapes])
            nodes = VirtualNodes(
                client, self._shapes, informers.informer(NODES), kubelets.create_kubelet
            )
            halt = asyncio.Event()
            tasks = [
                _supervised("network", publisher.run, halt),
                _supervised(
                    "controllers",
                    lambda: manager.run_controllers(client, controlling, informers),
                    halt,
                ),
                _supervised("nodes", nodes.run, halt),
                *(self._component(server, component, halt) for component in self._components),
            ]
            if not network.isolated:
                clashes = PortConflicts(informers, recorder)
                tasks.append(_supervised("port clashes", clashes.run, halt))
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
            await _supervised(component.name, lambda: component.run(client, halt), halt)


def _audit_settings(settings: ClusterSettings) -> AuditSettings | None:
    if settings.audit_log is None:
        return None
    return AuditSettings(
        settings.audit_log, settings.audit_log_maxsize, settings.audit_log_maxbackup
    )


async def _supervised(name: str, run: Callable[[], Awaitable[None]], halt: asyncio.Event) -> None:
    """Run a component and restart it when it fails, so that a failure never stops the others."""
    rest, longest = RESTART_S
    while not halt.is_set():
        try:
            await run()
        except Exception:  # The outermost loop of each component.
            log.exception("component failed and is restarted", extra={"component": name})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await halt.wait()
            rest = min(longest, rest * 2)
        else:
            return
