"""Events: counted instead of repeated, rate-limited, dropped instead of raised."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from gangline.api.core.core import Node
from gangline.api.core.pod import Pod
from gangline.api.meta.objects import ObjectMeta
from gangline.kube.controller.event_recorder import EventRecorder, object_reference
from unit.kube.fake_server import Thing, connected, failing, hanging_up, status_answer
from unit.kube.virtual_clock import virtual_time

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POD = Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="u"))


class Events:
    """Stores events as an API server does."""

    def __init__(self, server):
        self.stored = {}
        self.server = server
        server.handle_other = self.handle

    async def handle(self, request):
        body = await request.json()
        if request.method == "POST":
            name = body["metadata"]["name"]
            body["metadata"]["resourceVersion"] = "1"
            self.stored[name] = body
        else:
            name = request.path.rsplit("/", 1)[1]
            if name not in self.stored:
                return status_answer(404, "NotFound")
            self.stored[name].update(body)
        return web.json_response(self.stored[name])

    def all(self):
        return [(e["reason"], e["message"], e.get("count")) for e in self.stored.values()]


@pytest.fixture
async def events(server):
    return Events(server)


def recorder(client, **options):
    return EventRecorder(client, "test", now=lambda: NOW, **options)


async def test_event_has_all_fields_that_kubectl_describe_shows(client, events):
    async with recorder(client) as record:
        record.event(POD, "Warning", "Failed", "it failed")
    (event,) = events.stored.values()
    assert event["metadata"]["namespace"] == "ns"
    assert event["involvedObject"] == {
        "kind": "Pod",
        "namespace": "ns",
        "name": "p",
        "uid": "u",
        "apiVersion": "v1",
    }
    assert (event["type"], event["source"]) == ("Warning", {"component": "test"})
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-01-01T00:00:00Z"


async def test_repeated_event_increments_the_count(client, events):
    time = NOW
    async with EventRecorder(client, "test", now=lambda: time) as record:
        for _ in range(5):
            record.event(POD, "Normal", "Waiting", "for nodes")
            time += timedelta(seconds=1)
        record.event(POD, "Normal", "Started", "now")
    assert events.all() == [("Waiting", "for nodes", 5), ("Started", "now", 1)]


async def test_many_similar_things_become_one_event(client, events):
    async with recorder(client) as record:
        for number in range(20):
            record.event(POD, "Normal", "Waiting", f"{number} nodes are full")
    assert len(events.stored) == 11
    assert events.all()[-1] == (
        "Waiting",
        "(combined from similar events): 19 nodes are full",
        10,
    )


async def test_events_of_one_object_are_rate_limited(client, events):
    time = 0.0
    async with recorder(client, clock=lambda: time) as record:
        for number in range(100):
            record.event(POD, "Normal", f"R{number}", "x")
        other = Pod(metadata=ObjectMeta(name="other", namespace="ns"))
        record.event(other, "Normal", "Heard", "x")
        time = 301
        record.event(POD, "Normal", "Later", "x")
        await record._pending.join()
    reasons = [reason for reason, _, _ in events.all()]
    assert reasons[-2:] == ["Heard", "Later"]
    assert len(reasons) == 27


async def test_expired_event_is_recreated(client, events):
    async with recorder(client) as record:
        record.event(POD, "Normal", "Waiting", "x")
        await record._pending.join()
        events.stored.clear()
        record.event(POD, "Normal", "Waiting", "x")
    assert events.all() == [("Waiting", "x", 1)]


@pytest.mark.parametrize(
    "fault", [hanging_up, failing(403, "Forbidden"), failing(404, "NotFound"), failing(500, "x")]
)
async def test_what_cannot_be_sent_is_dropped(client, server, events, fault):
    server.faults.append(fault)
    async with recorder(client) as record:
        record.event(POD, "Normal", "Lost", "x")
        record.event(POD, "Normal", "Kept", "x")
    assert [reason for reason, _, _ in events.all()] == ["Kept"]


@virtual_time
async def test_unreachable_server_does_not_delay_callers():
    async def silent(request):
        await asyncio.get_running_loop().create_future()

    async with connected() as (server, client):
        server.faults += [silent] * 2000
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with recorder(client) as record:
            for number in range(5000):
                pod = Pod(metadata=ObjectMeta(name=f"p-{number}", namespace="ns"))
                record.event(pod, "Normal", "Lost", "x")
            assert loop.time() - began < 5
        assert loop.time() - began < 10


async def test_messages_are_cut_at_the_length_that_is_stored(client, events):
    async with recorder(client) as record:
        record.event(POD, "Normal", "Long", "x" * 5000)
    assert len(events.all()[0][1]) == 1024


async def test_events_of_nodes_live_in_the_default_namespace(client, events):
    async with recorder(client) as record:
        record.event(Node(metadata=ObjectMeta(name="n")), "Normal", "Up", "x")
    (event,) = events.stored.values()
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"]["kind"] == "Node"


def test_reference_has_the_kind_of_an_object_without_one():
    assert object_reference(POD).kind == "Pod"
    assert object_reference(Thing(kind="Thing", api_version="v1")).kind == "Thing"
    assert object_reference(object_reference(POD)) == object_reference(POD)
