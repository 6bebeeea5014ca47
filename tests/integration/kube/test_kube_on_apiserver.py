"""Our client, informers, leader election and events against the embedded API server."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gangline.api.core.core import ConfigMap, Namespace
from gangline.api.meta.objects import ObjectMeta
from gangline.api.resources import CONFIG_MAPS, EVENTS, LEASES, NAMESPACES
from gangline.kube import errors
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.config.credentials import Credential, StaticCredential
from gangline.kube.controller.event_recorder import EventRecorder
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


async def test_a_long_list_comes_in_pages_of_one_revision(client: ApiClient):
    for number in range(25):
        await put(client, f"c-{number:02}")
    listing = await client.list(CONFIG_MAPS, "default", limit=7)
    assert [item.metadata.name for item in listing] == [f"c-{n:02}" for n in range(25)]
    assert listing.items[0].kind == "ConfigMap"


async def test_selections_are_made_by_the_server(client: ApiClient):
    marked = ConfigMap(metadata=ObjectMeta(name="marked", labels={"team": "red"}))
    await client.create(CONFIG_MAPS, marked, "default")
    await put(client, "plain")
    by_label = await client.list(CONFIG_MAPS, "default", labels="team in (red,blue)")
    by_field = await client.list(CONFIG_MAPS, "default", fields="metadata.name=plain")
    assert [item.metadata.name for item in by_label] == ["marked"]
    assert [item.metadata.name for item in by_field] == ["plain"]


async def test_every_kind_of_patch_is_understood(client: ApiClient):
    await put(client, "a", x="1")
    await client.patch(CONFIG_MAPS, "a", {"data": {"y": "2"}}, "default")
    await client.patch(
        CONFIG_MAPS,
        "a",
        [{"op": "test", "path": "/data/y", "value": "2"}, {"op": "remove", "path": "/data/x"}],
        "default",
        kind=PatchKind.JSON,
    )
    strategic = {"data": {"z": "3"}}
    await client.patch(CONFIG_MAPS, "a", strategic, "default", kind=PatchKind.STRATEGIC)
    desired = ConfigMap(metadata=ObjectMeta(name="a"), data={"w": "4"})
    applied = await client.apply(CONFIG_MAPS, desired, "default", manager="test")
    assert applied.data == {"y": "2", "z": "3", "w": "4"}


async def test_a_field_of_another_manager_is_taken_by_force_only(client: ApiClient):
    mine = ConfigMap(metadata=ObjectMeta(name="a"), data={"x": "1"})
    await client.apply(CONFIG_MAPS, mine, "default", manager="first")
    theirs = ConfigMap(metadata=ObjectMeta(name="a"), data={"x": "2"})
    with pytest.raises(errors.Conflict, match="first"):
        await client.apply(CONFIG_MAPS, theirs, "default", manager="second")
    taken = await client.apply(CONFIG_MAPS, theirs, "default", manager="second", force=True)
    assert taken.data == {"x": "2"}


async def test_a_dry_run_stores_nothing(client: ApiClient):
    made = await client.create(CONFIG_MAPS, config_map("a"), "default", dry_run=True)
    assert made.metadata.name == "a"
    with pytest.raises(errors.NotFound):
        await client.get(CONFIG_MAPS, "a", "default")


async def test_only_the_object_that_is_meant_is_deleted(client: ApiClient):
    await put(client, "a")
    with pytest.raises(errors.Conflict):
        await client.delete(CONFIG_MAPS, "a", "default", uid="another")
    uid = (await client.get(CONFIG_MAPS, "a", "default")).metadata.uid
    await client.delete(CONFIG_MAPS, "a", "default", uid=uid, propagation="Background")
    with pytest.raises(errors.NotFound):
        await client.delete(CONFIG_MAPS, "a", "default")


async def test_objects_without_a_namespace_are_addressed_without_one(client: ApiClient):
    await client.create(NAMESPACES, Namespace(metadata=ObjectMeta(name="team")))
    assert (await client.get(NAMESPACES, "team")).metadata.name == "team"


async def test_a_stranger_is_not_let_in(api_server: ApiServer):
    stranger = replace(api_server.config, credentials=StaticCredential(Credential("Bearer x")))
    async with ApiClient(stranger) as client:
        with pytest.raises(errors.Unauthorized):
            await client.list(CONFIG_MAPS, "default")


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


async def test_events_are_stored_and_counted(client: ApiClient):
    await put(client, "a")
    subject = await client.get(CONFIG_MAPS, "a", "default")
    async with EventRecorder(client, "test") as recorder:
        for _ in range(3):
            recorder.event(subject, "Normal", "Repeated", "the same")
    (event,) = await client.list(EVENTS, "default")
    assert (event.count, event.reason, event.message) == (3, "Repeated", "the same")
    assert event.involved_object.kind == "ConfigMap"
