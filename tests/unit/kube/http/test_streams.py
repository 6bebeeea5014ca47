"""Streams and WebSockets: the message when they cannot be opened."""

from contextlib import aclosing

import pytest

from gangline.kube import errors
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from unit.kube.fake_server import THINGS


async def first_of(client):
    async with aclosing(client.watch(THINGS)) as events:
        return await anext(events)


async def test_watch_without_a_server_raises_with_the_cause(unused_tcp_port):
    async with ApiClient(ClusterConfig(f"http://127.0.0.1:{unused_tcp_port}")) as client:
        with pytest.raises(
            errors.Unreachable,
            match=r"cannot be reached: Connection refused\. Is the cluster running",
        ):
            await first_of(client)


async def test_exec_without_a_server_raises_with_the_cause(unused_tcp_port):
    async with ApiClient(ClusterConfig(f"http://127.0.0.1:{unused_tcp_port}")) as client:
        with pytest.raises(errors.Unreachable, match="cannot be reached: Connection refused"):
            await client.exec("a", "default", ["true"])


async def test_a_watch_of_a_server_that_speaks_no_tls_is_refused(server):
    async with ApiClient(ClusterConfig(server.url.replace("http", "https"))) as client:
        with pytest.raises(errors.Unreachable, match="https"):
            await first_of(client)


async def test_a_client_that_is_not_open_has_no_streams():
    with pytest.raises(RuntimeError, match="not open"):
        await first_of(ApiClient(ClusterConfig("http://127.0.0.1:1")))
