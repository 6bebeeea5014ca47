"""Attacks on a running API server, by clients that are not Gangline's.

``attacked`` is the server, in a process of its own. ``attacked.request`` sends plain HTTP with
``aiohttp``. Tests of raw bytes open ``attacked.connect()`` and write what no client library sends.
"""

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml

from integration.cluster.embedded import EmbeddedCluster, until
from integration.cluster_fixtures import cluster_of_worker, shared_cluster
from security.server_process import start_server

__all__ = ["attacked", "cluster_of_worker", "shared_cluster"]

StartedPod = Callable[..., Awaitable[dict[str, Any]]]
"""Called with namespace, name, command and further fields of the pod's spec."""


@dataclass
class AttackedServer:
    """A running API server and what an attacker needs to reach it."""

    process: object
    url: str
    data: Path
    tls: ssl.SSLContext
    admin: dict[str, str]
    """Headers of the cluster's administrator."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        user: str = "",
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> tuple[int, Any]:
        """Send a request. Returns the status and the decoded body.

        ``user`` impersonates that user without groups but ``system:authenticated``.
        """
        sent = self.admin | ({"Impersonate-User": user} if user else {}) | (headers or {})
        connector = aiohttp.TCPConnector(ssl=self.tls)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, self.url + path, headers=sent, **more) as answer,
        ):
            if answer.content_type == "application/json":
                return answer.status, await answer.json()
            return answer.status, await answer.text()

    @contextlib.asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[aiohttp.StreamReader]:
        """Open a response of the administrator that does not end, such as a watch."""
        connector = aiohttp.TCPConnector(ssl=self.tls)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(self.url + path, headers=self.admin) as answer,
        ):
            yield answer.content

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a TLS connection without HTTP on it."""
        parts = urlsplit(self.url)
        return await asyncio.open_connection(parts.hostname, parts.port, ssl=self.tls)


def _attacked_server(process: object, url: str, data: Path) -> AttackedServer:
    config = yaml.safe_load((data / "kubeconfig").read_text())
    authority = config["clusters"][0]["cluster"]["certificate-authority-data"]
    token = config["users"][0]["user"]["token"]
    tls = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    return AttackedServer(process, url, data, tls, {"Authorization": f"Bearer {token}"})


@pytest.fixture
async def attacked(tmp_path: Path) -> AsyncIterator[AttackedServer]:
    """An API server in a process of its own; it must still run when the test ends."""
    async with attacked_server(tmp_path / "data") as server:
        yield server


@contextlib.asynccontextmanager
async def attacked_server(data: Path, *arguments: str) -> AsyncIterator[AttackedServer]:
    """Run an API server with these data and arguments; it must still run at the end."""
    options = ("--data", str(data), "--durability", "process", *arguments)
    process, url = await asyncio.to_thread(start_server, *options)
    try:
        yield _attacked_server(process, url, data)
        assert process.is_alive(), "the API server has ended"
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)
        process.close()


@pytest.fixture
async def attacked_cluster(shared_cluster: EmbeddedCluster) -> AttackedServer:
    """The API server of a complete cluster with two nodes."""
    record = shared_cluster.home.read_run_record()
    assert record is not None
    data = shared_cluster.home.folder
    return _attacked_server(shared_cluster.process, record.url, data)


@pytest.fixture
def started_pod(attacked_cluster: AttackedServer) -> StartedPod:
    """A function that creates a pod in ``attacked_cluster`` and waits until it runs."""
    return partial(_start_pod, attacked_cluster)


async def _start_pod(
    server: AttackedServer, namespace: str, name: str, command: list[str], **spec: Any
) -> dict[str, Any]:
    path = f"/api/v1/namespaces/{namespace}"
    await server.request("POST", "/api/v1/namespaces", json={"metadata": {"name": namespace}})
    container = {"name": "c", "image": "any", "command": command}
    pod = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
    status, body = await server.request("POST", f"{path}/pods", json=pod)
    assert status == 201, body

    async def running() -> Any:
        _, found = await server.request("GET", f"{path}/pods/{name}")
        return found if found["status"].get("phase") == "Running" else None

    started: dict[str, Any] = await until(running)
    return started
