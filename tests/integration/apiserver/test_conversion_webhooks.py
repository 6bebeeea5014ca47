"""Conversion webhooks, called over real HTTPS: objects are served in the version that they made."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from integration.apiserver.test_server_protocol import Http, http
from integration.apiserver.webhook_server import Json, WebhookServer

__all__ = ["http"]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
V1, V2 = (f"/apis/conv.example.com/{version}/namespaces/default/ends" for version in ("v1", "v2"))
MERGE = "application/merge-patch+json"


def version_of(name: str, *fields: str, stored: bool) -> Json:
    properties = {field: {"type": "string"} for field in fields}
    if name == "v2":
        properties["path"] = {"type": "string", "default": "/"}
    schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    return {"name": name, "served": True, "storage": stored, "schema": schema}


def convert(request: Json) -> Json:
    def one(obj: Json) -> Json:
        kept = {name: obj[name] for name in ("kind", "metadata")}
        if request["desiredAPIVersion"].endswith("/v2"):
            host, _, port = obj.get("hostPort", "").partition(":")
            fields = {"host": host, "port": port}
        else:
            fields = {"hostPort": f"{obj['host']}:{obj['port']}"}
        return {"apiVersion": request["desiredAPIVersion"], **kept, **fields}

    objects = [one(obj) for obj in request["objects"]]
    return {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects}


@pytest.fixture
async def hooks(tmp_path: Path, http: Http) -> AsyncIterator[WebhookServer]:
    async with WebhookServer(tmp_path / "hooks", answers={"convert": convert}) as server:
        webhook = {"conversionReviewVersions": ["v1"], "clientConfig": server.client("convert")}
        spec = {
            "group": "conv.example.com", "scope": "Namespaced",
            "names": {"plural": "ends", "kind": "End"},
            "versions": [version_of("v1", "hostPort", stored=True),
                         version_of("v2", "host", "port", stored=False)],
            "conversion": {"strategy": "Webhook", "webhook": webhook},
        }  # fmt: skip
        status, _ = await http("POST", DEFINITIONS, {"metadata": {"name": "ends.conv.example.com"},
                                                     "spec": spec})  # fmt: skip
        assert status == 201
        yield server


def an_end(name: str = "a", **fields: Any) -> Json:
    return {"kind": "End", "metadata": {"name": name}, **fields}


async def test_an_object_is_written_and_read_in_every_version(http: Http, hooks: WebhookServer):
    status, made = await http("POST", V2, an_end(host="h", port="1"))
    assert (status, made["host"], made["path"]) == (201, "h", "/")
    assert (await http("GET", f"{V1}/a"))[1]["hostPort"] == "h:1"
    _, changed = await http("PATCH", f"{V2}/a", {"port": "2"}, Content_Type=MERGE)
    assert (changed["apiVersion"], changed["port"]) == ("conv.example.com/v2", "2")
    await http("POST", V1, an_end("b", hostPort="g:3"))
    _, listed = await http("GET", V2)
    shown = [(item["apiVersion"][-2:], item["host"], item["port"]) for item in listed["items"]]
    assert shown == [("v2", "h", "2"), ("v2", "g", "3")]
    _, one = await http("GET", f"{V1}/a")
    one["hostPort"] = "i:4"
    assert (await http("PUT", f"{V1}/a", one))[0] == 200
    assert (await http("GET", f"{V2}/a"))[1]["host"] == "i"
    applied = {"apiVersion": "conv.example.com/v2", **an_end("c", host="k", port="5")}
    apply = {"Content_Type": "application/apply-patch+yaml"}
    assert (await http("PATCH", f"{V2}/c?fieldManager=m", applied, **apply))[0] == 201
    assert (await http("GET", f"{V1}/c"))[1]["hostPort"] == "k:5"
    assert (await http("DELETE", f"{V2}/c"))[0] == 200


async def test_a_watch_shows_its_version(http: Http, hooks: WebhookServer):
    await http("POST", V1, an_end(hostPort="h:1"))
    headers = {"Authorization": f"Bearer {http.token}"}
    async with http.session.get(f"{http.url}{V2}?watch=true", headers=headers) as stream:
        first = json.loads(await asyncio.wait_for(stream.content.readline(), 10))
        assert (first["type"], first["object"]["host"]) == ("ADDED", "h")
        await http("PATCH", f"{V1}/a", {"hostPort": "g:2"}, Content_Type=MERGE)
        second = json.loads(await asyncio.wait_for(stream.content.readline(), 10))
        assert (second["type"], second["object"]["host"]) == ("MODIFIED", "g")
        hooks.answers["convert"] = lambda request: {"uid": "other"}
        await http("PATCH", f"{V1}/a", {"hostPort": "g:3"}, Content_Type=MERGE)
        last = json.loads(await asyncio.wait_for(stream.content.readline(), 10))
        assert (last["type"], last["object"]["code"]) == ("ERROR", 500)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda answer: {**answer, "result": {"status": "Failed", "message": "no"}}, "no"),
        (lambda answer: {**answer, "convertedObjects": []}, "1 objects were expected"),
        (lambda answer: {**answer, "uid": "x"}, "expected response.uid"),
        (
            lambda answer: {
                **answer,
                "convertedObjects": [
                    {**obj, "apiVersion": "conv.example.com/v1"}
                    for obj in answer["convertedObjects"]
                ],
            },
            "conv.example.com/v2, Kind=End was expected",
        ),
    ],
)
async def test_an_object_is_never_served_unconverted(
    http: Http, hooks: WebhookServer, change: Any, said: str
):
    await http("POST", V1, an_end(hostPort="h:1"))
    hooks.answers["convert"] = lambda request: change(convert(request))
    for path in (f"{V2}/a", V2):
        status, answer = await http("GET", path)
        assert status == 500
        assert "conversion webhook for conv.example.com/v1, Kind=End failed" in answer["message"]
        assert said in answer["message"]
    assert (await http("GET", f"{V1}/a"))[1]["hostPort"] == "h:1"
