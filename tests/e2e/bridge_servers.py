"""What pods of the real Kubernetes reach at the bridge: ``bridge_servers.py KUBECONFIG ADDRESS``.

DNS follows services and endpoints by watches. The scripts bring a name server that asks kubectl for
everything twice a second, which takes a third of a processor while tests run; they start it only
where none runs yet.

The API server listens on 127.0.0.1 alone, and advertises the address of the bridge. Connections to
that address are forwarded to it, so that pods reach it by the service ``kubernetes``, as usual.
"""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gangline.api.meta.objects import Object
from gangline.api.resources import ENDPOINTS, SERVICES
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config
from gangline.kube.informers.informer import Informer, object_key
from gangline.local.network.cluster_network import ServiceForwarder, ServiceRoute
from gangline.local.network.dns import DnsServer, DnsZone, service_records

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


async def serve(zone: DnsZone, kubeconfig: Path, address: str) -> None:
    """Serve as soon as the address exists: it appears with the first pod."""
    names = DnsServer(zone, address)
    while True:
        try:
            await names.start()
        except OSError:
            await asyncio.sleep(AGAIN_S)
        else:
            break
    server = urlsplit(load_config(str(kubeconfig)).server)
    assert server.hostname
    assert server.port
    target = (server.hostname, server.port)
    forwarder = ServiceForwarder()
    assert await forwarder.apply({(address, server.port): ServiceRoute((target,))})
    await asyncio.Event().wait()


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Run concurrently until one of them fails."""
    async with asyncio.TaskGroup() as tasks:
        for each in work:
            tasks.create_task(each)


if __name__ == "__main__":
    names, config = DnsZone(), Path(sys.argv[1])
    asyncio.run(together(follow(config, names), serve(names, config, sys.argv[2])))
