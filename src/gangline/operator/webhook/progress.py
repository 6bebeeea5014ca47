"""What pods need to reach the progress endpoint: its address, and the CAs that they trust.

The CAs are in a ConfigMap of each namespace with jobs, which every pod of a job mounts beside its
token. It is written before the first pod of the namespace, and again when the CAs change; the
kubelet then replaces the mounted file.

Pods of the embedded cluster have networks of their own, but reach its services. There the operator
is reached through a Service without a selector, whose address is in the certificate.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from gangline.api.core.core import ConfigMap
from gangline.api.jobs.progress import AUTHORITY_CONFIG_MAP, AUTHORITY_KEY
from gangline.api.resources import CONFIG_MAPS, ENDPOINTS, SERVICES
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError
from gangline.kube.informers.informer import Informer
from gangline.operator.webhook.certificate import CertificateAuthority
from gangline.operator.webhook.configuration import (
    FIELD_MANAGER,
    OWNER_LABELS,
    DeduplicatedWarnings,
)
from gangline.operator.webhook.settings import POD_SERVICE_PORT, WebhookSettings

log = logging.getLogger(__name__)

RETRY_S = 600.0
"""Seconds after which a ConfigMap that could not be written is tried again, besides new pods."""
READY_TIMEOUT_S = 10.0
"""Seconds for which the first pods wait until the endpoint is served."""
_PORT_NAME = "webhook"


class AuthorityPublisher:
    """Publishes the CAs in the namespaces of jobs; only the leader does."""

    def __init__(self, client: ApiClient, namespaces: Sequence[str] = ()) -> None:
        """Without ``namespaces`` the jobs of all namespaces are served."""
        self._client = client
        self.bundle = ""
        """The CAs, as PEM; empty until they are known."""
        self._ready, self._changed = asyncio.Event(), asyncio.Event()
        self._published: dict[str, str] = {}
        """What the ConfigMap of a namespace contains."""
        self._lock = asyncio.Lock()
        self._warnings = DeduplicatedWarnings(log)
        self._informer = Informer(
            client, CONFIG_MAPS, namespaces, fields=f"metadata.name={AUTHORITY_CONFIG_MAP}"
        )
        self._informer.add_listener(self._observe)

    def set_authorities(self, authorities: Iterable[CertificateAuthority]) -> None:
        bundle = "".join(authority.pem for authority in authorities)
        if bundle != self.bundle:
            self.bundle = bundle
            self._ready.set()
            self._changed.set()

    async def wait_until_ready(self) -> None:
        """Wait for the first CAs, for a limited time: jobs run without the endpoint too."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._ready.wait()

    async def publish(self, namespace: str) -> None:
        """Write the ConfigMap, unless it is current. A failure is logged, and tried again later."""
        if self._published.get(namespace) == self.bundle:
            return
        async with self._lock:
            bundle = self.bundle
            if self._published.get(namespace) == bundle:
                return
            manifest = _manifest("ConfigMap", AUTHORITY_CONFIG_MAP, data={AUTHORITY_KEY: bundle})
            try:
                await self._client.apply(
                    CONFIG_MAPS, manifest, namespace, manager=FIELD_MANAGER, force=True
                )
                self._published[namespace] = bundle
            except ApiError as error:
                self._warnings.warn(namespace, f"pods of {namespace} cannot report: {error}")

    async def run(self, namespaces: Callable[[], Iterable[str]]) -> None:
        """Keep the ConfigMaps of these namespaces current until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informer.run())
            await self._informer.wait_for_sync()
            while True:
                self._changed.clear()
                for namespace in set(namespaces()) if self.bundle else ():
                    await self.publish(namespace)
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await self._changed.wait()

    def _observe(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Take note of a ConfigMap that another writer has changed or deleted."""
        config_map = new or old
        assert config_map is not None
        content = new.data.get(AUTHORITY_KEY, "") if new else ""
        self._published[config_map.metadata.namespace] = content
        if content != self.bundle:
            self._changed.set()


async def publish_service(client: ApiClient, settings: WebhookSettings) -> str:
    """Create the Service through which pods reach an operator outside of the cluster; return its
    address. Raises ApiError: it cannot be created.
    """
    spec = {"ports": [{"name": _PORT_NAME, "port": POD_SERVICE_PORT, "protocol": "TCP"}]}
    service = await client.apply(
        SERVICES,
        _manifest("Service", settings.service, spec=spec),
        settings.namespace,
        manager=FIELD_MANAGER,
        force=True,
    )
    return service.spec.cluster_ip


async def publish_endpoints(client: ApiClient, settings: WebhookSettings, port: int) -> None:
    """Let the Service lead to this operator. Raises ApiError: it cannot be written."""
    addresses = [{"ip": settings.address.host}]
    ports = [{"name": _PORT_NAME, "port": port, "protocol": "TCP"}]
    subsets = [{"addresses": addresses, "ports": ports}]
    await client.apply(
        ENDPOINTS,
        _manifest("Endpoints", settings.service, subsets=subsets),
        settings.namespace,
        manager=FIELD_MANAGER,
        force=True,
    )


def _manifest(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": dict(OWNER_LABELS)}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}
