"""Updates DNS names and service addresses when objects of the API server change.

Listeners on services, endpoints and pods update the zone immediately. Sockets and hosts files
follow a few milliseconds later, so that many changes are applied together.
"""

import asyncio
from collections.abc import Callable

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta.objects import Object
from gangline.api.resources import ENDPOINTS, PODS, SERVICES
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.kube.informers.shared_informers import SharedInformerFactory
from gangline.local.network.dns_zone import DnsZone, service_records
from gangline.local.network.service_forwarder import ServiceForwarder, ServiceRoutes, service_routes

BATCH_S = 0.01
RETRY_S = 5.0


class NetworkUpdater:
    """Updates a zone and a forwarder from informers.

    ``fixed`` routes always exist (the API server's own). ``names_changed`` is called when hosts
    files have to be rewritten.
    """

    def __init__(
        self,
        informers: SharedInformerFactory,
        zone: DnsZone,
        forwarder: ServiceForwarder,
        *,
        fixed: ServiceRoutes,
        names_changed: Callable[[], None] | None = None,
    ) -> None:
        self._zone = zone
        self._forwarder = forwarder
        self._routes: dict[ObjectKey | None, ServiceRoutes] = {None: fixed}
        self._names_changed = names_changed
        self._work = asyncio.Event()
        self._work.set()
        self._services = informers.informer(SERVICES)
        self._endpoints = informers.informer(ENDPOINTS)
        pods = informers.informer(PODS)
        self._services.add_listener(self._service_changed)
        self._endpoints.add_listener(self._service_changed)
        pods.add_listener(self._pod_changed)

    async def run(self) -> None:
        """Apply changes until cancelled."""
        while True:
            await self._work.wait()
            await asyncio.sleep(BATCH_S)
            self._work.clear()
            if self._names_changed is not None:
                self._names_changed()
            merged = {address: to for part in self._routes.values() for address, to in part.items()}
            if not await self._forwarder.apply(merged):
                # An address was taken, perhaps by a listener that is being closed.
                asyncio.get_running_loop().call_later(RETRY_S, self._work.set)

    def _service_changed(self, old: Object | None, new: Object | None) -> None:
        changed = new or old
        assert changed is not None
        key = object_key(changed)
        service = self._services.get(key.namespace, key.name)
        endpoints = self._endpoints.get(key.namespace, key.name)
        records = service_records(service, endpoints) if service is not None else None
        table = service_routes([(service, endpoints)]) if service is not None else {}
        renamed = self._zone.set_service(key, records)
        rerouted = self._routes.get(key, {}) != table
        if table:
            self._routes[key] = table
        else:
            self._routes.pop(key, None)
        if renamed or rerouted:
            self._work.set()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        before, after = _address(old), _address(new)
        if before == after:
            return
        if before is not None:
            self._zone.set_pod(before[0], None)
        if after is not None:
            self._zone.set_pod(*after)
        self._work.set()


def _address(pod: Pod | None) -> tuple[str, str] | None:
    if (
        pod is None
        or not pod.status.pod_ip
        or pod.spec.host_network
        or pod.status.phase in TERMINAL_PHASES
    ):
        return None
    return pod.status.pod_ip, pod.metadata.namespace
