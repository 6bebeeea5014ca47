"""Attacks on a running API server, by clients that are not Gangline's.

``attacked`` is the server, in a process of its own. ``attacked.request`` sends plain HTTP with
``aiohttp``. Tests of raw bytes open ``attacked.connect()`` and write what no client library sends.
"""

import asyncio
import base64
import signal
import ssl
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml

from integration.cluster_fixtures import embedded_cluster

__all__ = ["attacked", "embedded_cluster"]


@dataclass
class AttackedServer:
    """A running API server and what an attacker needs to reach it."""

    process: asyncio.subprocess.Process
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

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a TLS connection without HTTP on it."""
        parts = urlsplit(self.url)
        return await asyncio.open_connection(parts.hostname, parts.port, ssl=self.tls)


def _attacked_server(process: asyncio.subprocess.Process, url: str, data: Path) -> AttackedServer:
    config = yaml.safe_load((data / "kubeconfig").read_text())
    authority = config["clusters"][0]["cluster"]["certificate-authority-data"]
    token = config["users"][0]["user"]["token"]
    tls = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    return AttackedServer(process, url, data, tls, {"Authorization": f"Bearer {token}"})


@pytest.fixture
async def attacked(tmp_path: Path) -> AsyncIterator[AttackedServer]:
    """An API server in a process of its own; it must still run when the test ends."""
    data = tmp_path / "data"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gangline.local.apiserver", "--data", str(data), stdout=PIPE
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    try:
        yield _attacked_server(process, url, data)
        assert process.returncode is None, "the API server has ended"
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
