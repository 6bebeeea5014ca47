"""Edge cases of the protocol: errors, selectors, ends of watches, dry runs, patches, formats."""

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from gangline.local.apiserver.server import ApiServer

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
MERGE = "application/merge-patch+json"


@dataclass
class Http:
    session: aiohttp.ClientSession
    url: str
    token: str
    watches: list[aiohttp.ClientResponse] = field(default_factory=list)

    async def __call__(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any]:
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        raw = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        async with self.session.request(
            method,
            self.url + path,
            data=io.BytesIO(raw) if raw else None,
            headers={k: v for k, v in sent.items() if v},
        ) as answer:
            text = await answer.text()
            found = json.loads(text) if "json" in answer.headers["Content-Type"] else text
            self.headers = answer.headers
            return answer.status, found


@pytest.fixture
async def http(api_server: ApiServer) -> AsyncIterator[Http]:
    context = ssl.create_default_context(cafile=str(api_server.ca_path))
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        connected = Http(session, api_server.url, api_server.admin_token)
        yield connected
        for answer in connected.watches:
            answer.close()


def config_map(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **more}, "data": {"k": "v"}}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "example.com/x:1"}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


async def test_every_refusal_is_a_status(http: Http) -> None:
    for method, path, body, headers, code, reason in (
        ("GET", "/nothing", None, {}, 404, "NotFound"),
        ("GET", "/apis/no.such/v1/things", None, {}, 404, "NotFound"),
        ("GET", f"{MAPS}/none", None, {}, 404, "NotFound"),
        ("GET", f"{MAPS}/none/status", None, {}, 404, "NotFound"),
        ("PUT", MAPS, {}, {}, 405, "MethodNotAllowed"),
        ("DELETE", f"{PODS}/p/status", None, {}, 405, "MethodNotAllowed"),
        ("POST", f"{MAPS}/a", config_map("a"), {}, 405, "MethodNotAllowed"),
        ("POST", MAPS.replace("default", "nowhere"), config_map("a"), {}, 404, "NotFound"),
        ("POST", MAPS, b"{not json", {}, 400, "BadRequest"),
        ("POST", MAPS, b"[]", {}, 400, "BadRequest"),
        ("POST", MAPS, None, {}, 400, "BadRequest"),
        ("POST", MAPS, b'{"metadata":{"name":"\xff"}}', {}, 400, "BadRequest"),
        ("POST", MAPS, {"kind": "Secret", "apiVersion": "v1"}, {}, 400, "BadRequest"),
        ("POST", MAPS, {"data": {"a": "b"}}, {}, 422, "Invalid"),
        ("POST", MAPS, config_map("a", namespace="other"), {}, 400, "BadRequest"),
        ("POST", MAPS, config_map("a", resourceVersion="3"), {}, 400, "BadRequest"),
        ("POST", MAPS, config_map("Not_A_Name"), {}, 422, "Invalid"),
        ("POST", MAPS, config_map("a", labels=[]), {}, 422, "Invalid"),
        ("POST", MAPS, config_map("a", finalizers={}), {}, 422, "Invalid"),
        ("POST", MAPS, {"metadata": {"name": "a"}, "data": {"a": 1}}, {}, 422, "Invalid"),
        ("POST", MAPS, b"x", {"Content_Type": "text/html"}, 415, "UnsupportedMediaType"),
        ("PATCH", f"{MAPS}/kube", {}, {"Content_Type": "text/html"}, 415, "UnsupportedMediaType"),
        ("GET", MAPS, None, {"Accept": "application/vnd.kubernetes.protobuf"}, 406,
         "NotAcceptable"),
        ("GET", f"{MAPS}?labelSelector=a%3D%3D%3Db", None, {}, 400, "BadRequest"),
        ("GET", f"{MAPS}?fieldSelector=spec.colour%3Dred", None, {}, 400, "BadRequest"),
        ("GET", f"{MAPS}?limit=many", None, {}, 400, "BadRequest"),
        ("GET", f"{MAPS}?continue=bm9uc2Vuc2U", None, {}, 400, "BadRequest"),
        ("GET", f"{MAPS}?resourceVersion=999999999", None, {}, 504, "Timeout"),
        ("POST", f"{MAPS}?dryRun=Some", config_map("a"), {}, 400, "BadRequest"),
        ("DELETE", "/api/v1/namespaces/default", None, {}, 403, "Forbidden"),
        ("GET", MAPS, None, {"Authorization": "Bearer wrong"}, 401, "Unauthorized"),
        ("GET", MAPS, None, {"Authorization": ""}, 401, "Unauthorized"),
        ("GET", f"{PODS}/none/log", None, {}, 404, "NotFound"),
    ):  # fmt: skip
        status, answer = await http(method, path, body, **headers)
        refused = (status, answer["kind"], answer["reason"], answer["code"])
        assert refused == (code, "Status", reason, code), (method, path, answer)
        assert answer["message"]


async def test_anybody_may_read_health_and_version_and_nothing_else(http: Http):
    for path in ("/healthz", "/livez", "/readyz"):
        assert await http("GET", path, Authorization="") == (200, "ok")
    assert (await http("GET", "/version", Authorization=""))[0] == 200
    for path in ("/metrics", "/api", "/openapi/v2", "/healthz/etcd"):
        assert (await http("GET", path, Authorization=""))[0] == 401


async def test_a_body_over_the_limit_is_refused(http: Http):
    big = {"metadata": {"name": "a"}, "data": {"k": "x" * (3 << 20)}}
    status, answer = await http("POST", MAPS, big)
    assert (status, answer["reason"]) == (413, "RequestEntityTooLarge")


async def test_yaml_is_read_and_written(http: Http):
    body = b'metadata: {name: a, annotations: {at: 2026-01-01}}\ndata: {on: "yes"}\n'
    status, stored = await http("POST", MAPS, body, Content_Type="application/yaml")
    assert status == 201
    # YAML 1.1: an unquoted ``on`` is true; dates stay text.
    assert stored["data"] == {"true": "yes"}
    assert stored["metadata"]["annotations"] == {"at": "2026-01-01"}
    _, text = await http("GET", f"{MAPS}/a", Accept="application/yaml")
    assert "'true': 'yes'" in text
    bad = b"metadata: {name: b}\ndata: !!set {a, b}\n"
    status, answer = await http("POST", MAPS, bad, Content_Type="application/yaml")
    assert (status, answer["reason"]) == (400, "BadRequest")


async def test_unknown_fields_are_refused_warned_of_or_ignored_as_asked(http: Http):
    wrong = pod("p", hostnetwork=True)
    status, answer = await http("POST", f"{PODS}?fieldValidation=Strict", wrong)
    assert status == 400
    assert 'unknown field "spec.hostnetwork"' in answer["message"]
    status, stored = await http("POST", f"{PODS}?fieldValidation=Warn", wrong)
    assert status == 201
    assert "hostnetwork" not in stored["spec"]
    assert 'unknown field \\"spec.hostnetwork\\"' in http.headers["Warning"]
    doubled = b'{"metadata":{"name":"a","name":"b"}}'
    status, answer = await http("POST", f"{MAPS}?fieldValidation=Strict", doubled)
    assert status == 400
    assert 'duplicate field "metadata.name"' in answer["message"]


async def test_status_and_spec_are_written_apart(http: Http):
    await http("POST", PODS, {**pod("p"), "status": {"phase": "Running"}})
    _, found = await http("GET", f"{PODS}/p")
    assert found["status"]["phase"] == "Pending"
    change = {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}},
              "spec": {"activeDeadlineSeconds": 5}}  # fmt: skip
    await http("PATCH", f"{PODS}/p", {"status": {"phase": "Running"}}, Content_Type=MERGE)
    _, found = await http("GET", f"{PODS}/p/status")
    assert found["status"]["phase"] == "Pending"
    status, found = await http("PATCH", f"{PODS}/p/status", change, Content_Type=MERGE)
    assert (status, found["status"]["phase"]) == (200, "Running")
    assert "activeDeadlineSeconds" not in found["spec"]


async def test_a_change_of_nothing_makes_no_new_revision(http: Http):
    _, first = await http("POST", MAPS, config_map("a"))
    for media, patch in (
        (MERGE, {"data": {"k": "v"}}),
        ("application/json-patch+json", [{"op": "replace", "path": "/data/k", "value": "v"}]),
        ("application/strategic-merge-patch+json", {"data": {"k": "v"}}),
    ):
        _, same = await http("PATCH", f"{MAPS}/a", patch, Content_Type=media)
        assert same["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_finalizers_delay_removal_until_the_last_is_removed(http: Http):
    await http("POST", MAPS, config_map("a", finalizers=["example.com/hold"]))
    _, held = await http("DELETE", f"{MAPS}/a")
    assert held["metadata"]["deletionTimestamp"]
    assert (await http("GET", f"{MAPS}/a"))[0] == 200
    await http("PATCH", f"{MAPS}/a", {"metadata": {"finalizers": None}}, Content_Type=MERGE)
    assert (await http("GET", f"{MAPS}/a"))[0] == 404


async def test_preconditions_protect_another_object_of_the_same_name(http: Http):
    await http("POST", MAPS, config_map("a"))
    wrong = {"preconditions": {"uid": "another"}}
    status, answer = await http("DELETE", f"{MAPS}/a", wrong)
    assert (status, answer["reason"]) == (409, "Conflict")


class Lines:
    """The lines of a watch, decoded."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(5):
            return json.loads(await self._answer.content.readline())


async def open_watch(http: Http, path: str, query: str, accept: str = "") -> Lines:
    headers = {"Authorization": f"Bearer {http.token}"} | ({"Accept": accept} if accept else {})
    url = f"{http.url}{path}?watch=true&{query}"
    answer = await http.session.get(url, headers=headers)
    http.watches.append(answer)
    return Lines(answer)


async def test_a_watch_with_a_selector_sees_objects_enter_and_leave(http: Http):
    await http("POST", MAPS, config_map("a", labels={"in": "no"}))
    _, listed = await http("GET", MAPS)
    revision = listed["metadata"]["resourceVersion"]
    lines = await open_watch(http, MAPS, f"labelSelector=in%3Dyes&resourceVersion={revision}")
    for value in ("yes", "no"):
        change = {"metadata": {"labels": {"in": value}}}
        await http("PATCH", f"{MAPS}/a", change, Content_Type=MERGE)
    first, second = await lines.next(), await lines.next()
    assert (first["type"], second["type"]) == ("ADDED", "DELETED")
    assert second["object"]["metadata"]["labels"] == {"in": "yes"}
    assert int(second["object"]["metadata"]["resourceVersion"]) > int(
        first["object"]["metadata"]["resourceVersion"]
    )


async def test_a_watch_that_asks_for_the_state_gets_it_and_a_bookmark(http: Http):
    await http("POST", MAPS, config_map("a"))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    lines = await open_watch(http, MAPS, query)
    first, second = await lines.next(), await lines.next()
    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "a")
    assert second["type"] == "BOOKMARK"
    assert second["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_watch_older_than_the_history_gets_410(http: Http, api_server: ApiServer):
    _, first = await http("POST", MAPS, config_map("a"))
    for number in range(5):
        change = {"data": {"k": str(number)}}
        await http("PATCH", f"{MAPS}/a", change, Content_Type=MERGE)
    api_server.store.compact(older_than=float("inf"))
    revision = first["metadata"]["resourceVersion"]
    lines = await open_watch(http, MAPS, f"resourceVersion={revision}")
    event = await lines.next()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    assert event["object"]["reason"] == "Expired"
    status, answer = await http(
        "GET", f"{MAPS}?resourceVersion={revision}&resourceVersionMatch=Exact"
    )
    assert (status, answer["reason"]) == (410, "Expired")


async def test_pages_of_a_list_all_show_the_same_revision(http: Http) -> None:
    for number in range(7):
        await http("POST", MAPS, config_map(f"c{number}"))
    _, page = await http("GET", f"{MAPS}?limit=3")
    await http("DELETE", f"{MAPS}/c5")
    await http("POST", MAPS, config_map("c55"))
    assert page["metadata"]["remainingItemCount"] == 4
    names, revisions = [], set()
    while True:
        names += [item["metadata"]["name"] for item in page["items"]]
        revisions.add(page["metadata"]["resourceVersion"])
        if not (token := page["metadata"].get("continue")):
            break
        _, page = await http("GET", f"{MAPS}?limit=3&continue={token}")
    assert (names, len(revisions)) == ([f"c{number}" for number in range(7)], 1)


async def test_page_older_than_the_history_returns_a_continue_token(
    http: Http, api_server: ApiServer
):
    for number in range(4):
        await http("POST", MAPS, config_map(f"c{number}"))
    _, page = await http("GET", f"{MAPS}?limit=2")
    await http("DELETE", f"{MAPS}/c2")
    api_server.store.compact(older_than=float("inf"))
    status, answer = await http("GET", f"{MAPS}?limit=2&continue={page['metadata']['continue']}")
    assert (status, answer["reason"]) == (410, "Expired")
    _, rest = await http("GET", f"{MAPS}?limit=2&continue={answer['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c3"]


async def test_a_watch_ends_in_its_time(http: Http):
    lines = await open_watch(http, MAPS, "timeoutSeconds=1&resourceVersion=0")
    async with asyncio.timeout(5):
        assert await lines._answer.content.read() == b""


async def test_services_get_addresses_of_their_own(http: Http):
    path = "/api/v1/namespaces/default/services"
    ports = [{"port": 80}]
    made = [await http("POST", path, {"metadata": {"name": f"s{n}"}, "spec": {"ports": ports}})
            for n in range(3)]  # fmt: skip
    addresses = {answer["spec"]["clusterIP"] for _, answer in made}
    assert len(addresses) == 3
    headless = {"metadata": {"name": "h"}, "spec": {"ports": ports, "clusterIP": "None"}}
    assert (await http("POST", path, headless))[1]["spec"]["clusterIP"] == "None"
    taken = {"metadata": {"name": "t"}, "spec": {"ports": ports, "clusterIP": addresses.pop()}}
    status, answer = await http("POST", path, taken)
    assert status == 422
    assert "already allocated" in answer["message"]
    changed = {"spec": {"ports": [{"port": 81}]}}
    _, answer = await http("PATCH", f"{path}/s0", changed, Content_Type=MERGE)
    assert answer["spec"]["clusterIP"] == made[0][1]["spec"]["clusterIP"]


async def test_a_namespace_that_is_going_takes_nothing_new(http: Http):
    await http("POST", "/api/v1/namespaces", {"metadata": {"name": "n"}})
    await http("DELETE", "/api/v1/namespaces/n")
    status, answer = await http("POST", "/api/v1/namespaces/n/configmaps", config_map("a"))
    assert status == 403
    assert "being terminated" in answer["message"]
    assert answer["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    _, going = await http("GET", "/api/v1/namespaces/n")
    assert going["status"]["phase"] == "Terminating"
    going["spec"]["finalizers"] = []
    await http("PUT", "/api/v1/namespaces/n/finalize", going)
    assert (await http("GET", "/api/v1/namespaces/n"))[0] == 404


async def test_stopping_ends_open_watches_at_once(http: Http, api_server: ApiServer):
    lines = [await open_watch(http, MAPS, "resourceVersion=0") for _ in range(5)]
    async with asyncio.timeout(3):
        await api_server.stop()
        for line in lines:
            assert await line._answer.content.read() == b""


async def test_binding_is_of_the_pod_with_its_uid_only(http: Http):
    _, made = await http("POST", PODS, pod("p"))
    target = {"kind": "Node", "name": "n"}
    for uid, code in (("of-a-former-pod", 409), (made["metadata"]["uid"], 201)):
        binding = {"metadata": {"name": "p", "uid": uid}, "target": target}
        status, answer = await http("POST", f"{PODS}/p/binding", binding)
        assert status == code, answer
    _, bound = await http("GET", f"{PODS}/p")
    assert bound["spec"]["nodeName"] == "n"


async def test_field_selectors_have_the_names_of_kubernetes(http: Http):
    event = {"metadata": {"name": "e"}, "involvedObject": {"name": "p", "namespace": "default"},
             "reason": "r"}  # fmt: skip
    await http("POST", "/api/v1/namespaces/default/events", event)
    events = "/apis/events.k8s.io/v1/namespaces/default/events?fieldSelector=regarding.name%3D"
    assert [len((await http("GET", events + name))[1]["items"]) for name in "px"] == [1, 0]
    for path in ("batch/v1/jobs?fieldSelector=status.successful%3D0",
                 "apps/v1/replicasets?fieldSelector=status.replicas%3D0"):  # fmt: skip
        assert (await http("GET", f"/apis/{path}"))[0] == 200
