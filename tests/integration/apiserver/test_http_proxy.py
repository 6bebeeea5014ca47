"""The subresource ``proxy`` of pods and services: HTTP requests to what runs in a pod."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gangline.api import resources
from gangline.kube.client.client import ApiClient
from gangline.local.apiserver.server import ApiServer

ADDRESS = "127.64.9.9"
"""An address of a pod without a network of its own."""
ROOT = "/api/v1/namespaces/default"


async def describe(request: web.Request) -> web.StreamResponse:
    if request.path == "/moved":
        raise web.HTTPFound("/elsewhere")
    seen = {
        "method": request.method,
        "path": request.raw_path,
        "body": (await request.read()).decode(),
        "headers": {name.lower(): value for name, value in request.headers.items()},
    }
    return web.json_response(seen, status=418, headers={"X-Own": "kept"})


@pytest.fixture
async def proxied(client: ApiClient) -> AsyncIterator[int]:
    """The port of a server in a pod, which a service of the same name selects."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", describe)
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, 0).start()
    port = int(runner.addresses[0][1])
    containers = [{"name": "c", "image": "i", "ports": [{"containerPort": port}]}]
    await client.create(
        resources.PODS, {"metadata": {"name": "web"}, "spec": {"containers": containers}}, "default"
    )
    status = {"status": {"podIP": ADDRESS}}
    await client.patch(resources.PODS, "web", status, "default", subresource="status")
    ports = [{"name": "http", "port": 80, "targetPort": port}]
    await client.create(
        resources.SERVICES, {"metadata": {"name": "web"}, "spec": {"ports": ports}}, "default"
    )
    subsets = [{"addresses": [{"ip": ADDRESS}], "ports": [{"name": "http", "port": port}]}]
    await client.create(
        resources.ENDPOINTS, {"metadata": {"name": "web"}, "subsets": subsets}, "default"
    )
    yield port
    await runner.cleanup()


@asynccontextmanager
async def asked(
    server: ApiServer, method: str, path: str, **options: Any
) -> AsyncIterator[aiohttp.ClientResponse]:
    tls = ssl.create_default_context(cafile=server.ca_path)
    headers = {"Authorization": f"Bearer {server.admin_token}", **options.pop("headers", {})}
    connector = aiohttp.TCPConnector(ssl=tls)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.request(
            method, f"{server.url}{ROOT}{path}", headers=headers, allow_redirects=False, **options
        ) as answer,
    ):
        yield answer


@pytest.mark.parametrize(
    "name", ["pods/web", "services/web", "services/web:80", "services/http:web:http"]
)
async def test_request_and_answer_are_passed_on_unchanged(
    api_server: ApiServer, proxied: int, name: str
) -> None:
    path = f"/{name}/proxy/a%2Fb//c?watch=true&x=1"
    async with asked(api_server, "PUT", path, data=b"text", headers={"X-Mine": "1"}) as answer:
        seen = await answer.json()
        assert (answer.status, answer.headers["X-Own"]) == (418, "kept")
    assert (seen["method"], seen["body"]) == ("PUT", "text")
    assert seen["path"] == "/a%2Fb//c?watch=true&x=1"
    assert seen["headers"]["x-mine"] == "1"
    assert seen["headers"]["host"] == f"{ADDRESS}:{proxied}"
    assert "authorization" not in seen["headers"]


@pytest.mark.usefixtures("proxied")
async def test_redirects_stay_below_the_proxy(api_server: ApiServer) -> None:
    for path, location in (("", "/"), ("?a=1", "/?a=1"), ("/moved", "/elsewhere")):
        async with asked(api_server, "GET", f"/pods/web/proxy{path}") as answer:
            assert answer.headers["Location"] == f"{ROOT}/pods/web/proxy{location}"
    for method in ("POST", "OPTIONS"):
        async with asked(api_server, method, "/pods/web/proxy?a=1", data="text") as answer:
            seen = await answer.json()
        assert (seen["method"], seen["path"], seen["body"]) == (method, "/?a=1", "text")


@pytest.mark.usefixtures("proxied")
@pytest.mark.parametrize(
    ("path", "code", "why"),
    [
        ("/pods/other/proxy/", 404, "not found"),
        ("/pods/web:1/proxy/", 503, "error trying to reach service"),
        ("/pods/web:x/proxy/", 400, "is not a port"),
        ("/services/web:81/proxy/", 503, "no service port"),
        ("/services/ftp:web:80/proxy/", 400, "SCHEME:NAME:PORT"),
    ],
)
async def test_what_cannot_be_reached_is_a_status(
    api_server: ApiServer, path: str, code: int, why: str
) -> None:
    async with asked(api_server, "GET", path) as answer:
        status = await answer.json()
    assert (answer.status, status["code"]) == (code, code)
    assert why in status["message"]


@pytest.mark.usefixtures("proxied")
@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::1", "x.example:80/"])
async def test_only_addresses_of_pods_are_proxied(
    api_server: ApiServer, client: ApiClient, address: str
) -> None:
    """Whoever writes the status of a pod must not reach other programs through the API server."""
    status = {"status": {"podIP": address}}
    await client.patch(resources.PODS, "web", status, "default", subresource="status")
    async with asked(api_server, "GET", "/pods/web/proxy/") as answer:
        assert answer.status == 400
        assert "address not allowed" in (await answer.json())["message"]


@pytest.mark.usefixtures("proxied")
async def test_a_proxied_request_needs_its_own_right(
    api_server: ApiServer, client: ApiClient
) -> None:
    account = await client.request_json(
        "POST", f"{ROOT}/serviceaccounts", body={"metadata": {"name": "reader"}}
    )
    assert account["metadata"]["name"] == "reader"
    issued = await client.request_json(
        "POST", f"{ROOT}/serviceaccounts/reader/token", body={"spec": {}}
    )
    headers = {"Authorization": f"Bearer {issued['status']['token']}"}
    async with asked(api_server, "POST", "/pods/web/proxy/x", headers=headers) as answer:
        assert answer.status == 403
        message = (await answer.json())["message"]
    assert 'cannot create resource "pods/proxy"' in message
