"""The server of metrics, health and the dashboard."""

import asyncio
import logging

import pytest
from aiohttp import web

from gangline.kube.probes import Address, listen


@pytest.mark.parametrize(
    "request_line", [b"GET /?q=\xe4\xbd\x9c HTTP/1.1", b"GET / HTTP/9.9.9", b"\x16\x03\x01", b"no"]
)
async def test_a_malformed_request_is_answered_without_a_traceback_in_the_log(
    request_line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with listen(web.Application(), Address("127.0.0.1", 0), "") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_line + b"\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
    assert not caplog.records


async def test_a_request_that_fails_by_a_fault_of_the_server_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(_: web.Request) -> web.Response:
        raise RuntimeError("a fault")

    app = web.Application()
    app.add_routes([web.get("/", fail)])
    async with listen(app, Address("127.0.0.1", 0), "") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b" 500 " in await reader.readline()
        writer.close()
    assert "a fault" in caplog.text
