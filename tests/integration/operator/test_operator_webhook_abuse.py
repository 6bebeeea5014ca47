"""The webhook and clients that mean no good."""

import asyncio
import base64
import io
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
import pytest

from gangline.kube.client.client import ApiClient
from gangline.kube.probes import Address
from gangline.operator.main import all_frameworks
from gangline.operator.settings import OperatorSettings
from gangline.operator.webhook import certificate as rotation
from gangline.operator.webhook.component import run_webhook
from gangline.operator.webhook.server import MAX_BODY_BYTES
from integration.operator.cluster import PATIENCE_S
from integration.operator.webhook import (
    SETTINGS,
    bundle,
    certificate,
    job,
    secret,
    until,
    webhook,
)


@pytest.fixture
async def session(client: ApiClient) -> AsyncIterator[Callable[..., Awaitable[tuple[int, str]]]]:
    """Sends anything to the webhook; gives the code and the answer."""
    async with webhook(client) as started, aiohttp.ClientSession() as session:
        ring = rotation.parse_certificate_set((await secret(client)).data)
        context = ssl.create_default_context(cadata=ring.serving.authority.pem)

        async def send(
            body: bytes,
            kind: str = "application/json",
            path: str = "/validate",
            method: str = "POST",
        ) -> tuple[int, str]:
            url = f"https://127.0.0.1:{started.server.port}{path}"
            headers = {"Content-Type": kind}
            async with session.request(
                method, url, data=io.BytesIO(body), headers=headers, ssl=context
            ) as answer:
                return answer.status, await answer.text()

        yield send


def a_review(**request: Any) -> bytes:
    return msgspec.json.encode(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {"uid": "u", "operation": "CREATE", **request},
        }
    )


async def test_whatever_is_sent_gets_an_answer(
    session: Callable[..., Awaitable[tuple[int, str]]],
) -> None:
    sent: dict[str, Any]
    for sent, code, words in (
        ({"body": b"junk"}, 400, "no AdmissionReview"),
        ({"body": b""}, 400, "no AdmissionReview"),
        ({"body": b"[" * 500_000}, 400, "no AdmissionReview|deeply"),
        ({"body": b"x", "kind": "text/plain"}, 415, "application/json"),
        ({"body": b" " * (MAX_BODY_BYTES + 1)}, 413, ""),
        ({"body": b"{}", "path": "/other"}, 404, ""),
        ({"body": b"{}", "method": "PUT"}, 405, ""),
        ({"body": b"", "method": "GET"}, 405, ""),
        ({"body": a_review()}, 200, "no object"),
        ({"body": a_review(object={"apiVersion": "a/v1", "kind": "B"})}, 200, "true"),
        ({"body": a_review(object=job() | {"spec": "x"}), "path": "/default"}, 200, "true"),
    ):
        status, text = await session(**sent)
        assert status == code, (sent["body"][:99], text)
        assert any(word in text for word in words.split("|")), text
        status, text = await session(a_review(object=job()))
        assert (status, msgspec.json.decode(text)["response"]["allowed"]) == (200, True)


async def test_a_large_job_is_reviewed_beside_the_others(
    session: Callable[..., Awaitable[tuple[int, str]]],
) -> None:
    large = job()
    container = large["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": f"V{n}", "value": "x" * 100} for n in range(8000)]
    status, text = await session(a_review(object=large))
    assert (status, msgspec.json.decode(text)["response"]["allowed"]) == (200, True)
    status, text = await session(a_review(object=large), path="/default")
    patch = msgspec.json.decode(text)["response"]["patch"]
    assert msgspec.json.decode(base64.b64decode(patch))[0]["op"] == "add"


async def test_silent_or_junk_connections_do_not_block_others(client: ApiClient) -> None:
    async with webhook(client) as started:
        port = started.server.port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        for _, writer in silent[:25]:
            writer.write(b"GET / HTTP/1.1\r\n\r\n" + b"\x00" * 1000)
        assert await certificate(port, await bundle(client))
        for _, writer in silent:
            writer.close()


@pytest.mark.slow
async def test_occupied_port_is_reported_and_bound_when_free(
    client: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = blocker.sockets[0].getsockname()[1]
    settings = replace(SETTINGS, address=Address("127.0.0.1", port))
    async with run_webhook(client, settings, all_frameworks(OperatorSettings())) as started:
        assert started is not None

        async def reported() -> bool:
            return "--webhook-bind-address" in caplog.text

        await until(reported, "the flag is named")
        assert not started.server.is_serving
        blocker.close()
        await blocker.wait_closed()
        async with asyncio.timeout(PATIENCE_S):
            await started.controller.registered.wait()
        assert await certificate(port, await bundle(client))
    assert caplog.text.count("--webhook-bind-address") == 1
