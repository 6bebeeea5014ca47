"""Malformed HTTP requests, and the objects of a new cluster."""

import asyncio
import json
import ssl

from gangline.api import resources
from gangline.api.core.core import PersistentVolumeClaim, StorageClass
from gangline.api.meta.objects import ObjectMeta
from gangline.kube.client.client import ApiClient
from gangline.local.apiserver.server import ApiServer, ApiServerSettings

LINES = "Host: x\r\nAuthorization: Bearer {token}\r\n"


async def raw_response(server: ApiServer, text: str) -> tuple[str, dict[str, object]]:
    """The status line and the body of the answer to a raw request."""
    trusted = ssl.create_default_context(cafile=str(server.ca_path))
    port = int(server.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
    writer.write(text.format(token=server.admin_token).encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
    body = json.loads(await reader.readexactly(length))
    writer.close()
    return head.partition("\r\n")[0], body


async def test_what_is_hardly_http_is_answered_with_a_status(api_server: ApiServer) -> None:
    for text, code, reason in (
        (f"FOO /api/v1/pods HTTP/1.1\r\n{LINES}\r\n", 405, "MethodNotAllowed"),
        (f"OPTIONS /api/v1/pods HTTP/1.1\r\n{LINES}\r\n", 405, "MethodNotAllowed"),
        (f"GET /{'a' * 40_000} HTTP/1.1\r\n{LINES}\r\n", 431, "RequestHeaderFieldsTooLarge"),
        (
            f"GET /api HTTP/1.1\r\n{LINES}X: {'a' * 40_000}\r\n\r\n",
            431,
            "RequestHeaderFieldsTooLarge",
        ),
        (f"GET /api HTTP/9.9\r\n{LINES}\r\n", 400, "BadRequest"),
        ("\0\1\2 nonsense\r\n\r\n", 405, "MethodNotAllowed"),
        (f"POST /api HTTP/1.1\r\n{LINES}Content-Length: -5\r\n\r\n", 400, "BadRequest"),
        (f"GET /api HTTP/1.1\r\n{LINES}no header at all\r\n\r\n", 400, "BadRequest"),
    ):
        line, status = await raw_response(api_server, text)
        assert f" {code} " in line
        assert (status["kind"], status["code"], status["reason"]) == ("Status", code, reason)


async def test_the_servers_own_service_has_endpoints_that_follow_it(api_server: ApiServer):
    async with ApiClient(api_server.config) as client:
        found = await client.get(resources.ENDPOINTS, "kubernetes", "default")
    assert _places(found) == [api_server.url.removeprefix("https://")]
    await api_server.stop()
    again = ApiServer(ApiServerSettings(data=api_server.settings.data))
    await again.start()
    try:
        async with ApiClient(again.config) as client:
            found = await client.get(resources.ENDPOINTS, "kubernetes", "default")
        assert _places(found) == [again.url.removeprefix("https://")]
    finally:
        await again.stop()


def _places(endpoints: object) -> list[str]:
    (subset,) = endpoints.subsets
    return [f"{address.ip}:{port.port}" for address in subset.addresses for port in subset.ports]


async def test_a_claim_that_leaves_its_class_open_gets_the_default_one(client: ApiClient):
    claim = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": 1}}}}

    async def made(name: str, **spec: str) -> PersistentVolumeClaim:
        body = {"metadata": {"name": name}, "spec": {**claim["spec"], **spec}}
        return await client.create(resources.PERSISTENT_VOLUME_CLAIMS, body, "default")

    assert (await made("before")).spec.storage_class_name is None
    note = {"storageclass.kubernetes.io/is-default-class": "true"}
    default = StorageClass(metadata=ObjectMeta(name="usual", annotations=note), provisioner="p")
    await client.create(resources.STORAGE_CLASSES, default)
    assert (await made("open")).spec.storage_class_name == "usual"
    assert (await made("none", storageClassName="")).spec.storage_class_name == ""
    assert (await made("named", storageClassName="x")).spec.storage_class_name == "x"
