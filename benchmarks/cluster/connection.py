"""A minimal client: raw HTTP/1.1 over TLS on one connection, so that only servers differ."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gangline.kube.config.config import load_config
from gangline.kube.http.transport import tls_context

ADDED = b'"type":"ADDED"'


@dataclass(frozen=True, slots=True)
class Target:
    """Address of an API server, and credentials."""

    host: str
    port: int
    tls: ssl.SSLContext
    headers: str

    @staticmethod
    async def of(kubeconfig: Path) -> "Target":
        """Read the cluster and user of ``kubeconfig``."""
        config = load_config(str(kubeconfig))
        credential = await config.credentials.current()
        address = urlsplit(config.server)
        headers = f"Host: {address.netloc}\r\nAccept: application/json\r\n"
        if credential.authorization:
            headers += f"Authorization: {credential.authorization}\r\n"
        tls = tls_context(config, credential)
        return Target(str(address.hostname), int(address.port or 443), tls, headers)


class Connection:
    """One keep-alive connection: one request at a time, or one watch."""

    def __init__(
        self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._headers = target.headers
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def open(target: Target) -> "Connection":
        reader, writer = await asyncio.open_connection(
            target.host, target.port, ssl=target.tls, limit=1 << 22
        )
        return Connection(target, reader, writer)

    async def request(
        self, method: str, path: str, body: bytes = b"", form: str = "application/json"
    ) -> tuple[int, bytes]:
        """Send a request with a body of media type ``form``; return the status code and body."""
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}Content-Type: {form}\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        code, headers = await self._head()
        if (length := headers.get("content-length")) is not None:
            return code, await self._reader.readexactly(int(length))
        return code, b"".join([piece async for piece in self._chunks()])

    async def watch(self, path: str) -> "Connection":
        """Start a watch; ``read`` then returns its data."""
        self._writer.write(f"GET {path} HTTP/1.1\r\n{self._headers}\r\n".encode())
        code, _ = await self._head()
        if code != 200:
            raise ConnectionError(f"the watch was refused with code {code}")
        return self

    async def read(self) -> bytes:
        """Return the next raw data, including chunk framing; events are lines."""
        return await self._reader.read(1 << 18)

    async def count(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the number of added objects so far, and the last data, until the end.

        Cheap, for many watches: an event that the framing of chunks splits may be missed.
        """
        total, rest = 0, b""
        while piece := await self.read():
            text = rest + piece
            total += text.count(ADDED)
            rest = text[1 - len(ADDED) :]  # a match may span two or more reads
            yield total, piece

    async def added(self) -> AsyncIterator[int]:
        """Yield the exact number of added objects so far, until the end."""
        total, line = 0, b""
        async for chunk in self._chunks():
            *lines, line = (line + chunk).split(b"\n")  # chunks may end within a line
            total += sum(event.startswith(b"{" + ADDED) for event in lines)
            yield total

    def close(self) -> None:
        self._writer.close()

    async def _head(self) -> tuple[int, dict[str, str]]:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split()[1]), {k.lower(): v.strip() for k, _, v in pairs}

    async def _chunks(self):
        while size := int(await self._reader.readline(), 16):
            yield await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)


class Clients:
    """Connections for single requests, opened when they are needed.

    Args:
        target: the API server.
        at_once: the most requests in flight.
    """

    def __init__(self, target: Target, at_once: int) -> None:
        self._target = target
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(at_once)

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        form: str = "application/json",
        passed: frozenset[int] = frozenset({404}),
    ) -> tuple[int, bytes]:
        """Send a request; return the status code and body.

        A connection that the server has closed meanwhile is replaced, once.

        Raises:
            ConnectionError: the request failed, and not with one of the codes ``passed``.
        """
        async with self._slots:
            try:
                code, answer = await self._exchange(method, path, body, form)
            except (OSError, asyncio.IncompleteReadError):
                self._idle.clear()
                code, answer = await self._exchange(method, path, body, form)
        if code >= 300 and code not in passed:
            raise ConnectionError(f"{method} {path} answered {code}: {answer[:300]!r}")
        return code, answer

    async def _exchange(self, *request: Any) -> tuple[int, bytes]:
        connection = self._idle.pop() if self._idle else await Connection.open(self._target)
        answer = await connection.request(*request)
        self._idle.append(connection)
        return answer
