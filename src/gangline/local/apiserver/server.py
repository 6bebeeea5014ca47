"""The embedded API server, as one object to start and stop.

Usage::

    server = ApiServer(ApiServerSettings(data=folder))
    await server.start()          # server.url, server.ca_path, server.admin_token
    await server.stop()           # ends open watches immediately
"""

import asyncio
import ipaddress
import ssl
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from gangline.kube.config.config import ClusterConfig
from gangline.kube.config.credentials import Credential, StaticCredential
from gangline.local.apiserver import bootstrap
from gangline.local.apiserver.admission.builtin import BuiltinAdmission
from gangline.local.apiserver.admission.certificate_signers import SignerGuard
from gangline.local.apiserver.admission.conversion_webhooks import ConversionWebhooks
from gangline.local.apiserver.admission.pod_security import PodSecurityAdmission
from gangline.local.apiserver.admission.webhook_call import WebhookClient
from gangline.local.apiserver.admission.webhooks import WebhookAdmission
from gangline.local.apiserver.audit import AuditLog, AuditSettings
from gangline.local.apiserver.auth import pki
from gangline.local.apiserver.auth.authentication import Authenticator
from gangline.local.apiserver.auth.rbac import Authorizer, EscalationGuard, Impersonator
from gangline.local.apiserver.bootstrap import create_initial_objects
from gangline.local.apiserver.cluster_roles import ClusterRoleSync
from gangline.local.apiserver.core.errors import internal
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json, Registry, all_builtin_kinds
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.crd_finalizer import CrdFinalizer
from gangline.local.apiserver.crds import CRD_STORAGE_NAME, CrdRegistrar
from gangline.local.apiserver.endpoints.access_reviews import (
    AUTHENTICATION,
    AUTHORIZATION,
    ReviewHandler,
)
from gangline.local.apiserver.endpoints.metrics_api import MetricsApi
from gangline.local.apiserver.endpoints.non_resource import NonResourceEndpoints
from gangline.local.apiserver.event_expiry import EventExpiry
from gangline.local.apiserver.flowcontrol import FlowController
from gangline.local.apiserver.http import ApiHandler, Routes, make_http_server
from gangline.local.apiserver.kubelet_proxy.client import (
    KubeletProxyClient,
    LogHandler,
    make_kubelet_tls,
)
from gangline.local.apiserver.kubelet_proxy.http_proxy import HttpProxyHandler
from gangline.local.apiserver.kubelet_proxy.port_forward import PortForwardHandler
from gangline.local.apiserver.kubelet_proxy.streams import ExecHandler
from gangline.local.apiserver.memory import release_memory_forever
from gangline.local.apiserver.metrics import ApiServerMetrics
from gangline.local.apiserver.quota import QuotaAdmission, QuotaLedger, QuotaStatusSync
from gangline.local.apiserver.storage.durable_files import Durability
from gangline.local.apiserver.storage.encryption import load_keys
from gangline.local.apiserver.storage.sqlite import DatabaseError, StateDatabase
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.verbs.rest import ResourceHandler
from gangline.local.apiserver.verbs.subresources import SubresourceHandler
from gangline.local.apiserver.verbs.watch import WatchHandler
from gangline.local.apiserver.verbs.write import WritePath, index_object
from gangline.local.apiserver.watch import WatchBroadcasters
from gangline.local.connections import BoundedSite

COMPACT_INTERVAL_S = 30.0
OBJECTS_PER_SEAT, MAX_WIDTH = 100, 10
MAX_LIMIT_DIGITS = 10

SNAPSHOT_FILE = "snapshot.db"
"""The copy of the state that a request for ``/snapshot`` writes to the data folder."""

ANY_ADDRESS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class ApiServerSettings:
    """Settings of an API server."""

    data: Path
    """The folder of all state; created if it is missing."""
    host: str = "127.0.0.1"
    """The address to listen on. An address other than loopback opens the cluster to the network."""
    port: int = 0
    """The port to listen on; 0 selects a free one."""
    names: tuple[str, ...] = ()
    """Additional host names and addresses in the server's certificate."""
    service_cidr: str = "10.241.0.0/16"
    """The address range of services."""
    durability: Durability = Durability.DISK
    """What an acknowledged write survives: a power failure, or only the death of the process."""
    encryption_key: Path | None = None
    """A file of keys that encrypt Secrets at rest; None: the generated key of a new cluster, no
    encryption for one that was created without.
    """
    history_s: float = 300.0
    """Seconds for which changes are retained so that watches can resume."""
    history_bytes: int = 32 << 20
    """Maximum size of the retained changes, in bytes."""
    event_ttl_s: float = 3600.0
    """Seconds after their last write until events are deleted; Kubernetes' default."""
    max_events: int = 5_000
    """Maximum number of events; the oldest ones are deleted before their time."""
    context: str = "gangline"
    """The name of the cluster in the kubeconfig."""
    audit: AuditSettings | None = None
    """Where audit events are written; None: nowhere."""


class ApiServer:
    """A server that can be started once."""

    def __init__(self, settings: ApiServerSettings) -> None:
        self.settings = settings
        self.registry = Registry()
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = settings.port
        self._snapshot_lock = asyncio.Lock()
        self._closing = AsyncExitStack()

    @property
    def url(self) -> str:
        host = self._client_host()
        return f"https://{f'[{host}]' if ':' in host else host}:{self._port}"

    def _client_host(self) -> str:
        host = self.settings.host
        return "127.0.0.1" if host in ANY_ADDRESS else host

    @property
    def ca_path(self) -> Path:
        """The certificate of the authority that signed the server's certificate."""
        return self.certificates.authority.certificate

    @property
    def authority(self) -> pki.ClusterAuthority:
        """The authority of the cluster's certificates."""
        return pki.ClusterAuthority(self.certificates.authority)

    @property
    def admin_token(self) -> str:
        return self.authenticator.admin_token

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, written at start."""
        return self.settings.data / "kubeconfig"

    @property
    def config(self) -> ClusterConfig:
        """The client configuration with which code in this process connects as administrator."""
        return self._client_config(Credential(f"Bearer {self.admin_token}"))

    def client_config(self, pair: pki.KeyPairFiles) -> ClusterConfig:
        """The client configuration of the user of a certificate."""
        return self._client_config(
            Credential(certificate=pair.certificate.read_bytes(), key=pair.key.read_bytes())
        )

    def _client_config(self, credential: Credential) -> ClusterConfig:
        return ClusterConfig(
            server=self.url,
            credentials=StaticCredential(credential),
            certificate_authority=self.ca_path.read_bytes(),
            origin="the embedded cluster",
        )

    async def start(self) -> None:
        """Load the state, listen, and create the initial objects.

        Raises:
            DatabaseError: the state file cannot be used.
            EncryptionKeyError: a key file cannot be used, or lacks the key of a Secret.
            CertificateError: a certificate or key cannot be used.
            OSError: the port is in use, or the folder cannot be written.
        """
        settings = self.settings
        self.certificates = pki.prepare_certificates(
            settings.data / "pki", self._certificate_hosts()
        )
        for step in (
            self._start_audit,
            # All built-in kinds are known before their objects are read ...
            self._load_state,
            # ... and custom kinds before a listener sees one of their objects.
            self._serve_custom_kinds,
            # Rights before writes: a rule of the write path asks the authorizer.
            self._make_write_paths,
            # Before the first request: these count the events and watch the definitions.
            self._make_background_work,
            self._make_routes,
        ):
            step()
        # Before serving: roles of an older version would still grant their former rights.
        cluster_roles = ClusterRoleSync(self.store, self._own_writer, self.registry)
        self._closing.callback(cluster_roles.stop)
        await cluster_roles.start()
        await self._listen()
        # After the port is known, which the first objects and the kubeconfig contain.
        first_address = str(ipaddress.ip_network(settings.service_cidr)[1])
        served = (self._client_host(), self._port)
        await create_initial_objects(
            self.registry, self._own_writer, first_address, served, self.certificates
        )
        config = bootstrap.make_kubeconfig(
            settings.context, self.url, self.certificates, self.admin_token
        )
        bootstrap.write_kubeconfig(self.kubeconfig, config)
        self._start_background_work()

    async def stop(self) -> None:
        """End watches and streams, complete pending writes, and close all resources.

        What was opened last is closed first: no writer is left when the store closes, and the audit
        log gets the end of every request.
        """
        await self._closing.aclose()

    def _certificate_hosts(self) -> list[str]:
        service = str(ipaddress.ip_network(self.settings.service_cidr)[1])
        own = ["localhost", "127.0.0.1", "::1", service, "kubernetes", "kubernetes.default",
               "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]  # fmt: skip
        host = self.settings.host
        given = [host] if host not in ANY_ADDRESS else []
        return list(dict.fromkeys([*own, *given, *self.settings.names]))

    def _start_audit(self) -> None:
        self.metrics = ApiServerMetrics()
        self._audit: AuditLog | None = None
        if self.settings.audit is not None:
            self._audit = AuditLog(self.settings.audit, self.metrics.audit_events_lost.inc)
            self._closing.push_async_callback(asyncio.to_thread, self._audit.close)

    def _load_state(self) -> None:
        self.registry.add(all_builtin_kinds())
        self.store = self._open_store()
        self._closing.push_async_callback(self.store.close)
        self.store.load(self._index)

    def _serve_custom_kinds(self) -> None:
        self.broadcasts = WatchBroadcasters()
        self.definitions = CrdRegistrar(self.registry, self.broadcasts)
        self.store.add_listener(CRD_STORAGE_NAME, self.definitions.on_change)
        self.definitions.load(self.store)

    def _make_write_paths(self) -> None:
        self._flow = FlowController()
        self._closing.callback(self._flow.close)
        self.metrics.add_seats(self._flow.counts)
        self.authenticator = Authenticator(self.settings.data / "pki", self.store)
        self._authorizer = Authorizer(self.store)
        admission = BuiltinAdmission(self.store, self.registry, self.settings.service_cidr)
        link = WebhookClient(self.store)
        self._closing.push_async_callback(link.close)
        self._conversions = ConversionWebhooks(link)
        self._webhooks = WebhookAdmission(self.store, self.registry, link)
        self._webhooks.load()
        # Webhooks may depend on objects that the server writes, so its own writes skip them.
        self._own_writer = WritePath(self.store, admission, self._flow)
        ledger = QuotaLedger(self.store)
        self._quota_status = QuotaStatusSync(self.store, ledger)
        self.writer = WritePath(
            self.store,
            admission,
            self._flow,
            self._webhooks,
            QuotaAdmission(ledger),
            rules=(
                EscalationGuard(self._authorizer),
                SignerGuard(self._authorizer),
                PodSecurityAdmission(self.store),
            ),
            conversions=self._conversions,
        )

    def _make_background_work(self) -> None:
        settings = self.settings
        definitions = self.registry.builtin("apiextensions.k8s.io", "customresourcedefinitions")
        self._crd_finalizer = CrdFinalizer(self.store, self._own_writer, definitions)
        self._event_expiry = EventExpiry(
            self.store, time_to_live_s=settings.event_ttl_s, max_events=settings.max_events
        )

    def _make_routes(self) -> None:
        kubelets = KubeletProxyClient(self.store, make_kubelet_tls(self.certificates))
        self._closing.push_async_callback(kubelets.close)
        pages = NonResourceEndpoints(
            self.registry,
            self.metrics,
            lambda: self.url.removeprefix("https://"),
            self._write_snapshot,
            self._flow,
            dict(self.authenticator.service_accounts.public_key),
        )
        self._api = ApiHandler(
            self.registry,
            self.authenticator,
            self._authorizer,
            Impersonator(self._authorizer),
            self._flow,
            self._request_width,
            self._webhooks.review_connection,
            pages.get,
            self._routes(kubelets),
            self.metrics,
            self._audit,
        )

    def _routes(self, kubelets: KubeletProxyClient) -> Routes:
        rest = ResourceHandler(
            self.store, self.writer, self._authorizer, self._flow, self._conversions
        )
        pods = self.registry.builtin("", "pods")
        tokens = self.authenticator.service_accounts
        subresources = SubresourceHandler(self.store, self.writer, rest, tokens, pods)
        reviews = ReviewHandler(self._authorizer, self.authenticator, rest.decode_body)
        metrics = MetricsApi(self.store, kubelets)
        exec_handler = ExecHandler(kubelets)
        proxy = HttpProxyHandler(self.store)
        self._closing.push_async_callback(proxy.close)
        return Routes(
            watch=WatchHandler(self.store, self.broadcasts, self._flow, self._conversions),
            streams={
                "log": LogHandler(kubelets),
                "exec": exec_handler,
                "attach": exec_handler,
                "portforward": PortForwardHandler(kubelets),
                "proxy": proxy,
            },
            subresources={
                "scale": subresources.handle_scale,
                "binding": subresources.handle_binding,
                "eviction": subresources.handle_eviction,
                "token": subresources.handle_token,
            },
            kinds={
                ("", "bindings"): subresources.handle_binding,
                ("metrics.k8s.io", "nodes"): metrics.nodes,
                ("metrics.k8s.io", "pods"): metrics.pods,
            }
            | {
                (kind.group, kind.plural): reviews.handle
                for kind in self.registry
                if kind.group in (AUTHENTICATION, AUTHORIZATION)
            },
            objects=rest.handle,
        )

    def _open_store(self) -> ObjectStore:
        settings = self.settings
        path = settings.data / "state.db"
        keys = load_keys(settings.data, settings.encryption_key, new_cluster=not path.exists())
        database = StateDatabase(path, durability=settings.durability, keys=keys)
        return ObjectStore(database, history_bytes=settings.history_bytes)

    async def _write_snapshot(self) -> Json:
        """Write the state to a file in the data folder, for ``gangline backup``."""
        path = self.settings.data / SNAPSHOT_FILE
        try:
            async with self._snapshot_lock:
                revision = await self.store.write_snapshot(path)
        except DatabaseError as error:
            raise internal(str(error)) from error
        return {"revision": revision}

    def _index(self, topic: str, body: bytes) -> tuple[dict[str, str], dict[str, str]]:
        plural, _, group = topic.partition(".")
        kind = self.registry.by_plural(group, plural)
        obj = read_json(body)
        return index_object(kind, obj) if kind else (obj["metadata"].get("labels") or {}, {})

    def _request_width(self, request: ApiRequest) -> int:
        """Return the seats of a request: a list takes more with its length, as in Kubernetes."""
        if request.verb != "list":
            return 1
        count = len(self.store.cache(request.kind.storage_name).records)
        limit = request.params.get("limit", "")
        if limit.isdecimal() and 0 < len(limit) < MAX_LIMIT_DIGITS:  # others are refused later
            count = min(count, int(limit) or count)
        return min(MAX_WIDTH, 1 + count // OBJECTS_PER_SEAT)

    async def _listen(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        pair = self.certificates.server
        context.load_cert_chain(pair.certificate, pair.key)
        context.load_verify_locations(self.ca_path)
        context.verify_mode = ssl.CERT_OPTIONAL
        self._http = make_http_server(self._api)
        runner = web.ServerRunner(self._http, shutdown_timeout=1.0)
        self._closing.push_async_callback(self._stop_listening, runner)
        await runner.setup()
        site = BoundedSite(
            runner, self.settings.host, self.settings.port, ssl_context=context, backlog=1024
        )
        await site.start()
        self._port = runner.addresses[0][1]

    async def _stop_listening(self, runner: web.ServerRunner) -> None:
        self.broadcasts.end_all()
        left = [c.transport for c in self._http.connections if c.transport is not None]
        await runner.cleanup()
        await abort_transports(left)

    def _start_background_work(self) -> None:
        self._crd_finalizer.start()
        self._closing.callback(self._crd_finalizer.stop)
        for work in (
            self._compact_forever(),
            self._event_expiry.run(),
            self._quota_status.run(),
            release_memory_forever(),
        ):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            self._closing.callback(task.cancel)

    async def _compact_forever(self) -> None:
        while True:
            await asyncio.sleep(COMPACT_INTERVAL_S)
            self.store.compact(time.monotonic() - self.settings.history_s)
            self.metrics.watches.set(self.broadcasts.count())
            self.metrics.revision.set(self.store.revision)


async def abort_transports(transports: list[asyncio.Transport]) -> None:
    """Abort connections: a clean TLS shutdown would wait for clients that disconnected."""
    for transport in transports:
        transport.abort()
    for _ in range(3):  # each iteration closes one layer of the TLS connections
        await asyncio.sleep(0)
