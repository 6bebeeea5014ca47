"""Lists and watches in JSON and protobuf, and what is decoded although it does not fit."""

import json
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gangline.api.resources import (
    HYPERNODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    STORAGE_CLASSES,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.client.collection import Collection, Selection
from gangline.kube.client.decoding import decode_event, decode_object, decode_page
from gangline.kube.errors import ApiError, Forbidden, Gone
from gangline.scheduler.wire import LEAN_PODS, LeanPod
from unit.kube.fake_server import (
    Answer,
    FakeServer,
    Thing,
    ThingSpec,
    answering,
    binary,
    hanging_up,
    status_answer,
    streaming,
)
from unit.kube.protobuf.encoding import MEDIA, envelope, frame, list_body, pod, status

JSON_POD = {"metadata": {"name": "a", "resourceVersion": "7"}, "spec": {"nodeName": "n1"}}
JSON_LIST = {"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": [JSON_POD]}
JSON_EVENT = {"type": "ADDED", "object": {"kind": "Pod", "apiVersion": "v1", **JSON_POD}}


def pods(client: ApiClient, **selected: Any) -> Collection[LeanPod]:
    return Collection(client, Selection(LEAN_PODS, **selected), None)


def nodes(found: Any) -> dict[str, str]:
    return {each.metadata.name: each.spec.node_name for each in found}


async def events(collection: Collection[LeanPod], revision: str = "1") -> list[tuple[str, str]]:
    async with aclosing(collection.watch(revision)) as watch:
        return [(event.type, event.resource_version) async for event in watch]


@pytest.fixture
def answers(server: FakeServer) -> list[Answer]:
    """Answers to the next requests."""
    return server.faults


async def test_list_is_read_page_by_page(
    client: ApiClient, server: FakeServer, answers: list[Answer]
) -> None:
    first = list_body("v1", "PodList", [pod("a", "n1"), pod("b")], "9", "more")
    answers += [binary(first[:20], first[20:]), binary(list_body("v1", "PodList", [pod("c")], "9"))]
    found = await pods(client, page_size=2, labels="x=y").list()
    assert nodes(found) == {"a": "n1", "b": "", "c": ""}
    assert (found.resource_version, found.is_protobuf) == ("9", True)
    assert found.items[0].kind == "Pod"
    asked = [seen.query for seen in server.seen]
    assert asked == [
        {"labelSelector": "x=y", "limit": "2"},
        {"labelSelector": "x=y", "limit": "2", "continue": "more"},
    ]
    assert server.seen[0].headers["Accept"] == f"{MEDIA},application/json"


async def test_list_from_the_cache_takes_any_revision(
    client: ApiClient, server: FakeServer, answers: list[Answer]
) -> None:
    answers.append(binary(list_body("v1", "PodList", [pod("a")])))
    await pods(client).list(from_cache=True)
    assert server.seen[0].query["resourceVersion"] == "0"


async def test_objects_are_kept_in_their_transformed_form(
    client: ApiClient, answers: list[Answer]
) -> None:
    def bound(found: LeanPod) -> LeanPod:
        return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, priority=5))

    answers += [binary(list_body("v1", "PodList", [pod("a")])), answering(JSON_LIST)]
    collection = pods(client, transform=bound)
    for _ in range(2):
        found = await collection.list()
        assert [each.spec.priority for each in found] == [5]


async def test_page_that_breaks_off_is_read_again(
    client: ApiClient, server: FakeServer, answers: list[Answer]
) -> None:
    body = list_body("v1", "PodList", [pod("a"), pod("b")])
    answers += [binary(body[:-10], broken=True), hanging_up, binary(body)]
    assert list(nodes(await pods(client).list())) == ["a", "b"]
    assert len(server.seen) == 3


async def test_expired_page_leads_to_a_list_without_pages(
    client: ApiClient, server: FakeServer, answers: list[Answer]
) -> None:
    answers += [
        binary(list_body("v1", "PodList", [pod("a")], "9", "more")),
        binary(status(410, "Expired", "too old"), code=410),
        binary(list_body("v1", "PodList", [pod("a"), pod("b")])),
    ]
    assert list(nodes(await pods(client).list())) == ["a", "b"]
    assert server.seen[-1].query == {}


@pytest.mark.parametrize("code", [406, 415])
async def test_server_that_refuses_protobuf_is_read_in_json(
    client: ApiClient, server: FakeServer, answers: list[Answer], code: int
) -> None:
    reason = {406: "NotAcceptable", 415: "UnsupportedMediaType"}[code]

    async def refusing(request: web.Request) -> web.StreamResponse:
        return status_answer(code, reason)

    answers += [refusing, answering(JSON_LIST), answering(JSON_LIST)]
    collection = pods(client)
    for _ in range(2):
        assert nodes(await collection.list()) == {"a": "n1"}
    assert [MEDIA in seen.headers["Accept"] for seen in server.seen] == [True, False, False]


async def test_answer_in_json_is_read(
    client: ApiClient, server: FakeServer, answers: list[Answer]
) -> None:
    answers += [answering(JSON_LIST), streaming(msgspec.json.encode(JSON_EVENT) + b"\n")]
    collection = pods(client)
    found = await collection.list()
    assert (nodes(found), found.is_protobuf, found.items[0].kind) == ({"a": "n1"}, False, "Pod")
    assert await events(collection) == [("ADDED", "7")]
    assert MEDIA not in server.seen[-1].headers["Accept"]


async def test_error_in_protobuf_has_its_message(client: ApiClient, answers: list[Answer]) -> None:
    answers.append(binary(status(403, "Forbidden", "pods is forbidden"), code=403))
    with pytest.raises(Forbidden, match="pods is forbidden"):
        await pods(client).list()


async def test_malformed_list_is_an_error_and_the_next_one_is_read_in_json(
    client: ApiClient, server: FakeServer, answers: list[Answer]
) -> None:
    answers += [binary(list_body("v1", "PodList", [b"\xff"])), answering(JSON_LIST)]
    collection = pods(client)
    with pytest.raises(ApiError, match="the response is not a Pod"):
        await collection.list()
    assert nodes(await collection.list()) == {"a": "n1"}


async def test_watch_yields_events_and_bookmarks(
    client: ApiClient, server: FakeServer, answers: list[Answer]
) -> None:
    raw = b"".join(
        frame(type_, envelope("v1", "Pod", pod("a", revision=revision)))
        for type_, revision in (("ADDED", "3"), ("MODIFIED", "4"), ("BOOKMARK", "8"))
    )
    answers.append(binary(raw[:30], raw[30:]))
    assert await events(pods(client), "2") == [("ADDED", "3"), ("MODIFIED", "4"), ("BOOKMARK", "8")]
    asked = server.seen[0].query
    assert (asked["resourceVersion"], asked["allowWatchBookmarks"]) == ("2", "true")


async def test_error_event_ends_the_watch_after_the_events_before_it(
    client: ApiClient, answers: list[Answer]
) -> None:
    ok = frame("ADDED", envelope("v1", "Pod", pod("a", revision="3")))
    answers.append(binary(ok + frame("ERROR", status(410, "Expired", "too old"))))
    async with aclosing(pods(client).watch("2")) as watch:
        assert (await anext(watch)).resource_version == "3"
        with pytest.raises(Gone, match="too old"):
            await anext(watch)


async def test_watch_that_is_refused_in_protobuf_is_read_in_json(
    client: ApiClient, answers: list[Answer]
) -> None:
    async def refusing(request: web.Request) -> web.StreamResponse:
        return status_answer(406, "NotAcceptable")

    answers += [refusing, streaming(msgspec.json.encode(JSON_EVENT) + b"\n")]
    assert await events(pods(client)) == [("ADDED", "7")]


KINDS = [
    HYPERNODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    STORAGE_CLASSES,
]


def structs_within(kind: type) -> Iterator[type[msgspec.Struct]]:
    seen: set[object] = set()
    left: list[object] = [msgspec.inspect.type_info(kind)]
    while left:
        found = left.pop()
        if isinstance(found, msgspec.inspect.StructType):
            if found.cls in seen:
                continue
            seen.add(found.cls)
            yield found.cls
        if isinstance(found, msgspec.inspect.Field | msgspec.inspect.Type):
            left += [getattr(found, name) for name in found.__struct_fields__]
        elif isinstance(found, tuple):
            left += found


@pytest.mark.parametrize("kind", [each.type for each in KINDS], ids=lambda kind: kind.__name__)
def test_a_field_that_is_null_was_not_given(kind: type) -> None:
    structs = list(structs_within(kind))
    assert len(structs) > 2
    for struct in structs:
        names = [field.encode_name for field in msgspec.structs.fields(struct)]
        assert decode_object(struct, json.dumps(dict.fromkeys(names)).encode()) == struct()


def test_nulls_are_ignored_in_lists_and_watches() -> None:
    thing = '{"metadata": {"name": "a", "labels": null}, "spec": null}'
    expected = Thing(metadata=msgspec.convert({"name": "a"}, type(Thing().metadata)))
    _, items, malformed = decode_page(Thing, f'{{"items": [{thing}]}}'.encode())
    assert (items, malformed) == ([expected], [])
    event = decode_event(Thing, f'{{"type": "ADDED", "object": {thing}}}'.encode())
    assert not isinstance(event, bytes)
    assert (event.type, event.object) == ("ADDED", expected)


def test_what_does_not_fit_is_refused_also_beside_a_null() -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        decode_object(ThingSpec, b'{"size": "x", "other": null}')
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        decode_object(ThingSpec, b'{"size": "x"}')
