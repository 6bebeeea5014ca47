"""Boolean options of requests to a running cluster, each in every spelling.

Clients spell them differently: kubectl ``true`` and ``1``, older official Python clients ``True``.
``None`` stands for an absent option.
"""

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

import pytest

from security.conftest import AttackedServer

TRUE = ("True", "TRUE", "yes", "1", "", "true")
FALSE: tuple[str | None, ...] = ("false", "False", "0", None)
SPELLINGS = [*[(text, True) for text in TRUE], *[(text, False) for text in FALSE]]
MAPS = "/api/v1/namespaces/default/configmaps"
REPLIES_WITHIN_S = 30.0
STDIN, STDOUT, STDERR, ERROR = 0, 1, 2, 3


def path_with(path: str, name: str, text: str | None, **more: str) -> str:
    query = urlencode(more | ({} if text is None else {name: text}))
    return f"{path}?{query}"


async def create_map(server: AttackedServer, name: str) -> str:
    """Create a configuration map; returns its revision."""
    body = {"metadata": {"name": name}, "data": {"k": "v"}}
    status, found = await server.request("POST", MAPS, json=body)
    assert status == 201, found
    return str(found["metadata"]["resourceVersion"])


async def test_watch(attacked: AttackedServer) -> None:
    """A watch stays open and reports what is created after its start; a list ends."""
    before = await create_map(attacked, "before")
    for number, (text, expected) in enumerate(SPELLINGS):
        path = path_with(MAPS, "watch", text, resourceVersion=before)
        async with attacked.stream(path) as content, asyncio.timeout(REPLIES_WITHIN_S):
            if expected:
                before = await create_map(attacked, f"m{number}")
                event = json.loads(await content.readline())
                assert event["type"] == "ADDED", text
                assert event["object"]["metadata"]["name"] == f"m{number}"
            else:
                found = json.loads(await content.read())
                assert found["kind"] == "ConfigMapList", text


async def first_events(server: AttackedServer, path: str) -> list[dict[str, Any]]:
    """Return the events that a watch sends until its timeout of one second."""
    async with server.stream(f"{path}&watch=True&timeoutSeconds=1") as content:
        async with asyncio.timeout(REPLIES_WITHIN_S):
            return [json.loads(line) for line in (await content.read()).splitlines()]


async def test_initial_events_and_their_bookmark(attacked: AttackedServer) -> None:
    """Without ``sendInitialEvents`` a watch from a revision on has no initial events; a false one
    has none either, and the bookmark after them needs ``allowWatchBookmarks``.
    """
    revision = await create_map(attacked, "m")
    match = {"resourceVersionMatch": "NotOlderThan", "resourceVersion": revision}
    more = {"fieldSelector": "metadata.name=m"}
    initial = [
        first_events(
            attacked,
            path_with(
                MAPS,
                "sendInitialEvents",
                text,
                **more,
                **(match if text is not None else {"resourceVersion": revision}),
            ),
        )
        for text, _ in SPELLINGS
    ]
    for (text, expected), events in zip(SPELLINGS, await asyncio.gather(*initial), strict=True):
        assert [event["type"] for event in events] == ["ADDED"] * expected, text
    marked = [
        first_events(
            attacked,
            path_with(MAPS, "allowWatchBookmarks", text, sendInitialEvents="True", **more, **match),
        )
        for text, _ in SPELLINGS
    ]
    for (text, expected), events in zip(SPELLINGS, await asyncio.gather(*marked), strict=True):
        assert [event["type"] for event in events] == ["ADDED"] + ["BOOKMARK"] * expected, text


async def test_force_of_an_apply(attacked: AttackedServer) -> None:
    """A forced apply takes over a field of another manager; another one conflicts."""

    async def apply(manager: str, value: str, text: str | None) -> int:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "m"},
            "data": {"k": value},
        }
        status, _ = await attacked.request(
            "PATCH",
            path_with(f"{MAPS}/m", "force", text, fieldManager=manager),
            json=body,
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        return status

    assert await apply("first", "start", None) == 201
    for number, (text, expected) in enumerate(SPELLINGS):
        status = await apply(f"manager{number}", f"value{number}", text)
        assert status == (200 if expected else 409), text


async def test_orphan_dependents(attacked: AttackedServer) -> None:
    """An orphaning deletion waits for the garbage collector, which does not run here."""
    path = "/apis/apps/v1/namespaces/default/replicasets"
    labels = {"app": "x"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    for number, (text, expected) in enumerate(SPELLINGS):
        name = f"r{number}"
        body = {"metadata": {"name": name}, "spec": spec}
        status, found = await attacked.request("POST", path, json=body)
        assert status == 201, found
        await attacked.request("DELETE", path_with(f"{path}/{name}", "orphanDependents", text))
        status, found = await attacked.request("GET", f"{path}/{name}")
        finalizers = found["metadata"].get("finalizers", [])
        assert (status, finalizers) == ((200, ["orphan"]) if expected else (404, [])), text


@pytest.mark.parametrize("text", ["", "True", "true", "all", "false", "0"])
async def test_a_dry_run_has_one_spelling(attacked: AttackedServer, text: str) -> None:
    """``dryRun`` is a list of names: any other value is refused, so that nothing is stored."""
    body = {"metadata": {"name": "m"}}
    status, found = await attacked.request("POST", path_with(MAPS, "dryRun", text), json=body)
    assert status == 400, found
    assert "dryRun" in found["message"]
    status, _ = await attacked.request("GET", f"{MAPS}/m")
    assert status == 404
