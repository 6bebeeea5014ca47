"""The kubelets' HTTP server, for the API server only: logs, exec, attach, port-forward, usage.

One server on loopback serves all nodes of a cluster. A client needs the certificate of the API
server. The node that it names in the TLS handshake (SNI) selects the node's certificate, so that
the connection reaches exactly the node that the client has verified.

exec, attach and port-forward use a WebSocket, in Kubernetes' channel framing. The first byte of
each message is its channel: 0 standard input, 1 output, 2 errors, 3 the final Status as JSON, 4 the
size of the terminal as JSON; 255 closes the channel in its second byte (v5). For port-forward 0 is
the data and 1 an error text.
"""

import asyncio
import contextlib
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from gangline.api.core.container import Container
from gangline.api.meta.objects import Status, StatusCause, StatusDetails
from gangline.local import limits
from gangline.local.connections import (
    LINGERING_S,
    BoundedAppRunner,
    BoundedSite,
    authenticate_connection,
)
from gangline.local.kubelet.kubelet import Kubelet
from gangline.local.kubelet.logs import (
    ArchivedLogs,
    LogWriter,
    PodLogOptions,
    archived_run_log,
    list_archived_logs,
    read_log,
)
from gangline.local.kubelet.pods.container_worker import ContainerWorker
from gangline.local.kubelet.pods.pod_worker import PodWorker
from gangline.local.kubelet.records import ContainerInstance
from gangline.local.kubelet.runtime.interface import (
    ContainerRuntime,
    ContainerStartError,
    ContainerUsage,
    ExecSession,
    ProcessInput,
    RunningContainer,
)
from gangline.local.kubelet.settings import API_SERVER_USER, REFUSAL_HEADER
from gangline.local.query_options import boolean_option

log = logging.getLogger(__name__)

_FORGET_S = 600.0


class StatsSummary:
    """Converts counters into rates, from the values at the previous request."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int, int]] = {}
        """By container id: the time, the CPU counter at that time, and the last rate."""

    def build(self, kubelets: Iterable[Kubelet]) -> dict[str, Any]:
        """The usage of all nodes' pods; ``node`` is the first node, ``nodes`` are all."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        nodes, pods = [], []
        for kubelet in kubelets:
            own = [self._pod(worker, now) for worker in kubelet.workers.values()]
            own = [pod for pod in own if pod["containers"]]
            nodes.append({"nodeName": kubelet.node.name, **_sum(own, now)})
            pods += own
        self._drop_old()
        return {"node": nodes[0] if nodes else {}, "nodes": nodes, "pods": pods}

    def _pod(self, worker: PodWorker, now: str) -> dict[str, Any]:
        meta = worker.pod.metadata
        containers = []
        for name, container in worker.containers.items():
            if container.running is None or (usage := container.running.usage()) is None:
                continue
            used = self._rates(container.running.container_id, usage, now)
            containers.append({"name": name, **used})
        reference = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        return {"podRef": reference, "containers": containers, **_sum(containers, now)}

    def _rates(self, container_id: str, usage: ContainerUsage, now: str) -> dict[str, Any]:
        moment = time.monotonic()
        before = self._seen.get(container_id)
        rate = before[2] if before else 0
        if before is None:
            self._seen[container_id] = (moment, usage.cpu_ns, 0)
        elif (passed := moment - before[0]) >= 1.0:
            rate = max(int((usage.cpu_ns - before[1]) / passed), 0)
            self._seen[container_id] = (moment, usage.cpu_ns, rate)
        return {
            "cpu": {"time": now, "usageNanoCores": rate, "usageCoreNanoSeconds": usage.cpu_ns},
            "memory": {"time": now, "workingSetBytes": usage.memory_bytes},
        }

    def _drop_old(self) -> None:
        limit = time.monotonic() - _FORGET_S
        self._seen = {key: seen for key, seen in self._seen.items() if seen[0] > limit}


def _sum(parts: list[dict[str, Any]], now: str) -> dict[str, Any]:
    def total(kind: str, name: str) -> int:
        return sum(int(part[kind][name]) for part in parts)

    return {
        "cpu": {
            "time": now,
            "usageNanoCores": total("cpu", "usageNanoCores"),
            "usageCoreNanoSeconds": total("cpu", "usageCoreNanoSeconds"),
        },
        "memory": {"time": now, "workingSetBytes": total("memory", "workingSetBytes")},
    }


class NodeTls:
    """The TLS contexts of all nodes of a server; that of a node is made at its first connection."""

    def __init__(
        self, authority: Path, files_of: Callable[[str], tuple[Path, Path] | None]
    ) -> None:
        """``authority`` is the CA of clients; ``files_of`` returns certificate and key of a node,
        None for an unknown one.
        """
        self._authority = authority
        self._files_of = files_of
        self._by_node: dict[str, ssl.SSLContext] = {}
        self._nodes: dict[ssl.SSLContext, str] = {}
        self.context = self._make_context()
        """The context to listen with."""
        self.context.sni_callback = self._select

    def node_of(self, connection: ssl.SSLObject) -> str:
        """Return the node that a connection was made to; empty if it named none."""
        return self._nodes.get(connection.context, "")

    def _select(
        self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: Any
    ) -> int | None:
        context = self._by_node.get(name or "")
        if context is None:
            files = self._files_of(name) if name else None
            if name is None or files is None:
                return int(ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
            context = self._make_context()
            try:
                context.load_cert_chain(*files)
            except OSError:
                return int(ssl.AlertDescription.ALERT_DESCRIPTION_INTERNAL_ERROR)
            self._by_node[name] = context
            self._nodes[context] = name
        connection.context = context
        return None

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(self._authority)
        context.verify_mode = ssl.CERT_REQUIRED
        return context


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class KubeletServer:
    def __init__(self, kubelets: Iterable[Kubelet], tls: NodeTls) -> None:
        self.kubelets = list(kubelets)
        """The kubelets that it serves; the list changes as nodes stop and start."""

        self._tls = tls
        self._statistics = StatsSummary()
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> int:
        """Listen; returns the port. Raises OSError: the port is taken."""
        app = web.Application(middlewares=[self._authorized])
        at = "/{namespace}/{pod}/{container}"
        app.add_routes(
            [
                web.get("/healthz", _healthy),
                web.get("/containerLogs" + at, self._logs),
                web.get("/keptLogs/{namespace}/{owner}", self._archived_logs),
                web.get("/exec" + at, self._exec),
                web.get("/attach" + at, self._attach),
                web.get("/portForward/{namespace}/{pod}", self._forward),
                web.get("/stats/summary", self._summary),
            ]
        )
        self._runner = BoundedAppRunner(
            app,
            access_log=None,
            shutdown_timeout=0.5,
            keepalive_timeout=limits.IDLE_TIMEOUT_S,
            lingering_time=LINGERING_S,
            max_line_size=limits.MAX_LINE_BYTES,
            max_field_size=limits.MAX_LINE_BYTES,
            max_headers=limits.MAX_HEADERS,
        )
        await self._runner.setup()
        site = BoundedSite(self._runner, host, port, ssl_context=self._tls.context, backlog=1024)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _authorized(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        user = _user_name(request)
        if user != API_SERVER_USER:
            raise web.HTTPForbidden(text="the kubelet answers its API server only")
        authenticate_connection(request, user)
        try:
            return await handler(request)
        except web.HTTPException as refusal:
            # WebSocket clients get only the headers of a refusal, not its body.
            refusal.headers[REFUSAL_HEADER] = refusal.text or refusal.reason
            raise

    def _pod(self, request: web.Request) -> PodWorker:
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        connection = _tls_connection(request)
        node = self._tls.node_of(connection) if connection is not None else ""
        for kubelet in self.kubelets:
            if kubelet.node.name == node and (worker := kubelet.find_pod(namespace, name)):
                return worker
        raise web.HTTPNotFound(text=f"pod {name} in namespace {namespace} is not on this node")

    def _container(self, request: web.Request) -> tuple[PodWorker, ContainerWorker]:
        pod, name = self._pod(request), request.match_info["container"]
        if name not in pod.containers:
            raise web.HTTPNotFound(text=f"container {name} is not in pod {pod.pod.metadata.name}")
        return pod, pod.containers[name]

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        pod, container = self._container(request)
        options = _log_options(request.query)
        path, writer = _log_of(
            pod, container, previous=bool(boolean_option(request.query, "previous"))
        )
        lines = read_log(path, options, writer)
        try:
            first = await anext(lines, b"")
        except FileNotFoundError:
            name = container.container.name
            raise web.HTTPBadRequest(
                text=f'container "{name}" in pod "{pod.pod.metadata.name}" has no log'
            ) from None
        return await _streamed(request, first, lines)

    async def _archived_logs(self, request: web.Request) -> web.StreamResponse:
        """The archived log of a deleted pod; without a pod name, the list of an owner's archived
        pods.
        """
        namespace, owner = request.match_info["namespace"], request.match_info["owner"]
        name, container = request.query.get("pod", ""), request.query.get("container", "")
        archived = await asyncio.to_thread(self._list_archived_logs, namespace, owner)
        if not name:
            newest = {pod_logs.name: pod_logs.pod_record for pod_logs in archived}
            lines = "".join(f"{json.dumps(note)}\n" for note in newest.values())
            return web.Response(text=lines)
        previous = bool(boolean_option(request.query, "previous"))
        path = await asyncio.to_thread(
            archived_run_log, archived, name, container, previous=previous
        )
        if path is None:
            which = "no earlier log" if previous else "no log"
            raise web.HTTPNotFound(text=f"{which} of pod {name} is archived")
        options = replace(_log_options(request.query), follow=False)
        return await _streamed(request, b"", read_log(path, options))

    def _list_archived_logs(self, namespace: str, owner: str) -> list[ArchivedLogs]:
        folders = {kubelet.data for kubelet in self.kubelets}
        archived = [
            pod_logs for data in folders for pod_logs in list_archived_logs(data, namespace, owner)
        ]
        return sorted(archived, key=lambda pod_logs: pod_logs.deleted_ns)

    def _running(self, request: web.Request) -> tuple[Container, RunningContainer]:
        _, worker = self._container(request)
        if worker.running is None:
            raise web.HTTPBadRequest(text=f"container {worker.container.name} is not running")
        return worker.container, worker.running

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        return await exec_session(request, self._running(request)[1])

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        return await attach_session(request, *self._running(request))

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        context = self._pod(request).context
        if (attachment := context.attachment) is None:
            raise web.HTTPBadRequest(text=f"pod {context.pod.metadata.name} is not running")
        return await forward_session(
            request, context.node.runtime, attachment.netns_path, attachment.ip
        )

    async def _summary(self, request: web.Request) -> web.StreamResponse:
        desired = request.query.get("node")
        nodes = [kubelet for kubelet in self.kubelets if desired in (None, kubelet.node.name)]
        return web.json_response(self._statistics.build(nodes))


def _tls_connection(request: web.Request) -> ssl.SSLObject | None:
    transport = request.transport
    return transport.get_extra_info("ssl_object") if transport is not None else None


def _user_name(request: web.Request) -> str:
    """The common name in the certificate of a client; empty after it has disconnected."""
    connection = _tls_connection(request)
    certificate = (connection.getpeercert() if connection is not None else None) or {}
    subject: Any = certificate.get("subject", ())
    attributes = [pair for part in subject for pair in part]
    return next((value for kind, value in attributes if kind == "commonName"), "")


async def _streamed(
    request: web.Request, first: bytes, lines: AsyncIterator[bytes]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    await response.write(first)
    async for chunk in lines:
        await response.write(chunk)
    return response


async def _healthy(_: web.Request) -> web.StreamResponse:
    return web.Response(text="ok")


def _log_of(
    pod: PodWorker, container: ContainerWorker, *, previous: bool
) -> tuple[Path, LogWriter | None]:
    """The path of the requested log, and its writer if it is still open. Raises HTTPBadRequest:
    there is no log yet.
    """
    name, meta = container.container.name, pod.pod.metadata
    newest = container.record.instance
    if previous:
        ended = _last_terminated(pod, container)
        if ended is None:
            raise web.HTTPBadRequest(
                text=f'previous terminated container "{name}" in pod "{meta.name}" not found'
            )
        return pod.context.folders.log(name, ended.number), None
    if newest is None:
        waiting = container.record.problem
        why = waiting.reason if waiting else "ContainerCreating"
        raise web.HTTPBadRequest(
            text=f'container "{name}" in pod "{meta.name}" is waiting to start: {why}'
        )
    writer = container.writer
    path = pod.context.folders.log(name, newest.number)
    return path, writer if writer is not None and writer.path == path else None


def _last_terminated(pod: PodWorker, container: ContainerWorker) -> ContainerInstance | None:
    """The run of ``lastState`` in the status; while a container waits, that is the newest run."""
    status, record = pod.status, container.record
    last = [
        shown.last_state.terminated.container_id
        for shown in (*status.init_container_statuses, *status.container_statuses)
        if shown.name == container.container.name and shown.last_state.terminated is not None
    ]
    runs = (run for run in (record.instance, record.previous) if run is not None)
    return next((run for run in runs if run.container_id in last), None)


def _log_options(query: Mapping[str, str]) -> PodLogOptions:
    try:
        since = None
        if "sinceSeconds" in query:
            since = datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"]))
        elif "sinceTime" in query:
            since = datetime.fromisoformat(query["sinceTime"])
            if since.tzinfo is None:
                raise ValueError("sinceTime has no time zone")
        return PodLogOptions(
            tail_lines=int(query["tailLines"]) if "tailLines" in query else None,
            since=since,
            limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
            timestamps=bool(boolean_option(query, "timestamps")),
            follow=bool(boolean_option(query, "follow")),
        )
    except (ValueError, OverflowError) as error:
        raise web.HTTPBadRequest(text=f"a log option cannot be read: {error}") from error


STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_CHANNELS = {"stdout": STDOUT, "stderr": STDERR}
_LARGEST_MESSAGE = 1 << 24
_READ_BYTES = 1 << 16
_MAX_TERMINAL_SIZE = 65535
"""The kernel stores sizes of terminals in 16 bits."""
_MAX_QUEUED_BYTES = 4 << 20
"""Bytes that may be queued for a slow client before the source is paused."""


class _Socket:
    """A WebSocket with a queue, so that callbacks can send without waiting.

    When a client reads slowly, ``pause_source`` is called to pause the source, and to resume it.
    """

    def __init__(self) -> None:
        self.web = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=_LARGEST_MESSAGE)
        self.pause_source: Callable[[bool], None] | None = None
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting_bytes = 0
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    @property
    def is_full(self) -> bool:
        return not self._has_capacity.is_set()

    def send(self, channel: int, data: bytes) -> None:
        self._waiting.put_nowait(bytes([channel]) + data)
        self._waiting_bytes += len(data) + 1
        if self._waiting_bytes > _MAX_QUEUED_BYTES:
            self._has_capacity.clear()
            self._set_source_paused(True)

    async def wait_capacity(self) -> None:
        await self._has_capacity.wait()

    def finish(self) -> None:
        self._waiting.put_nowait(None)

    async def deliver(self) -> None:
        """Send queued messages until the end, or until the client disconnects."""
        with contextlib.suppress(ConnectionError):
            while (message := await self._waiting.get()) is not None:
                await self.web.send_bytes(message)
                self._waiting_bytes -= len(message)
                if self._waiting_bytes < _MAX_QUEUED_BYTES // 4:
                    self._has_capacity.set()
                    self._set_source_paused(False)
        # The reader of the socket ends the session; until then the source must not block.
        self._has_capacity.set()
        self._set_source_paused(False)
        self.pause_source = None

    def _set_source_paused(self, held: bool) -> None:
        if self.pause_source is not None:
            self.pause_source(held)


@contextlib.asynccontextmanager
async def _opened(request: web.Request) -> AsyncIterator[_Socket]:
    """Accept the client; at the end deliver what is queued, and close the socket."""
    socket = _Socket()
    await socket.web.prepare(request)
    delivering = asyncio.create_task(socket.deliver())
    yield socket
    socket.finish()
    await delivering
    await socket.web.close()


def _is_requested(request: web.Request, option: str) -> bool:
    return bool(boolean_option(request.query, option))


def _output_channels(request: web.Request) -> dict[str, int]:
    """Return the channel of each output stream that the client requests."""
    return {name: number for name, number in _CHANNELS.items() if _is_requested(request, name)}


async def exec_session(request: web.Request, container: RunningContainer) -> web.StreamResponse:
    argv = request.query.getall("command", [])
    if not argv:
        raise web.HTTPBadRequest(text="no command is given")
    async with _opened(request) as socket:
        with_stdin, channels = _is_requested(request, "stdin"), _output_channels(request)

        def show(stream: str, data: bytes) -> None:
            if stream in channels:
                socket.send(channels[stream], data)

        try:
            tty = _is_requested(request, "tty")
            session = await container.exec(argv, show, stdin=with_stdin, tty=tty)
            socket.pause_source = session.pause_output
            code = await _until_end(socket, session, with_stdin=with_stdin)
            socket.send(ERROR, _exit_status(code))
        except ContainerStartError as error:
            socket.send(ERROR, _failure(error.message))
    return socket.web


async def attach_session(
    request: web.Request, spec: Container, container: RunningContainer
) -> web.StreamResponse:
    async with _opened(request) as socket:
        channels = _output_channels(request)

        def show(stream: str, data: bytes) -> None:
            # A container never waits for attached clients: a slow one can read the log instead.
            if stream in channels and not socket.is_full:
                socket.send(channels[stream], data)

        detach = container.attach(show)
        with_stdin = _is_requested(request, "stdin")
        reading = asyncio.create_task(_pass_input(socket.web, container, with_stdin=with_stdin))
        ending = asyncio.create_task(container.wait())
        await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        detach()
        if ending.done():
            # The pod's status has the exit code: for the stream, reaching its end is a success.
            socket.send(ERROR, _exit_status(0))
        if spec.stdin_once and with_stdin:
            container.close_stdin()
        ending.cancel()
        reading.cancel()
    return socket.web


async def forward_session(
    request: web.Request, runtime: ContainerRuntime, netns: str | None, address: str
) -> web.StreamResponse:
    try:
        port = int(request.query.get("port", ""))
    except ValueError:
        raise web.HTTPBadRequest(text="no port is given") from None
    if not 0 < port < 1 << 16:
        raise web.HTTPBadRequest(text=f"{port} is not a port")
    async with _opened(request) as socket:
        try:
            streams = await runtime.forward(netns, address, port)
        except OSError as error:
            problem = error.strerror or str(error)
            socket.send(STDOUT, f"no process answers on port {port} of the pod: {problem}".encode())
        else:
            await _copy_both_ways(socket, *streams)
    return socket.web


async def _until_end(socket: _Socket, session: ExecSession, *, with_stdin: bool) -> int:
    """The exit code; the command is killed if the client disconnects."""
    reading = asyncio.create_task(_pass_input(socket.web, session, with_stdin=with_stdin))
    ending = asyncio.create_task(session.wait())
    try:
        await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            session.kill()
        return await ending
    finally:
        reading.cancel()
        if not ending.done():
            session.kill()
            await asyncio.wait({ending})


async def _pass_input(socket: web.WebSocketResponse, to: ProcessInput, *, with_stdin: bool) -> None:
    """Pass on the client's input; returns when it disconnects."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel in (STDIN, CLOSE) and not with_stdin:
            continue
        if channel == STDIN and data:
            to.write(data)
            await to.drain()
        elif channel == CLOSE and data == bytes([STDIN]):
            to.close_stdin()
        elif channel == RESIZE and (size := parse_terminal_size(data)) is not None:
            to.resize(*size)


def parse_terminal_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a resize message, or None if it is invalid."""
    try:
        size = json.loads(data)
        width, height = int(size["Width"]), int(size["Height"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    fits = 0 <= width <= _MAX_TERMINAL_SIZE and 0 <= height <= _MAX_TERMINAL_SIZE
    return (width, height) if fits else None


async def _copy_both_ways(
    socket: _Socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy bytes in both directions until one side ends."""

    async def inward() -> None:
        async for message in socket.web:
            if message.type is WSMsgType.BINARY and message.data[:1] == b"\0":
                writer.write(message.data[1:])
                await writer.drain()

    async def outward() -> None:
        while data := await reader.read(_READ_BYTES):
            socket.send(STDIN, data)
            await socket.wait_capacity()

    ways = {asyncio.create_task(inward()), asyncio.create_task(outward())}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        writer.close()


def _exit_status(code: int) -> bytes:
    if code == 0:
        return msgspec.json.encode(Status(status="Success"))
    cause = StatusCause(reason="ExitCode", message=str(code))
    status = Status(
        status="Failure",
        reason="NonZeroExitCode",
        message=f"command terminated with non-zero exit code: exit status {code}",
        details=StatusDetails(causes=[cause]),
    )
    return msgspec.json.encode(status)


def _failure(message: str) -> bytes:
    status = Status(status="Failure", reason="InternalError", message=message, code=500)
    return msgspec.json.encode(status)
