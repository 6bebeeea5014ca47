"""The client of a fork server, over one end of its socket, and their messages, version 1.

The client passes one end of a connected Unix stream socket to the server. Each message is four
bytes of length, big-endian, and a JSON object. File descriptors come with the first byte of their
message (SCM_RIGHTS); ``descriptors`` is their number. A connection that ends, ends the server; the
processes that it has forked remain.

Requests have an ``op`` and an ``id`` that replies repeat:

``import``
    ``modules``: pairs of a module and an index of ``changes``, or -1 for none. ``changes``:
    variables that the program has set before that import, None for deleted ones. ``varying``: names
    of variables that differ between processes; a module that reads one of them is ``dependent``.
    The reply ``imported`` has the number of ``modules`` and ``dependent`` packages with reasons. A
    server that has imported one of those refuses all forks: start another one without them.

    Optional: ``containers`` (True: the server is to fork processes that become containers of a
    kubelet). Such a server is started with `PLACEHOLDER` as its script. Its reply has
    ``refuses_containers``, a reason or an empty text, and ``files``: what the modules were loaded
    from, as device, inode, size and time of modification by path.

``fork``
    ``version``: of the protocol. ``argv``: the command line, as in ``sys.orig_argv``. ``env``: all
    variables. ``stdio``: indexes of descriptors for 0, 1 and 2; None for the server's. Optional:
    ``adopt`` (True: the client is to be the parent, as a subreaper or process 1), ``parent``
    (process id that the parent must have), ``processors``, ``nice``, ``channel`` (index of the
    descriptor on which imports are reported), ``notes`` (file in which a process writes why it
    starts again without preloaded modules). The reply is ``forked`` with a ``pid``, or
    ``refused`` with a ``reason``.

    With ``container`` (True) nothing else is read but ``version``. There are four descriptors: a
    file with a `ContainerSpec` as JSON, standard output and error of the container, and the
    writing end of a pipe. ``pid`` is that of a supervisor outside the container: process 1 is its
    child. It writes the exit code (negative for a signal) to the pipe, and kills the container when
    the pipe has no reader any more.

Events without a request: ``ready`` with ``version`` and ``pid``; ``ended`` with ``pid`` and
``code`` (negative for a signal) of a process that was not adopted.
"""

import asyncio
import itertools
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

VERSION = 1
PLACEHOLDER = "/gangline-fork-server/".ljust(4000, "-")
"""The script of a server for many programs. A program has a shorter path."""

VARYING_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "GANGLINE_PROGRESS_FILE",
    "RUNTIME_METRICS_PATH",
    "GANGLINE_STACKS",
    "GANGLINE_SURVIVOR_SLOT",
    "GANGLINE_SUCCESSOR_AFTER",
    "GANGLINE_SURVIVOR_FOLDER",
)
"""Variables that differ between the workers of a job, or between two attempts."""
_LENGTH = 4


class ForkRequest(TypedDict, total=False):
    """A request for a process; see the module's description."""

    argv: list[str]
    env: dict[str, str]
    stdio: list[int | None]
    adopt: bool
    parent: int
    processors: list[int]
    nice: int
    channel: int
    notes: str
    container: bool


class _Imports(TypedDict):
    modules: list[tuple[str, int]]
    changes: list[dict[str, str | None]]
    varying: list[str]


class ImportRequest(_Imports, total=False):
    """A request for imports; see the module's description."""

    containers: bool


class SetupScript(TypedDict):
    """A script for ``sh`` that mounts the file system of a container."""

    script: str
    env: dict[str, str]


class EnterProgram(TypedDict):
    """Changes the root, the user and the capabilities.

    ``source`` is a Python module with a function ``enter(options, executes=False)``.
    """

    source: str
    options: list[str]


class ContainerSpec(TypedDict):
    """A container whose process 1 is forked from a server."""

    argv: list[str]
    env: dict[str, str]
    groups: list[str]
    """Files that process 1 writes ``0`` to, in order to join control groups."""
    network: str
    """The network namespace to enter; empty for that of the server."""
    own_users: bool
    """True to create a user namespace in which the server's user is root."""
    setup: SetupScript
    root: str
    """The folder that becomes the root, in the new mount namespace."""
    workdir: str
    enter: EnterProgram | None
    """None leaves user and capabilities as they are."""


class RefusedError(Exception):
    """The server does not fork this process: it would differ from a new one."""


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
