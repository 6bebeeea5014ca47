"""Our client, informers, leader election and events against the embedded API server."""

import asyncio
from contextlib import asynccontextmanager

from gangline.api.core.core import ConfigMap
from gangline.api.meta.objects import ObjectMeta
from gangline.api.resources import CONFIG_MAPS, LEASES
from gangline.kube import errors
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.leader_election import LeaderElectionTiming, LeaderElector
from gangline.kube.informers.informer import Informer
from gangline.local.apiserver.server import ApiServer, ApiServerSettings

FAST = LeaderElectionTiming(lease_duration_s=2, renew_deadline_s=1.0, retry_s=0.2)


def config_map(name, **data):
    return ConfigMap(metadata=ObjectMeta(name=name), data=data)


async def put(client, name, **data):
    try:
        await client.create(CONFIG_MAPS, config_map(name, **data), "default")
    except errors.AlreadyExists:
        await client.patch(CONFIG_MAPS, name, {"data": data}, "default")


@asynccontextmanager
async def running(*coroutines):
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(informer, holds):
    notified = asyncio.Event()
    informer.add_listener(lambda old, new: notified.set())
    async with asyncio.timeout(20):
        while not holds():
            notified.clear()
            await notified.wait()


async def test_an_informer_follows_many_writers(client: ApiClient):
    informer = Informer(client, CONFIG_MAPS, "default", page_size=5)
    for number in range(12):
        await put(client, f"c-{number}", v="0")
    async with running(informer.run()):
        await asyncio.wait_for(informer.wait_for_sync(), 10)

        async def write(writer):
            for round_ in range(20):
                await put(client, f"c-{(writer + round_) % 12}", v=f"{writer}-{round_}")

        await asyncio.gather(*(write(writer) for writer in range(6)))
        truth = {c.metadata.name: c.data for c in await client.list(CONFIG_MAPS, "default")}
        await until(informer, lambda: {c.metadata.name: c.data for c in informer.items()} == truth)


async def test_a_restart_of_the_server_loses_nothing(tmp_path):
    settings = ApiServerSettings(data=tmp_path / "apiserver")
    server = ApiServer(settings)
    await server.start()
    async with ApiClient(server.config) as client:
        await put(client, "a", v="1")
        informer = Informer(client, CONFIG_MAPS, "default")
        changes = []
        informer.add_listener(
            lambda old, new: changes.append((bool(old), new and new.data.get("v")))
        )
        async with running(informer.run()):
            await asyncio.wait_for(informer.wait_for_sync(), 10)
            port = int(server.config.server.rsplit(":", 1)[1])
            await server.stop()
            server = ApiServer(ApiServerSettings(data=tmp_path / "apiserver", port=port))
            await server.start()
            await put(client, "a", v="2")
            await until(informer, lambda: (True, "2") in changes)
            assert changes == [(False, "1"), (True, "2")]
    await server.stop()


async def test_leadership_passes_from_one_to_the_next(client: ApiClient):
    led = asyncio.Queue()

    def candidate(name):
        async def lead():
            await led.put(name)
            await asyncio.get_running_loop().create_future()

        return LeaderElector(client, "lock", "default", name, timing=FAST).run(lead)

    async with running(candidate("a"), candidate("b")) as tasks:
        first = await asyncio.wait_for(led.get(), 10)
        lease = await client.get(LEASES, "lock", "default")
        assert lease.spec.holder_identity == first
        tasks["ab".index(first)].cancel()
        second = await asyncio.wait_for(led.get(), 10)
        assert {first, second} == {"a", "b"}
        lease = await client.get(LEASES, "lock", "default")
        assert (lease.spec.holder_identity, lease.spec.lease_transitions) == (second, 1)
