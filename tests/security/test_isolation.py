"""One user cannot slow the others down, or fill the server's memory."""

import asyncio
import contextlib
import json
import socket
import ssl
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest

from security.conftest import AttackedServer

ATTACKER, OTHER = "mallory", "alice"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
ROLE_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
OBJECT_BYTES = 500_000


@pytest.fixture
async def shared(attacked: AttackedServer) -> AttackedServer:
    """A server with two users who may both edit."""
    binding = {
        "metadata": {"name": "editors"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
            for user in (ATTACKER, OTHER)
        ],
    }
    status, _ = await attacked.request("POST", ROLE_BINDINGS, json=binding)
    assert status == 201
    return attacked


async def create(server: AttackedServer, name: str, text: str) -> None:
    made = {"metadata": {"name": name}, "data": {"text": text}}
    status, body = await server.request("POST", CONFIG_MAPS, json=made)
    assert status == 201, body


def large_yaml() -> bytes:
    """An object whose parsing, defaults and validation take a second or more of processor time."""
    lines = "".join(f'  key-{number}: "value"\n' for number in range(9_000))
    return f"metadata:\n  name: large\ndata:\n{lines}".encode()


def owned_by_many() -> bytes:
    """An object with many entries of managedFields."""
    entries = [
        {
            "manager": f"m{number}",
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {f"f:k{number}": {}}},
        }
        for number in range(5_000)
    ]
    data = {f"key-{number}": "value" for number in range(10_000)}
    metadata = {"name": "owned", "managedFields": entries}
    return json.dumps({"metadata": metadata, "data": data}).encode()


@pytest.mark.parametrize(
    ("body", "media"),
    [(large_yaml(), "application/yaml"), (owned_by_many(), "application/json")],
    ids=["yaml", "managedFields"],
)
async def test_requests_of_others_are_answered_while_a_large_body_is_processed(
    shared: AttackedServer, body: bytes, media: str
) -> None:
    connector = aiohttp.TCPConnector(ssl=shared.tls)
    as_other = shared.admin | {"Impersonate-User": OTHER}
    async with aiohttp.ClientSession(connector=connector, headers=as_other) as session:

        async def read() -> None:
            async with session.get(f"{shared.url}{CONFIG_MAPS}?limit=1") as answer:
                assert answer.status == 200

        await read()  # opens the connection
        large = [
            asyncio.create_task(
                shared.request(
                    "POST", CONFIG_MAPS, user=ATTACKER, data=body, headers={"Content-Type": media}
                )
            )
            for _ in range(8)
        ]
        answered = 0
        while not any(request.done() for request in large):
            await read()
            answered += 1
        await asyncio.gather(*large)
    # Without a lane, the server answers between two of the large requests at most.
    assert answered > len(large)


async def test_bodies_that_a_user_does_not_send_are_limited(shared: AttackedServer) -> None:
    head = (
        f"POST {CONFIG_MAPS} HTTP/1.1\r\nHost: server\r\n"
        f"Authorization: {shared.admin['Authorization']}\r\nImpersonate-User: {ATTACKER}\r\n"
        "Content-Type: application/json\r\nContent-Length: 3000000\r\n\r\n{"
    )
    async with AsyncExitStack() as stack:
        waiting = []
        for _ in range(20):  # more than 32 MiB
            reader, writer = await shared.connect()
            stack.push_async_callback(abort, writer)
            writer.write(head.encode())
            waiting.append(asyncio.create_task(reader.readuntil(b"\r\n\r\n")))
        (first, *_), rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        refused = first.result().decode()
        assert refused.startswith("HTTP/1.1 429 ")
        assert "retry-after: 1\r\n" in refused.lower()
        status, _ = await shared.request("GET", CONFIG_MAPS, user=OTHER)
        assert status == 200
        small = {"metadata": {"name": "small"}}
        status, _ = await shared.request("POST", CONFIG_MAPS, user=OTHER, json=small)
        assert status == 201


async def abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def open_unread(server: AttackedServer, path: str) -> asyncio.StreamWriter:
    """Send a GET, and read nothing of its response."""
    parts = urlsplit(server.url)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (parts.hostname, parts.port))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(
        sock=raw, ssl=context, server_hostname=parts.hostname, limit=4096
    )
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    head = (
        f"GET {path} HTTP/1.1\r\nHost: server\r\n"
        f"Authorization: {server.admin['Authorization']}\r\nImpersonate-User: {ATTACKER}\r\n\r\n"
    )
    writer.write(head.encode())
    await writer.drain()
    return writer


@pytest.mark.parametrize("query", ["?watch=true", ""], ids=["watch", "list"])
async def test_unread_responses_take_little_memory(shared: AttackedServer, query: str) -> None:
    for number in range(20):
        await create(shared, f"large-{number}", str(number % 10) * OBJECT_BYTES)
    process = psutil.Process(shared.process.pid)
    before = process.memory_info().rss
    async with AsyncExitStack() as stack:
        for _ in range(40):
            writer = await open_unread(shared, CONFIG_MAPS + query)
            stack.push_async_callback(abort, writer)
        status, _ = await shared.request("GET", f"{CONFIG_MAPS}/large-1", user=OTHER)
        assert status == 200
        grown = process.memory_info().rss - before
    # 40 responses of 10 MB each; at most some parts of each are in memory.
    assert grown < 40 * 3 * OBJECT_BYTES


async def test_long_table_is_equal_to_the_tables_of_its_objects(shared: AttackedServer) -> None:
    for number in range(40):
        await create(shared, f"cm-{number:02}", "x" * 1000)
    accept = {"Accept": TABLE}
    status, table = await shared.request("GET", CONFIG_MAPS, user=OTHER, headers=accept)
    assert (status, table["kind"]) == (200, "Table")
    names = [row["cells"][0] for row in table["rows"]]
    assert names == [f"cm-{number:02}" for number in range(40)]


async def test_long_list_arrives_complete_plain_and_compressed(shared: AttackedServer) -> None:
    for number in range(3):
        await create(shared, f"large-{number}", str(number) * OBJECT_BYTES)
    for encoding in ("identity", "gzip"):
        headers = {"Accept-Encoding": encoding}
        status, found = await shared.request("GET", CONFIG_MAPS, user=OTHER, headers=headers)
        assert status == 200
        texts = [item["data"]["text"] for item in found["items"]]
        assert texts == [str(number) * OBJECT_BYTES for number in range(3)]


async def test_discovery_and_openapi_follow_the_definitions(shared: AttackedServer) -> None:
    """They are cached, and take a seat of the user as requests for objects do."""
    definition = {
        "metadata": {"name": "cached.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "cached", "kind": "Cached"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                }
            ],
        },
    }
    aggregated = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}
    openapi = "/openapi/v3/apis/example.com/v1"
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

    async def served() -> list[bool]:
        _, groups = await shared.request("GET", "/apis", user=OTHER)
        _, listed = await shared.request("GET", "/apis", user=OTHER, headers=aggregated)
        codes = [
            (await shared.request("GET", path, user=OTHER))[0]
            for path in ("/apis/example.com", "/apis/example.com/v1", openapi)
        ]
        return [
            "example.com" in [group["name"] for group in groups["groups"]],
            "example.com" in [item["metadata"]["name"] for item in listed["items"]],
            *(code == 200 for code in codes),
        ]

    assert await served() == [False] * 5
    status, body = await shared.request("POST", crds, json=definition)
    assert status == 201, body
    async with asyncio.timeout(30):
        while await served() != [True] * 5:
            await asyncio.sleep(0.05)
    await shared.request("DELETE", f"{crds}/cached.example.com")
    async with asyncio.timeout(30):
        while await served() != [False] * 5:
            await asyncio.sleep(0.05)
    status, body = await shared.request("GET", "/api/v2", user=OTHER)
    assert status == 404


async def test_openapi_is_answered_to_many_and_frees_its_seats(shared: AttackedServer) -> None:
    """40 requests are more than the seats of one user; probes of health need none."""
    path = "/openapi/v2"
    answers = await asyncio.gather(
        *(shared.request("GET", path, user=ATTACKER) for _ in range(40)),
        *(shared.request("GET", "/healthz", user=ATTACKER) for _ in range(40)),
    )
    assert [status for status, _ in answers] == [200] * 80
    _, text = await shared.request("GET", "/metrics")
    assert 'gangline_apiserver_seats_in_use{priority_level="global-default"} 0.0' in text
    assert 'gangline_apiserver_waiting_requests{priority_level="global-default"} 0.0' in text
