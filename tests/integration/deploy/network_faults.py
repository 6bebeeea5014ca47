"""Faults of the network between components: a link that stalls, and a port that is filtered."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import yaml


class Link:
    """A TCP relay to a server on the loopback interface.

    While it is cut, connections stay open and nothing is delivered in either direction, as with
    lost packets. ``heal`` resets them: what was sent meanwhile is lost.
    """

    def __init__(self, server: str) -> None:
        self._port = urlsplit(server).port
        self._whole = asyncio.Event()
        self._whole.set()
        self._relay: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._relay = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        assert self._relay is not None
        self._relay.close()
        for each in self._connections:
            each.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        self._whole.clear()

    def heal(self) -> None:
        for each in self._connections:
            each.cancel()
        self._whole.set()

    def kubeconfig(self, direct: Path) -> Path:
        """Write a copy of a kubeconfig that uses this link."""
        assert self._relay is not None
        port = self._relay.sockets[0].getsockname()[1]
        config = yaml.safe_load(direct.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        path = direct.with_suffix(".link")
        path.write_text(yaml.safe_dump(config))
        return path

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                await asyncio.gather(self._copy(reader, to_server), self._copy(from_server, writer))
            finally:
                to_server.close()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._connections.discard(task)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while part := await source.read(1 << 16):
            await self._whole.wait()
            target.write(part)
            await target.drain()
        await self._whole.wait()
        target.close()


@contextmanager
def filtered_port(port: int) -> Iterator[None]:
    """Drop all packets to a TCP port of this machine, as a NetworkPolicy does."""
    table = f"inet gangline_test_{port}"
    chain = f"type filter hook input priority 0; tcp dport {port} drop;"
    rules = f"table {table} {{\n chain input {{ {chain} }}\n}}\n"
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", *table.split()], check=True)
