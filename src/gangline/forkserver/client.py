"""A client of the fork server, over one end of its socket."""

import asyncio
import itertools
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any

from gangline.forkserver.protocol import VERSION, ForkRequest, ImportRequest, RefusedError

_LENGTH = 4


class ForkServerClient:
    """The connection to one fork server. Needs a running event loop."""

    def __init__(self, sock: socket.socket) -> None:
        """Take the client's end of the socket."""
        self._socket = sock
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ended: dict[int, int] = {}
        self._rest = bytearray()
        self._sending = asyncio.Lock()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the server has ended."""
        self.on_end: Callable[[int, int], None] = lambda _pid, _code: None
        """Called with the process id and the exit code of processes that were not adopted."""
        sock.setblocking(False)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._read)

    async def import_modules(self, request: ImportRequest) -> dict[str, Any]:
        """Import modules; return the reply when all are imported.

        Raises:
            ConnectionError: the server has ended.
        """
        return await self._ask({"op": "import", **request})

    async def fork(self, request: ForkRequest, descriptors: Sequence[int] = ()) -> int:
        """Fork a process; return its process id.

        Raises:
            RefusedError: a forked process would differ from a new one.
            ConnectionError: the server has ended.
        """
        message = {"op": "fork", "version": VERSION, **request}
        reply = await self._ask(message, descriptors)
        if reply["event"] == "refused":
            raise RefusedError(reply["reason"])
        return int(reply["pid"])

    def close(self) -> None:
        """Close the connection, which ends the server."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._fail()

    async def _ask(
        self, message: dict[str, Any], descriptors: Sequence[int] = ()
    ) -> dict[str, Any]:
        if self._socket.fileno() < 0:
            raise ConnectionError("the fork server has ended")
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        data = json.dumps({**message, "id": number, "descriptors": len(descriptors)}).encode()
        data = len(data).to_bytes(_LENGTH, "big") + data
        try:
            async with self._sending:
                if descriptors:
                    # The first byte goes with them; the socket's buffer has space for it.
                    socket.send_fds(self._socket, [data[:1]], list(descriptors))
                    data = data[1:]
                await asyncio.get_running_loop().sock_sendall(self._socket, data)
            answer: dict[str, Any] = await reply
            return answer
        except OSError as error:
            raise ConnectionError("the fork server has ended") from error
        finally:
            self._replies.pop(number, None)

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._rest += data
        while len(self._rest) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._rest[:_LENGTH], "big")
            if len(self._rest) < end:
                return
            message = json.loads(self._rest[_LENGTH:end])
            del self._rest[:end]
            self._handle(message)

    def _handle(self, message: dict[str, Any]) -> None:
        if message["event"] == "ended":
            self.on_end(message["pid"], message["code"])
        reply = self._replies.get(message.get("id", 0))
        if reply and not reply.done():
            reply.set_result(message)

    def _fail(self) -> None:
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(ConnectionError("the fork server has ended"))
        if not self.closed.done():
            self.closed.set_result(None)
