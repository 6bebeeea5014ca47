"""Informers: the copy equals the state of the server, whatever faults occur, in both formats."""

import asyncio
import random
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web

from gangline.api.meta.objects import ObjectMeta
from gangline.kube.client.client import ApiClient
from gangline.kube.informers.indexer import Indexer
from gangline.kube.informers.informer import Informer, ObjectKey, SharedInformerFactory, object_key
from gangline.scheduler.wire import LEAN_PODS, LeanPod
from unit.kube.fake_server import (
    THINGS,
    FakeServer,
    Thing,
    answering,
    binary,
    connected,
    failing,
    hanging_up,
    streaming,
)
from unit.kube.protobuf.encoding import envelope, frame, list_body, pod, status
from unit.kube.virtual_clock import run_jumping, virtual_time


class Heard:
    """A listener that records its calls."""

    def __init__(self, informer):
        self.changes = []
        informer.add_listener(self)

    def __call__(self, old, new):
        subject = new or old
        word = "new" if old is None else "gone" if new is None else "changed"
        self.changes.append((word, subject.metadata.name))

    def take(self):
        changes, self.changes = self.changes, []
        return changes


def sizes(informer):
    return {thing.metadata.name: thing.spec.size for thing in informer.items()}


def expected(server):
    return {name: thing["spec"]["size"] for name, thing in server.things.items()}


async def until(informer, holds):
    """Wait until a condition is true; it is checked after each notification."""
    notified = asyncio.Event()
    informer.add_listener(lambda old, new: notified.set())
    async with asyncio.timeout(5_000):
        while not holds():
            notified.clear()
            await notified.wait()


async def caught_up(informer, server):
    """Wait until the informer has seen the newest change."""
    await until(informer, lambda: sizes(informer) == expected(server))


@asynccontextmanager
async def following(client, **options):
    informer = Informer(client, THINGS, **options)
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.wait_for_sync(), 5_000)
        yield informer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_copy_follows_the_server(client, server):
    await server.put("a", size=1)
    await server.put("b", size=2)
    async with following(client, page_size=1) as informer:
        heard = Heard(informer)
        assert heard.take() == [("new", "a"), ("new", "b")]
        await server.put("a", size=5)
        await server.remove("b")
        await server.put("c", size=3)
        await caught_up(informer, server)
        assert heard.take() == [("changed", "a"), ("gone", "b"), ("new", "c")]
        assert informer.get("default", "a").spec.size == 5
        assert informer.get("default", "b") is None
        assert len(informer) == 2


async def test_a_bookmark_moves_the_revision_on(client, server):
    await server.put("a")
    async with following(client) as informer:
        await server.bookmark()
        await server.put("b", size=1)
        await caught_up(informer, server)
        assert informer.resource_version == "3"
        assert Heard(informer).take() == [("new", "a"), ("new", "b")]


@virtual_time
async def test_a_watch_that_ends_is_resumed_without_listing_again():
    async with connected() as (server, client):
        await server.put("a", size=1)
        server.watch_faults += [streaming(), hanging_up, failing(500, "InternalError")]
        async with following(client) as informer:
            heard = Heard(informer)
            await server.put("a", size=2)
            await caught_up(informer, server)
            assert heard.take() == [("new", "a"), ("changed", "a")]
        lists = [seen for seen in server.seen if not seen.query.get("watch")]
        assert len(lists) == 1


@virtual_time
async def test_an_expired_revision_is_made_up_for_by_telling_the_differences():
    async with connected() as (server, client):
        for name in ("same", "changed", "gone", "recreated"):
            await server.put(name, size=1)

        async def meanwhile(request):
            await server.put("changed", size=2)
            await server.remove("gone")
            await server.remove("recreated")
            await server.put("recreated", size=3)
            await server.put("new", size=4)
            server.compact()
            return await failing(410, "Expired")(request)

        server.watch_faults.append(meanwhile)
        informer = Informer(client, THINGS)
        heard = Heard(informer)
        task = asyncio.create_task(informer.run())
        await until(informer, lambda: len(heard.changes) == 9)
        changes = sorted(heard.take()[4:])
        assert changes == [
            ("changed", "changed"),
            ("gone", "gone"),
            ("gone", "recreated"),
            ("new", "new"),
            ("new", "recreated"),
        ]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@virtual_time
async def test_a_server_that_is_away_is_not_flooded_and_nothing_is_lost():
    async with connected() as (server, client):
        await server.put("a", size=1)
        async with following(client) as informer:
            loop = asyncio.get_running_loop()
            began = loop.time()
            attempts = []

            async def away(request):
                attempts.append(loop.time())
                if loop.time() - began < 60:
                    server.watch_faults.insert(0, away)
                return await failing(503, "ServiceUnavailable")(request)

            server.watch_faults.append(away)
            server.changes.append((server.revision, "ERROR", {"code": 500, "reason": "x"}))
            await server.put("a", size=2)
            await server.put("b", size=3)
            await caught_up(informer, server)
            assert 2 <= len(attempts) < 15
            assert loop.time() - began < 120
            assert informer.problem is None


@virtual_time
async def test_server_that_always_replies_expired_is_not_flooded():
    async with connected() as (server, client):
        server.oldest = 10**9
        async with following(client):
            await asyncio.sleep(120)
        assert len(server.seen) < 30


@virtual_time
async def test_forbidden_list_is_reported_and_retried():
    async with connected() as (server, client):
        server.faults += [failing(403, "Forbidden")] * 3
        informer = Informer(client, THINGS)
        task = asyncio.create_task(informer.run())
        async with asyncio.timeout(100):
            while informer.problem is None:
                await asyncio.sleep(0.01)
        assert "as scripted" in str(informer.problem)
        assert not informer.has_synced
        await asyncio.wait_for(informer.wait_for_sync(), 100)
        assert informer.problem is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("code", "is_answer"), [(404, True), (403, False), (503, False)])
@virtual_time
async def test_a_kind_that_the_server_does_not_have_is_not_waited_for(code, is_answer):
    async with connected() as (server, client):
        server.faults += [failing(code, "Scripted")] * 3
        informer = Informer(client, THINGS)
        task = asyncio.create_task(informer.run())
        await asyncio.wait_for(informer.wait_for_answer(), 5_000)
        assert informer.has_synced is not is_answer
        await asyncio.wait_for(informer.wait_for_sync(), 5_000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_objects_are_found_by_index(client, server):
    await server.put("a", team="red")
    await server.put("b", team="red")
    await server.put("c")
    teams = {"team": lambda thing: filter(None, [thing.metadata.labels.get("team")])}
    async with following(client, indexes=teams) as informer:
        assert [t.metadata.name for t in informer.by_index("team", "red")] == ["a", "b"]
        await server.put("a", team="blue")
        await server.remove("b")
        await server.put("d", size=1)
        await caught_up(informer, server)
        assert informer.by_index("team", "red") == []
        assert [t.metadata.name for t in informer.by_index("team", "blue")] == ["a"]
        with pytest.raises(KeyError):
            informer.by_index("colour", "red")


async def test_only_what_is_kept_costs_memory(client, server):
    await server.put("a", size=7, team="red")

    def lean(thing):
        bare = msgspec.structs.replace(thing.metadata, labels={})
        return msgspec.structs.replace(thing, metadata=bare)

    async with following(client, transform=lean) as informer:
        await server.put("b", size=8, team="red")
        await caught_up(informer, server)
        assert all(thing.metadata.labels == {} for thing in informer.items())


async def test_a_listener_that_fails_does_not_stop_the_others(client, server, caplog):
    await server.put("a")

    def broken(old, new):
        raise KeyError("absurd object")

    async with following(client) as informer:
        informer.add_listener(broken)
        heard = Heard(informer)
        await server.put("b")
        await server.put("c", size=1)
        await caught_up(informer, server)
        assert heard.take() == [("new", "a"), ("new", "b"), ("new", "c")]
    assert "listener failed" in caplog.text


async def test_an_object_that_stops_to_fit_leaves_the_copy(client, server):
    await server.put("a")
    refused = []
    async with following(client) as informer:
        informer.on_malformed(refused.append)
        heard = Heard(informer)
        await server.put("a", size="huge")
        await server.put("b", size=1)
        await until(informer, lambda: len(heard.changes) >= 3)
        assert heard.take() == [("new", "a"), ("gone", "a"), ("new", "b")]
    assert [malformed.metadata.name for malformed in refused] == ["a"]


@virtual_time
async def test_resync_repeats_all_objects():
    async with connected() as (server, client):
        await server.put("a")
        async with following(client, resync_s=60) as informer:
            heard = Heard(informer)
            await asyncio.sleep(130)
            assert heard.take() == [("new", "a"), ("changed", "a"), ("changed", "a")]


def test_cache_is_correct_after_random_faults_and_no_event_is_repeated():
    """Random changes and faults of a server: the notifications must add up to its state."""

    async def scenario(seed):
        dice = random.Random(seed)
        async with connected() as (server, client):
            informer = Informer(client, THINGS, page_size=2)
            notified = {}

            def replay(old, new):
                key = object_key(new or old)
                assert notified.get(key) == (old.metadata.resource_version if old else None)
                if new is None:
                    del notified[key]
                else:
                    notified[key] = new.metadata.resource_version

            informer.add_listener(replay)
            task = asyncio.create_task(informer.run())
            faults = [hanging_up, failing(500, "x"), failing(429, "x", 1), failing(410, "Gone")]
            for _ in range(40):
                match dice.randrange(5):
                    case 0 | 1:
                        await server.put(f"t-{dice.randrange(6)}", size=dice.randrange(100))
                    case 2 if server.things:
                        await server.remove(dice.choice(sorted(server.things)))
                    case 3:
                        server.watch_faults.append(dice.choice(faults))
                    case 4:
                        server.compact()
                        await asyncio.sleep(dice.choice([0, 0.1, 30]))
            await caught_up(informer, server)
            assert notified == {
                ObjectKey("default", name): thing["metadata"]["resourceVersion"]
                for name, thing in server.things.items()
            }
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    for seed in range(20):
        run_jumping(scenario(seed))


async def test_two_controllers_share_one_copy(client, server):
    await server.put("a", team="red")
    shared = SharedInformerFactory(client)
    first = shared.informer(THINGS, indexes={"team": lambda t: t.metadata.labels.values()})
    second = shared.informer(THINGS, indexes={"name": lambda t: [t.metadata.name]})
    other = shared.informer(THINGS, labels="team=red")
    assert first is second
    assert other is not first
    task = asyncio.create_task(shared.run())
    await asyncio.wait_for(shared.wait_for_sync(), 5)
    assert first.by_index("team", "red") == first.by_index("name", "a") != []
    with pytest.raises(RuntimeError, match="before the informers run"):
        shared.informer(THINGS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_list_of_nothing_syncs(client, server):
    assert Informer(client, THINGS), "an informer is one also while it holds nothing"
    server.faults.append(answering({"metadata": {"resourceVersion": "0"}}))
    async with following(client) as informer:
        assert list(informer.items()) == []


def test_a_key_reads_as_people_write_it():
    assert str(ObjectKey("ns", "a")) == "ns/a"
    assert str(ObjectKey("", "node-1")) == "node-1"
    assert object_key(Thing()) == ObjectKey("", "")


async def test_several_namespaces_are_followed_each_by_itself(client, server):
    """The server is asked for each namespace alone: rights in these are enough."""
    await server.put("a", size=1)
    async with following(client, namespace=["default", "team"]) as informer:
        paths = {seen.path for seen in server.seen}
        assert paths == {
            "/api/v1/namespaces/default/things",
            "/api/v1/namespaces/team/things",
        }
        assert informer.has_synced
        assert informer.problem is None


async def test_a_list_of_one_namespace_leaves_the_others_alone():
    def thing(namespace, name):
        return Thing(metadata=ObjectMeta(name=name, namespace=namespace))

    store = Indexer({})
    await store.replace([thing("one", "a"), thing("one", "b")], "one")
    await store.replace([thing("two", "a")], "two")
    await store.replace([thing("one", "b")], "one")
    assert sorted(map(str, map(object_key, store.items()))) == ["one/b", "two/a"]


def changed(type_: str, *parts: str) -> bytes:
    return frame(type_, envelope("v1", "Pod", pod(*parts)))


async def never(request: web.Request) -> web.StreamResponse:
    """A watch without events."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_it_starts_from_the_cache_and_never_goes_back(
    client: ApiClient, server: FakeServer
) -> None:
    """Only the first list may be of any revision; each watch goes on where the copy is."""
    gone = frame("ERROR", status(410, "Expired", "too old"))
    server.faults += [
        failing(429, "TooManyRequests", 0),
        binary(list_body("v1", "PodList", [pod("a"), pod("b")], "10")),
        binary(changed("MODIFIED", "a", "n1", "12"), changed("DELETED", "b", "", "13")),
        binary(changed("BOOKMARK", "", "", "20")),
        binary(gone),
        binary(list_body("v1", "PodList", [pod("c", "", "30")], "31")),
        never,
    ]
    informer: Informer[LeanPod] = Informer(client, LEAN_PODS, from_cache=True)
    changes: list[tuple[str, str]] = []
    listed_again = asyncio.Event()

    def note(old: LeanPod | None, new: LeanPod | None) -> None:
        subject = new or old
        assert subject is not None
        changes.append((subject.metadata.name, new.spec.node_name if new else "gone"))
        if subject.metadata.name == "c":
            listed_again.set()

    informer.add_listener(note)
    running = asyncio.create_task(informer.run())
    async with asyncio.timeout(60):
        await listed_again.wait()
        while len(server.seen) < 7:
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert changes == [("a", ""), ("b", ""), ("a", "n1"), ("b", "gone"), ("a", "gone"), ("c", "")]
    asked = [
        (seen.query.get("watch", "list"), seen.query.get("resourceVersion")) for seen in server.seen
    ]
    assert asked == [
        ("list", "0"),
        ("list", "0"),
        ("true", "10"),
        ("true", "13"),
        ("true", "20"),
        ("list", None),
        ("true", "31"),
    ]
    [times] = informer.list_times
    assert (times.objects, times.is_protobuf) == (1, True)
    assert times.cache_s > 0
