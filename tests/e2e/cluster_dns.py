"""DNS of the real Kubernetes, for its pods: ``cluster_dns.py KUBECONFIG ADDRESS``.

Follows services and endpoints by watches. The scripts bring a name server that asks kubectl for
everything twice a second, which takes a third of a processor while tests run; they start it only
where none runs yet.
"""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from gangline.api.meta.objects import Object
from gangline.api.resources import ENDPOINTS, SERVICES
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config
from gangline.kube.informers.informer import Informer, object_key
from gangline.local.network.dns_server import DnsServer
from gangline.local.network.dns_zone import DnsZone, service_records

AGAIN_S = 0.1


async def follow(kubeconfig: Path, zone: DnsZone) -> None:
    """Keep the zone current with the API server."""
    async with ApiClient(load_config(str(kubeconfig))) as client:
        services, endpoints = Informer(client, SERVICES), Informer(client, ENDPOINTS)

        def changed(old: Object | None, new: Object | None) -> None:
            subject = new or old
            assert subject
            key = object_key(subject)
            service = services.get(key.namespace, key.name)
            there = endpoints.get(key.namespace, key.name)
            zone.set_service(key, service_records(service, there) if service else None)

        services.add_listener(changed)
        endpoints.add_listener(changed)
        await together(services.run(), endpoints.run())


async def serve(zone: DnsZone, address: str) -> None:
    """Serve as soon as the address exists: it appears with the first pod."""
    server = DnsServer(zone, address)
    while True:
        try:
            await server.start()
        except OSError:
            await asyncio.sleep(AGAIN_S)
        else:
            await asyncio.Event().wait()


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Run concurrently until one of them fails."""
    async with asyncio.TaskGroup() as tasks:
        for each in work:
            tasks.create_task(each)


if __name__ == "__main__":
    names = DnsZone()
    asyncio.run(together(follow(Path(sys.argv[1]), names), serve(names, sys.argv[2])))
