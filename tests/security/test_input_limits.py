"""Input that is cheap to send and expensive to read: refused, while others are served.

Takes 30 s: limits are times that have to pass.
"""

import asyncio
import contextlib
import gzip
import io
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest

from security.conftest import AttackedServer

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THINGS = "/apis/example.com/v1/namespaces/default/things"
YAML = {"Content-Type": "application/yaml"}
JSON = {"Content-Type": "application/json"}
PROTOBUF = {"Content-Type": "application/vnd.kubernetes.protobuf"}
MIB = 1 << 20

ANSWER_WITHIN_S = 60.0
"""Long enough for a machine that stands still; an attack that works takes far longer."""


async def is_served(server: AttackedServer) -> None:
    """Another client is answered."""
    async with asyncio.timeout(ANSWER_WITHIN_S):
        status, _ = await server.request("GET", "/api/v1/namespaces/default")
    assert status == 200


async def check_refused(
    server: AttackedServer, path: str, headers: dict[str, str], cases: Mapping[str, tuple[str, int]]
) -> None:
    """Each body is refused with its status; the server answers others afterwards."""
    found = {}
    async with asyncio.timeout(ANSWER_WITHIN_S):
        for name, (body, _) in cases.items():
            found[name], _ = await server.request(
                "POST", path, headers=headers, data=io.BytesIO(body.encode())
            )
    assert found == {name: code for name, (_, code) in cases.items()}
    await is_served(server)


def memory_mib(server: AttackedServer) -> float:
    """Return the resident memory of the server."""
    return psutil.Process(server.process.pid).memory_info().rss / MIB  # type: ignore[attr-defined]


def config_map(**more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "it"}, **more}


def definition(value: dict[str, Any], **version: Any) -> dict[str, Any]:
    """The definition of Thing, whose ``spec.value`` has a schema."""
    spec = {"type": "object", "properties": {"value": value}}
    schema = {"type": "object", "properties": {"spec": spec}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [
                {"name": "v1", "served": True, "storage": True}
                | {"schema": {"openAPIV3Schema": schema}}
                | version
            ],
        },
    }


def thing(value: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"name": "it"},
        "spec": {"value": value},
    }


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def protobuf_field(number: int, content: bytes) -> bytes:
    size, head = len(content), bytes([number << 3 | 2])
    while size > 0x7F:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    return head + bytes([size]) + content


def role_binding(subjects: int) -> bytes:
    """A RoleBinding in protobuf with many empty subjects, of two bytes each."""
    kind = protobuf_field(1, b"rbac.authorization.k8s.io/v1") + protobuf_field(2, b"RoleBinding")
    metadata = protobuf_field(1, protobuf_field(1, b"it"))
    body = metadata + protobuf_field(2, b"") * subjects
    return b"k8s\0" + protobuf_field(1, kind) + protobuf_field(2, body)


async def test_a_yaml_number_in_base_60_is_text(attacked: AttackedServer) -> None:
    value = "1" + ":59" * 100_000
    body = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: it}}\ndata:\n  a: {value}\n"
    status, made = await attacked.request("POST", CONFIG_MAPS, headers=YAML, data=body)
    assert status == 201, made
    assert made["data"]["a"] == value


ALIASES = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)
)
YAML_CASES = {
    "broken": ("a: [", 400),
    "an object that contains itself": ("metadata: &a {name: *a}", 400),
    "number of 5,000 digits": ("a: " + "9" * 5000, 400),
    "infinite number": ("a: 1e999", 400),
    "base 60 by a tag": ("a: !!int 1:1", 400),
    "many documents": ("---\na: 1\n" * 100_000, 400),
    "many values": ("a: [" + "1," * 300_000 + "]", 400),
    "depth": ("[" * 200_000, 400),
    "aliases of aliases": (ALIASES, 400),
    "merges of merges": (MERGES, 400),
}


async def test_yaml_beyond_the_limits_is_refused(attacked: AttackedServer) -> None:
    await check_refused(attacked, CONFIG_MAPS, YAML, YAML_CASES)


JSON_CASES = {
    "number of 5,000 digits": ('{"data": ' + "9" * 5000 + "}", 400),
    "number of more than 64 bits": ('{"data": {"a": ' + "9" * 30 + "}}", 400),
    "infinite number": ('{"data": 1e999}', 400),
    "depth 150": (nested(150), 400),
    "depth 900": (nested(900), 400),
    "depth 100,000": (nested(100_000), 400),
    "open brackets": ("[" * 1_000_000, 400),
    "many values": ('{"data": [' + "0," * 150_000 + "0]}", 413),
    "more than 3 MiB": (" " * (3 * MIB + 1), 413),
}


async def test_json_beyond_the_limits_is_refused(attacked: AttackedServer) -> None:
    await check_refused(attacked, CONFIG_MAPS, JSON, JSON_CASES)


async def test_a_compressed_body_is_not_inflated(attacked: AttackedServer) -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    for content in (gzip.compress(b" " * (64 * MIB)), b"no gzip"):
        status, body = await attacked.request("POST", CONFIG_MAPS, headers=headers, data=content)
        assert (status, body["kind"]) == (400, "Status"), body


async def test_protobuf_with_many_values_is_refused(attacked: AttackedServer) -> None:
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
    async with asyncio.timeout(ANSWER_WITHIN_S):
        status, body = await attacked.request(
            "POST", path, headers=PROTOBUF, data=role_binding(400_000)
        )
    assert status == 400, body
    assert "more than 100000 values" in body["message"]


async def test_a_pattern_takes_time_linear_in_the_text(attacked: AttackedServer) -> None:
    crd = definition({"type": "string", "pattern": "^(a+)+$"})
    status, body = await attacked.request("POST", CRDS, json=crd)
    assert status == 201, body
    async with asyncio.timeout(ANSWER_WITHIN_S):
        status, body = await attacked.request("POST", THINGS, json=thing("a" * 100_000 + "b"))
    assert status == 422
    status, body = await attacked.request("POST", THINGS, json=thing("aaa"))
    assert status == 201, body


async def test_a_quantity_of_a_million_digits_is_read_once(attacked: AttackedServer) -> None:
    crd = definition({"type": "string", "format": "quantity"})
    status, body = await attacked.request("POST", CRDS, json=crd)
    assert status == 201, body
    async with asyncio.timeout(ANSWER_WITHIN_S):
        large = io.BytesIO(json.dumps(thing("1" * MIB + "x")).encode())
        status, body = await attacked.request("POST", THINGS, headers=JSON, data=large)
    assert status == 422


async def test_printer_columns_beyond_the_limits_are_refused(attacked: AttackedServer) -> None:
    paths = [".a" * 50_000, "." + "[0]" * 50_000, ".a[" + "9" * 3000 + "]", ".a[?(" + "@" * 4000]
    column = {"name": "A", "type": "string"}
    cases = [[{**column, "jsonPath": path}] for path in paths]
    cases.append([{**column, "jsonPath": ".a"}] * 10_000)
    for columns in cases:
        crd = definition({"type": "string"}, additionalPrinterColumns=columns)
        body = io.BytesIO(json.dumps(crd).encode())
        async with asyncio.timeout(ANSWER_WITHIN_S):
            status, answer = await attacked.request("POST", CRDS, headers=JSON, data=body)
        assert status == 422, answer
    await is_served(attacked)


def managed_fields(count: int) -> list[dict[str, Any]]:
    return [
        {"manager": f"m{n}", "operation": "Update", "fieldsV1": {"f:a": {}}} for n in range(count)
    ]


async def test_managed_fields_are_merged_in_linear_time(attacked: AttackedServer) -> None:
    status, _ = await attacked.request("POST", CONFIG_MAPS, json=config_map())
    assert status == 201
    for count, expected in ((19_000, 200), (21_000, 413)):
        many = config_map(data={"k": "v"})
        many["metadata"]["managedFields"] = managed_fields(count)
        body = io.BytesIO(json.dumps(many).encode())
        async with asyncio.timeout(ANSWER_WITHIN_S):
            status, answer = await attacked.request(
                "PUT", f"{CONFIG_MAPS}/it", headers=JSON, data=body
            )
        assert status == expected, answer
        if status == 200:
            assert len(answer["metadata"]["managedFields"]) <= 11
    await is_served(attacked)


async def test_an_error_is_not_many_times_the_request(attacked: AttackedServer) -> None:
    """Each error repeats the path of its field, and a key in it may be as long as the body."""
    shapes: tuple[dict[str, Any], ...] = (
        {"data": {f"k{n}": 1 for n in range(50_000)}},
        {"data": {"k" * 1_000_000: {"a": 1}}},
        {f"unknown{n}": n for n in range(50_000)},
    )
    for shape in shapes:
        content = json.dumps(config_map(**shape)).encode()
        reader, writer = await attacked.connect()
        head = _head(attacked, f"POST {CONFIG_MAPS}?fieldValidation=Strict HTTP/1.1")
        head += b"Content-Type: application/json\r\nConnection: close\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        async with asyncio.timeout(ANSWER_WITHIN_S):
            answer = await reader.read()
        writer.close()
        assert answer.split()[1] in (b"400", b"422"), answer[:200]
        assert len(answer) < 200_000
    await is_served(attacked)


DIGITS = "9" * 5000


QUERIES = [
    f"resourceVersion={DIGITS}",
    f"resourceVersion={DIGITS}&resourceVersionMatch=Exact",
    f"watch=1&resourceVersion={DIGITS}",
    "resourceVersion=%D9%A3",
    f"limit={DIGITS}",
    "limit=99999999999999999999",
    f"watch=1&timeoutSeconds={DIGITS}",
    "continue=" + "A" * 20_000,
    "continue=%00%ff",
    "labelSelector=" + "!a," * 2000 + "!a",
    "labelSelector=a+in+(" + "b," * 2000 + "b)",
    "labelSelector=" + "," * 20_000,
    "labelSelector=a>" + DIGITS,
    "fieldSelector=" + "metadata.name!=a," * 1500 + "metadata.name!=a",
    "&".join(f"a{n}=1" for n in range(3000)),
]


async def test_options_beyond_the_limits_are_refused(attacked: AttackedServer) -> None:
    for query in QUERIES:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            status, body = await attacked.request("GET", f"{CONFIG_MAPS}?{query}")
        assert status == 400, (query[:60], body)


async def test_a_watch_may_ask_for_an_age(attacked: AttackedServer) -> None:
    reader, writer = await attacked.connect()
    query = "watch=1&timeoutSeconds=9223372036854775807"
    writer.write(_head(attacked, f"GET {CONFIG_MAPS}?{query} HTTP/1.1") + b"\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    await is_served(attacked)
    writer.close()


def _head(server: AttackedServer, line: str) -> bytes:
    return f"{line}\r\nHost: it\r\nAuthorization: {server.admin['Authorization']}\r\n".encode()


async def _sent(server: AttackedServer, content: bytes) -> bytes:
    """Send bytes on a new connection; return what comes until the server closes it."""
    reader, writer = await server.connect()
    try:
        writer.write(content)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def _connect_only(server: AttackedServer) -> bytes:
    """Connect without a TLS handshake; return what comes until the server closes."""
    parts = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.slow
async def test_requests_that_do_not_arrive_end_in_seconds(attacked: AttackedServer) -> None:
    post = _head(attacked, f"POST {CONFIG_MAPS} HTTP/1.1")
    async with asyncio.timeout(ANSWER_WITHIN_S):
        no_tls, silent, half, cut_body, chunked = await asyncio.gather(
            _connect_only(attacked),
            _sent(attacked, b""),
            _sent(attacked, post),
            _sent(attacked, post + b'Content-Length: 100\r\n\r\n{"kind"'),
            _sent(attacked, post + b'Transfer-Encoding: chunked\r\n\r\n7\r\n{"kind"\r\n'),
        )
    assert (no_tls, silent, half) == (b"", b"", b"")
    assert cut_body.startswith(b"HTTP/1.1 408")
    assert chunked.startswith(b"HTTP/1.1 408")
    await is_served(attacked)


HEADERS = {
    "many": b"".join(b"X-A%d: b\r\n" % n for n in range(500)),
    "one long": b"X-A: " + b"b" * 40_000 + b"\r\n",
    "together": b"".join(b"X-A%d: %s\r\n" % (n, b"b" * 30_000) for n in range(100)),
    "long name": b"X" * 400_000 + b": b\r\n",
}


async def test_headers_beyond_the_limits_are_refused(attacked: AttackedServer) -> None:
    head = _head(attacked, "GET /version HTTP/1.1")
    for name, headers in HEADERS.items():
        async with asyncio.timeout(ANSWER_WITHIN_S):
            answer = await _sent(attacked, head + headers + b"\r\n")
        assert answer == b"" or answer.split()[1] in (b"400", b"431"), (name, answer[:200])
    await is_served(attacked)


NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n"},
    "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
    },
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
}
PORT_FORWARD = "/api/v1/namespaces/default/pods/p/portforward"


async def create_pod(server: AttackedServer) -> None:
    """A pod on a node whose kubelet nobody reaches: port-forward starts without it."""
    assert (await server.request("POST", "/api/v1/nodes", json=NODE))[0] == 201
    status, body = await server.request("PUT", "/api/v1/nodes/n/status", json=NODE)
    assert status == 200, body
    status, body = await server.request("POST", "/api/v1/namespaces/default/pods", json=POD)
    assert status == 201, body


def spdy_control(kind: int, payload: bytes) -> bytes:
    return struct.pack(">HHI", 0x8003, kind, len(payload)) + payload


def syn_stream(identity: int, block: bytes) -> bytes:
    return spdy_control(1, struct.pack(">IIBB", identity, 0, 0, 0) + block)


def header_bomb(inflated: int) -> bytes:
    # The protocol's dictionary is not needed to inflate a stream of zeros, only its checksum.
    from gangline.local.apiserver.kubelet_proxy.spdy import DICTIONARY

    deflate = zlib.compressobj(9, zdict=DICTIONARY)
    zeros = b"\0" * MIB
    return b"".join(deflate.compress(zeros) for _ in range(inflated // MIB)) + deflate.flush()


def peak_memory_bytes(server: AttackedServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


async def open_spdy(
    server: AttackedServer,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await server.connect()
    head = _head(server, f"POST {PORT_FORWARD} HTTP/1.1")
    head += b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    writer.write(head + b"X-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n")
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101"), answer
    return reader, writer


async def test_spdy_beyond_the_limits_ends_the_connection(attacked: AttackedServer) -> None:
    await create_pod(attacked)
    for frames in (
        syn_stream(1, header_bomb(1024 * MIB)),
        struct.pack(">II", 1, 0xFFFFFF) + b"x",
        syn_stream(1, b"\0" * 100),
        spdy_control(1, b""),
        struct.pack(">HHI", 0x8002, 1, 0),
    ):
        reader, writer = await open_spdy(attacked)
        async with asyncio.timeout(ANSWER_WITHIN_S):
            writer.write(frames)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
    await is_served(attacked)
    assert peak_memory_bytes(attacked) < 400 * MIB


async def test_spdy_replies_that_are_not_read_end_the_connection(attacked: AttackedServer) -> None:
    await create_pod(attacked)
    _, writer = await open_spdy(attacked)
    pings = spdy_control(6, b"\0\0\0\1") * 10_000

    async def send_forever() -> None:
        while True:
            writer.write(pings)
            await writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(send_forever(), ANSWER_WITHIN_S)
    await is_served(attacked)
    assert peak_memory_bytes(attacked) < 400 * MIB


async def test_websocket_messages_beyond_the_limits_end_the_connection(
    attacked: AttackedServer,
) -> None:
    await create_pod(attacked)
    ended = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    connector = aiohttp.TCPConnector(ssl=attacked.tls)
    async with aiohttp.ClientSession(connector=connector, headers=attacked.admin) as session:
        for protocol, message in (
            ("SPDY/3.1+portforward.k8s.io", b"x" * (5 * MIB)),
            ("SPDY/3.1+portforward.k8s.io", b"\xff" * 100),
        ):
            url = attacked.url + PORT_FORWARD
            async with (
                asyncio.timeout(ANSWER_WITHIN_S),
                session.ws_connect(url, protocols=(protocol,)) as socket,
            ):
                await socket.send_bytes(message)
                assert (await socket.receive()).type in ended
    await is_served(attacked)


async def test_too_many_ports_are_refused(attacked: AttackedServer) -> None:
    await create_pod(attacked)
    ports = ",".join(str(port) for port in range(1, 5000))
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Protocol": "v4.channel.k8s.io",
    }
    status, body = await attacked.request("GET", f"{PORT_FORWARD}?ports={ports}", headers=headers)
    assert status == 400, body


async def test_accept_headers_leave_no_memory_behind(attacked: AttackedServer) -> None:
    before = memory_mib(attacked)
    for number in range(100):
        accepted = {"Accept": "," * (30_000 + number)}
        status, _ = await attacked.request("GET", "/api/v1/namespaces", headers=accepted)
        assert status == 200
    assert memory_mib(attacked) - before < 100  # 300 MiB if each of them is kept
