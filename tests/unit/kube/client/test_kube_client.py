"""The client against a server that fails in every known way."""

import asyncio
import gc
import json
import time
from contextlib import aclosing
from email.utils import formatdate
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gangline.api.meta.objects import ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.kube import errors
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.config.config import ClusterConfig
from gangline.kube.config.credentials import Credential
from gangline.kube.http import transport
from gangline.kube.rate_limit import TokenBucket
from unit.kube.fake_server import (
    THINGS,
    Thing,
    ThingSpec,
    answering,
    connected,
    failing,
    hanging_up,
    streaming,
)
from unit.kube.virtual_clock import virtual_time

THING = "/api/v1/namespaces/default/things/a"
ANY_THINGS: Resource[Any] = Resource(dict, "", "v1", "things", "Thing")


def event(kind: str, name: str, revision: int, **more: object) -> bytes:
    metadata = {"name": name, "namespace": "default", "resourceVersion": str(revision)}
    return json.dumps({"type": kind, "object": {"metadata": metadata, **more}}).encode() + b"\n"


async def watch_all(client, **options):
    async with aclosing(client.watch(THINGS, resource_version="0", **options)) as events:
        return [found async for found in events]


async def test_objects_arrive_typed(client, server):
    server.routes["GET", THING] = answering({"metadata": {"name": "a"}, "spec": {"size": 3}})
    thing = await client.get(THINGS, "a", "default")
    assert thing == Thing(metadata=ObjectMeta(name="a"), spec=ThingSpec(size=3))


async def test_objects_of_any_kind_arrive_as_dicts_or_bytes(client, server):
    server.routes["GET", THING] = answering({"kind": "Thing", "x": [1]})
    assert await client.get(ANY_THINGS, "a", "default") == {"kind": "Thing", "x": [1]}
    raw = Resource(msgspec.Raw, "", "v1", "things", "Thing")
    assert json.loads(bytes(await client.get(raw, "a", "default")))["x"] == [1]


async def test_the_time_of_the_server_is_compared_with_the_own(client, server):
    async def answer(request):
        return web.json_response({}, headers={"Date": formatdate(time.time() + 3600, usegmt=True)})

    assert client.transport.clock_skew_s() is None
    server.routes["GET", THING] = answer
    await client.get(THINGS, "a", "default")
    assert client.transport.clock_skew_s() == pytest.approx(-3600, abs=600)


async def test_listed_objects_have_api_version_and_kind(client, server):
    await server.put("a")
    (thing,) = await client.list(THINGS)
    assert (thing.kind, thing.api_version) == ("Thing", "v1")


async def test_a_list_without_items_is_empty(client, server):
    server.faults.append(answering({"metadata": {"resourceVersion": "5"}, "items": None}))
    listing = await client.list(THINGS)
    assert (listing.items, listing.resource_version) == ([], "5")


async def test_one_malformed_object_does_not_spoil_the_list(client, server):
    for number in range(3):
        await server.put(f"t-{number}")
    server.things["t-1"]["spec"]["size"] = "huge"
    listing = await client.list(THINGS)
    assert [thing.metadata.name for thing in listing] == ["t-0", "t-2"]
    (malformed,) = listing.malformed
    assert malformed.metadata.name == "t-1"
    assert "$.spec.size" in malformed.error


async def test_metadata_that_does_not_fit_still_names_the_object(client, server):
    await server.put("a")
    server.things["a"]["metadata"]["labels"] = {"app": 5}
    listing = await client.list(THINGS)
    assert [malformed.metadata.name for malformed in listing.malformed] == ["a"]


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.BadRequest),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (410, "Gone", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (504, "Timeout", errors.ServerTimeout),
        (404, "", errors.NotFound),
        (409, "", errors.Conflict),
        (500, "InternalError", errors.ApiError),
    ],
)
async def test_a_refusal_is_raised_as_its_type(client, server, code, reason, kind):
    server.routes["GET", THING] = failing(code, reason)
    with pytest.raises(errors.ApiError, match="as scripted") as caught:
        await client.get(THINGS, "a", "default")
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.reason) == (code, reason)


async def test_an_answer_that_is_no_status_is_still_understood(client, server):
    async def proxy_page(request):
        return web.Response(status=502, text="<html>bad\n  gateway</html>" + "x" * 9999)

    server.routes["GET", THING] = proxy_page
    with pytest.raises(errors.ApiError, match="HTTP 502: <html>bad gateway") as caught:
        await client.get(THINGS, "a", "default")
    assert len(str(caught.value)) < 600


async def test_reply_that_is_no_object_raises(client, server):
    server.routes["GET", THING] = answering(["not", "an", "object"])
    with pytest.raises(errors.ApiError, match="not a Thing"):
        await client.get(THINGS, "a", "default")


@virtual_time
async def test_throttled_request_is_repeated_after_the_servers_delay():
    async with connected() as (server, client):
        server.faults.append(failing(429, "TooManyRequests", 3))
        server.faults.append(failing(503, "ServiceUnavailable", 2))
        server.routes["POST", "/api/v1/namespaces/default/things"] = answering({})
        loop = asyncio.get_running_loop()
        began = loop.time()
        await client.create(THINGS, Thing(), "default")
        assert 5 <= loop.time() - began < 7
        assert [seen.method for seen in server.seen] == ["POST"] * 3


async def test_eviction_uses_the_policy_version_of_an_old_server(client, server):
    status = {"message": 'no kind "Eviction" is registered for version "policy/v1"', "code": 400}
    server.faults.append(answering({"kind": "Status", **status}, 400))
    server.routes["POST", "/api/v1/namespaces/default/pods/a/eviction"] = answering({})
    await client.evict("a", "default")
    await client.evict("a", "default")
    versions = [seen.json()["apiVersion"] for seen in server.seen]
    assert versions == ["policy/v1", "policy/v1beta1", "policy/v1beta1"]


@virtual_time
async def test_an_eviction_that_is_held_back_is_the_callers_to_repeat():
    async with connected() as (server, client):
        server.faults.append(failing(429, "TooManyRequests", 10))
        with pytest.raises(errors.TooManyRequests):
            await client.evict("a", "default")
        assert len(server.seen) == 1


async def test_a_read_is_repeated_when_the_connection_breaks(client, server):
    server.faults += [hanging_up, hanging_up]
    server.routes["GET", THING] = answering({"metadata": {"name": "a"}})
    assert (await client.get(THINGS, "a", "default")).metadata.name == "a"


async def test_a_write_is_not_repeated_when_its_answer_is_lost(client, server):
    server.faults += [hanging_up]
    with pytest.raises(errors.Unreachable, match="closed the connection"):
        await client.create(THINGS, Thing(), "default")
    assert len(server.seen) == 1


async def test_missing_server_is_reported_without_delay(unused_tcp_port):
    async with ApiClient(ClusterConfig(f"http://127.0.0.1:{unused_tcp_port}")) as client:
        with pytest.raises(
            errors.Unreachable,
            match=r"cannot be reached: Connection refused. Is the cluster running",
        ):
            await client.get(THINGS, "a", "default")


@virtual_time
async def test_silent_server_times_out():
    async def silent(request):
        await asyncio.get_running_loop().create_future()

    async with connected() as (server, client):
        server.routes["GET", THING] = silent
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(errors.Unreachable, match="did not respond in time"):
            await client.get(THINGS, "a", "default")
        assert loop.time() - began < 2 * transport.REQUEST_TIMEOUT_S


async def test_watch_lines_may_be_cut_anywhere_and_be_long(client, server):
    stream = event("ADDED", "a", 1, note="ä" * 700_000) + event("MODIFIED", "a", 2)
    pieces = [stream[start : start + 65_521] for start in range(0, len(stream), 65_521)]
    server.watch_faults.append(streaming(*pieces))
    events = await watch_all(client)
    assert [(e.type, e.resource_version) for e in events] == [("ADDED", "1"), ("MODIFIED", "2")]


async def test_the_rest_of_a_line_that_broke_off_is_not_an_event(client, server):
    server.watch_faults.append(streaming(event("ADDED", "a", 1), event("ADDED", "b", 2)[:40]))
    assert [e.object.metadata.name for e in await watch_all(client)] == ["a"]


async def test_a_watch_that_breaks_off_is_an_error(client, server):
    server.watch_faults.append(streaming(event("ADDED", "a", 1), broken=True))
    with pytest.raises(errors.Unreachable):
        await watch_all(client)


async def test_a_watch_that_falls_silent_is_given_up(client, server, monkeypatch):
    monkeypatch.setattr("gangline.kube.client.client.WATCH_SILENCE_S", 0.05)
    await server.put("a")  # and then never a word, though bookmarks are asked for
    with pytest.raises(errors.Unreachable, match="in time"):
        await watch_all(client)


async def test_an_error_event_is_raised_as_its_type(client, server):
    status = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}
    line = json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
    server.watch_faults.append(streaming(event("ADDED", "a", 1), line))
    with pytest.raises(errors.Gone):
        await watch_all(client)


async def test_a_watch_that_is_no_watch_is_an_error_and_not_a_crash(client, server):
    server.watch_faults.append(streaming(b"<html>\n"))
    with pytest.raises(errors.ApiError, match="not a Thing"):
        await watch_all(client)


async def test_malformed_object_in_a_watch_has_its_own_event(client, server):
    server.watch_faults.append(streaming(event("MODIFIED", "a", 4, spec={"size": []})))
    (found,) = await watch_all(client)
    assert (found.type, found.resource_version) == ("MALFORMED", "4")
    assert found.malformed.metadata.name == "a"


async def test_leaving_a_watch_ends_it_on_the_server(client, server):
    await server.put("a")
    async with aclosing(client.watch(THINGS, resource_version="0")) as events:
        async for _ in events:
            break
    await server.put("b")
    async with asyncio.timeout(5):
        while server.watches:
            await asyncio.sleep(0)
            await server.bookmark()


async def test_log_lines_keep_their_last_one_and_their_bytes(client, server):
    path = "/api/v1/namespaces/default/pods/p/log"
    server.routes["GET", path] = streaming(b"one\r\ntw", b"o\n\nlast \xff")
    lines = [line async for line in client.logs("p", "default", container="c", tail=9)]
    assert lines == [b"one\r", b"two", b"", b"last \xff"]
    assert server.seen[0].query == {"container": "c", "tailLines": "9"}


async def test_patch_has_the_content_type_of_its_kind(client, server):
    server.routes["PATCH", THING] = answering({"metadata": {}})
    operations = [{"op": "remove", "path": "/spec"}]
    await client.patch(THINGS, "a", operations, "default", kind=PatchKind.JSON)
    assert server.seen[0].headers["Content-Type"] == "application/json-patch+json"
    assert server.seen[0].json() == operations


async def test_any_path_can_be_asked_for(client, server):
    server.routes["GET", "/version"] = answering({"major": "1"})
    assert await client.request_json("GET", "/version") == {"major": "1"}
    server.routes["GET", "/healthz"] = streaming(b"ok")
    assert await client.request_json("GET", "/healthz") == "ok"


class Renewing:
    """Credentials of which the first has expired."""

    def __init__(self) -> None:
        self.given = 0

    async def current(self, *, refresh=False):
        if refresh or not self.given:
            self.given += 1
        return Credential(f"Bearer {self.given}")


@pytest.mark.parametrize("method", ["get", "logs"])
async def test_expired_credentials_are_renewed_once(server, method):
    async def check(request):
        if request.headers["Authorization"] != "Bearer 2":
            return await failing(401, "Unauthorized")(request)
        return await answering({"metadata": {"name": "a"}})(request)

    server.routes["GET", THING] = check
    server.routes["GET", "/api/v1/namespaces/default/pods/a/log"] = check
    async with ApiClient(ClusterConfig(server.url, credentials=Renewing())) as client:
        if method == "get":
            await client.get(THINGS, "a", "default")
        else:
            assert [line async for line in client.logs("a", "default")]
    assert len(server.seen) == 2


async def test_refused_credentials_raise_unauthorized(server):
    server.routes["GET", THING] = failing(401, "Unauthorized")
    async with ApiClient(ClusterConfig(server.url, credentials=Renewing())) as client:
        with pytest.raises(errors.Unauthorized):
            await client.get(THINGS, "a", "default")
    assert len(server.seen) == 2


async def test_request_of_a_closed_client_raises():
    with pytest.raises(RuntimeError, match="async with"):
        await ApiClient(ClusterConfig("http://127.0.0.1:1")).get(THINGS, "a", "default")


async def test_the_garbage_collector_works_again_after_a_large_list(client, server):
    for number in range(3):
        await server.put(f"t-{number}")
        server.things[f"t-{number}"]["spec"]["note"] = "x" * 200_000
    assert len(await client.list(THINGS)) == 3
    assert gc.isenabled()


@virtual_time
async def test_requests_keep_to_the_rate_they_were_given():
    loop = asyncio.get_running_loop()
    bucket = TokenBucket(10, 5, clock=loop.time)
    began = loop.time()
    await asyncio.gather(*(bucket.take() for _ in range(25)))
    assert loop.time() - began == pytest.approx(2.0, abs=0.1)
