"""Abusive clients: the API server responds with a Status where possible, and stays available."""

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
import pytest

from gangline.kube.http.transport import tls_context
from gangline.local.apiserver.server import ApiServer

MAPS = "/api/v1/namespaces/default/configmaps"
MAP = f"{MAPS}/victim"
JSON, YAML = "application/json", "application/yaml"
MERGE, OPERATIONS = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
SLOW_CLIENTS = 200


def bomb(levels: int = 10) -> str:
    """A few lines of YAML that stand for 9 to the power of ``levels`` texts."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


COPIES = [{"op": "copy", "from": "/data", "path": f"/data/c{n}"} for n in range(60)]
GARBAGE: dict[str, tuple[str, str, str, bytes | str, int]] = {
    "half an object": ("POST", MAPS, JSON, "{", 400),
    "nothing": ("POST", MAPS, JSON, "", 400),
    "a list": ("POST", MAPS, JSON, "[]", 400),
    "not UTF-8": ("POST", MAPS, JSON, b'{"metadata":{"name":"\xff"}}', 400),
    "a thousand levels": ("POST", MAPS, JSON, nested(1000), 400),
    "a hundred thousand levels": ("POST", MAPS, JSON, nested(100_000), 400),
    "a merge patch of many levels": ("PATCH", MAP, MERGE, nested(100_000), 400),
    "a strategic patch of many levels": ("PATCH", MAP, STRATEGIC, nested(100_000), 400),
    "broken YAML": ("POST", MAPS, YAML, "a: [", 400),
    "a bomb of aliases": ("POST", MAPS, YAML, bomb(), 400),
    "YAML that contains itself": ("POST", MAPS, YAML, "metadata: &a {name: *a}", 400),
    "YAML of many levels": ("POST", MAPS, YAML, "[" * 50_000, 400),
    "another form": ("POST", MAPS, "text/xml", "<map/>", 415),
    "a patch of no kind": ("PATCH", MAP, JSON, "{}", 415),
    "an unknown operation": ("PATCH", MAP, OPERATIONS, '[{"op":"frob","path":"/a"}]', 400),
    "copies of copies": ("PATCH", MAP, OPERATIONS, json.dumps(COPIES), 413),
    "too many operations": ("PATCH", MAP, OPERATIONS, json.dumps(COPIES[:1] * 10_001), 413),
    "five megabytes": ("POST", MAPS, JSON, '{"data":{"a":"' + "x" * (5 << 20) + '"}}', 413),
    "a method for another path": ("PUT", MAPS, JSON, "{}", 405),
    "a method of another protocol": ("TRACE", MAPS, JSON, "", 405),
}


@pytest.fixture
async def session(api_server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    config = api_server.config
    credential = await config.credentials.current()
    connector = aiohttp.TCPConnector(ssl=tls_context(config, credential), limit=0)
    headers = {"Authorization": credential.authorization}
    async with aiohttp.ClientSession(
        config.server,
        connector=connector,
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=20),
    ) as opened:
        yield opened


async def make_victim(session: aiohttp.ClientSession) -> None:
    """The object that patches are tried on."""
    body = {"metadata": {"name": "victim"}, "data": {"a": "x" * 1000}}
    async with session.post(MAPS, json=body) as answer:
        assert answer.status == 201, await answer.text()


async def test_garbage_gets_an_error_message_and_changes_nothing(
    session: aiohttp.ClientSession,
) -> None:
    await make_victim(session)
    async with session.get(MAP) as answer:
        before = await answer.json()
    for what, (method, path, media, body, code) in GARBAGE.items():
        data = body.encode() if isinstance(body, str) else body
        headers = {"Content-Type": media}
        async with session.request(method, path, data=io.BytesIO(data), headers=headers) as answer:
            status = await answer.json()
        assert answer.status == code, (what, status)
        assert status["kind"] == "Status", what
        assert status["code"] == code, what
        assert status["message"], what
    async with session.get(MAP) as answer:
        assert await answer.json() == before


async def test_a_body_that_cannot_be_unpacked_is_the_clients_mistake(
    session: aiohttp.ClientSession,
) -> None:
    headers = {"Content-Type": JSON, "Content-Encoding": "gzip"}
    async with session.post(MAPS, data=b"no gzip", headers=headers) as answer:
        assert answer.status == 400
        assert (await answer.json())["kind"] == "Status"


async def raw(api_server: ApiServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of which only TLS is valid."""
    address = urlsplit(api_server.config.server)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await asyncio.open_connection(address.hostname, address.port, ssl=context)


async def answers(session: aiohttp.ClientSession) -> bool:
    async with session.get("/readyz") as answer:
        return answer.status == 200


@pytest.mark.parametrize(
    "words",
    [
        b"\x00\x01\x02 nonsense\r\n\r\n",
        b"BREW /api/v1/namespaces HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /api HTTP/1.1\r\nX-Long: " + b"x" * 100_000 + b"\r\n\r\n",
        b"POST /api HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /api HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["no HTTP", "an unknown verb", "a huge header", "a negative length", "broken chunks"],
)
async def test_what_is_no_request_ends_its_connection_only(
    api_server: ApiServer, session: aiohttp.ClientSession, words: bytes
) -> None:
    reader, writer = await raw(api_server)
    writer.write(words)
    await writer.drain()
    async with asyncio.timeout(10):
        expected = await reader.readline()
    assert expected.split()[1] in (b"400", b"401", b"405", b"431"), expected
    writer.transport.abort()
    assert await answers(session)


async def test_clients_that_never_finish_do_not_hold_up_others(
    api_server: ApiServer, session: aiohttp.ClientSession
) -> None:
    beginning = b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: a\r\nContent-Len"
    connections = await asyncio.gather(*(raw(api_server) for _ in range(SLOW_CLIENTS)))
    for _, writer in connections:
        writer.write(beginning)
    await asyncio.gather(*(writer.drain() for _, writer in connections))
    await make_victim(
        session
    )  # the session waits 20 s for a response, the others never send anything
    assert await answers(session)
    for number, (_, writer) in enumerate(connections):
        if number % 2:
            writer.transport.abort()  # without closing the session
        else:
            writer.close()
    assert await answers(session)
