"""Probes and hooks of containers: timing, thresholds, the handlers exec, HTTP GET, TCP and gRPC.

`run_probes_and_hooks` works beside a run of a container, from its postStart hook until its end.

Of gRPC's health service it needs one unary call over HTTP/2 without TLS (`check_grpc_health`). Only
the answered message counts, so headers are sent literally and never decoded: nothing is kept of
HPACK's state. The server may be any program of a user, so what it sends is bounded.
"""

import asyncio
import random
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import aiohttp
from yarl import URL

from gangline.api.core.container import Container
from gangline.api.core.probe import (
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    LifecycleHandler,
    Probe,
    TCPSocketAction,
)
from gangline.api.meta.field_doc import IntOrString
from gangline.local import KUBERNETES_VERSION
from gangline.local.kubelet.records import ContainerRecord
from gangline.local.kubelet.runtime.interface import ContainerStartError, RunningContainer


@dataclass(frozen=True, slots=True)
class ProbeState:
    successful: bool
    """The present result, after thresholds."""

    result_run: int = 0
    """The number of equal results in a row."""

    last: bool | None = None


def next_probe_state(probe: Probe, state: ProbeState, success: bool) -> ProbeState:
    """The state after one more result: it changes only after enough equal results in a row."""
    count = state.result_run + 1 if state.last == success else 1
    turned = replace(state, result_run=count, last=success)
    if count >= (probe.success_threshold or 1 if success else probe.failure_threshold or 3):
        return replace(turned, successful=success)
    return turned


def resolve_port(port: IntOrString, container: Container) -> int | None:
    """Resolve a port that may be given by its name; None if the container has no such port."""
    if isinstance(port, int):
        return port
    if port.isdigit():
        return int(port)
    named = (declared.container_port for declared in container.ports if declared.name == port)
    return next(named, None)


_MAX_OUTPUT = 1024
_USER_AGENT = f"kube-probe/{KUBERNETES_VERSION.rpartition('.')[0]}"
_MAX_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    container: Container
    running: RunningContainer
    pod_ip: str


async def run_probe(probe: Probe, target: ProbeTarget, timeout_s: float) -> str | None:
    """Run a probe once; None is a success, else the reason of the failure."""
    try:
        async with asyncio.timeout(timeout_s):
            if probe.exec is not None:
                return await _run_exec(probe.exec, target)
            if probe.http_get is not None:
                return await _run_http_get(probe.http_get, target)
            if probe.tcp_socket is not None:
                return await _run_tcp_connect(probe.tcp_socket, target)
            if probe.grpc is not None:
                return await _run_grpc(probe.grpc, target)
    except TimeoutError:
        return f"timed out after {timeout_s:g} s"
    return "the probe names no action"


async def run_hook(hook: LifecycleHandler, target: ProbeTarget) -> str | None:
    if hook.exec is not None:
        return await _run_exec(hook.exec, target)
    if hook.http_get is not None:
        return await _run_http_get(hook.http_get, target)
    if hook.sleep is not None:
        await asyncio.sleep(hook.sleep.seconds)
        return None
    return "the hook names no action that is available"


async def _run_exec(action: ExecAction, target: ProbeTarget) -> str | None:
    output = bytearray()

    def keep(_: str, data: bytes) -> None:
        output.extend(data[: _MAX_OUTPUT - len(output)])

    try:
        session = await target.running.exec(action.command, keep)
    except ContainerStartError as error:
        return error.message
    try:
        code = await session.wait()
    except asyncio.CancelledError:
        session.kill()
        await session.wait()
        raise
    if code == 0:
        return None
    return output.decode(errors="replace").strip() or f"command ended with exit code {code}"


async def _run_http_get(action: HTTPGetAction, target: ProbeTarget) -> str | None:
    port = resolve_port(action.port, target.container)
    if port is None:
        return f"the container has no port named {action.port!r}"
    scheme = (action.scheme or "HTTP").lower()
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    url = f"{scheme}://{action.host or target.pod_ip}:{port}{path}"
    headers = {"User-Agent": _USER_AGENT, "Accept": "*/*"}
    headers |= {http_header.name: http_header.value for http_header in action.http_headers}
    try:
        connector = aiohttp.TCPConnector(ssl=_unverified_tls())
        async with aiohttp.ClientSession(connector=connector) as session:
            return await _get(session, URL(url), headers)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # A host name that IDNA refuses, or a header that HTTP does, is a ValueError.
        return f"Get {url!r}: {error}"


async def _get(session: aiohttp.ClientSession, url: URL, headers: dict[str, str]) -> str | None:
    """Follow redirects to the same host only, as the kubelet does; one that leaves it succeeds."""
    for _ in range(_MAX_REDIRECTS + 1):
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            if not 200 <= answer.status < 400:
                return f"HTTP probe failed with statuscode: {answer.status}"
            target = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or not target:
                return None
        following = url.join(URL(target))
        if following.host != url.host:
            return None
        url = following
    return f"Get {str(url)!r}: stopped after {_MAX_REDIRECTS} redirects"


def _unverified_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _run_tcp_connect(action: TCPSocketAction, target: ProbeTarget) -> str | None:
    port = resolve_port(action.port, target.container)
    if port is None:
        return f"the container has no port named {action.port!r}"
    host = action.host or target.pod_ip
    try:
        _, writer = await asyncio.open_connection(host, port)
    except (OSError, ValueError) as error:  # IDNA refuses a host name by a ValueError
        return f"dial tcp {host}:{port}: {getattr(error, 'strerror', None) or error}"
    writer.close()
    return None


async def _run_grpc(action: GRPCAction, target: ProbeTarget) -> str | None:
    try:
        await check_grpc_health(target.pod_ip, action.port, action.service, _USER_AGENT)
    except (GrpcHealthError, OSError, EOFError) as error:
        return f"grpc {target.pod_ip}:{action.port}: {getattr(error, 'strerror', None) or error}"
    return None


RecordUpdater = Callable[[Callable[[ContainerRecord], ContainerRecord]], None]
EventReporter = Callable[[str, str, str], None]


async def run_probes_and_hooks(
    target: ProbeTarget, update_record: RecordUpdater, report_event: EventReporter
) -> None:
    """Run hook and probes and record their results, until cancelled."""
    container = target.container
    hook = container.lifecycle and container.lifecycle.post_start
    if hook and (problem := await run_hook(hook, target)):
        report_event("Warning", "FailedPostStartHook", problem)
        update_record(lambda record: replace(record, unhealthy="its postStart hook failed"))
        return
    if (probe := container.startup_probe) is not None:
        await _run_health_probe(probe, target, "Startup", update_record, report_event)
    ready = container.readiness_probe is None
    update_record(lambda record: replace(record, started=True, ready=ready))
    async with asyncio.TaskGroup() as probes:
        if (probe := container.liveness_probe) is not None:
            work = _run_health_probe(probe, target, "Liveness", update_record, report_event)
            probes.create_task(work)
        if (probe := container.readiness_probe) is not None:
            probes.create_task(_run_readiness_probe(probe, target, update_record, report_event))


async def _probe_states(
    probe: Probe, target: ProbeTarget, kind: str, state: ProbeState, report_event: EventReporter
) -> AsyncIterator[ProbeState]:
    """Run a probe periodically; report each failure, and yield the state after each result."""
    await asyncio.sleep(max(probe.initial_delay_seconds, 0))
    while True:
        problem = await run_probe(probe, target, max(probe.timeout_seconds or 1, 1))
        state = next_probe_state(probe, state, problem is None)
        if problem is not None:
            report_event("Warning", "Unhealthy", f"{kind} probe failed: {problem}")
        yield state
        # With jitter, so that many containers are not probed in step.
        jitter = 1.0 if kind == "Startup" else random.uniform(0.95, 1.05)
        await asyncio.sleep(max(probe.period_seconds or 10, 1) * jitter)


async def _run_health_probe(
    probe: Probe,
    target: ProbeTarget,
    kind: str,
    update_record: RecordUpdater,
    report_event: EventReporter,
) -> None:
    """Probe until too many failures mark the container unhealthy, or until it has started."""
    first, grace_s = ProbeState(successful=True), probe.termination_grace_period_seconds
    why = f"container {target.container.name} failed {kind.lower()} probe"
    async for state in _probe_states(probe, target, kind, first, report_event):
        if kind == "Startup" and state.last and state.successful:
            return
        if not state.successful:
            update_record(lambda record: replace(record, unhealthy=why, unhealthy_grace_s=grace_s))
            # It is stopped now, which cancels this.
            await asyncio.get_running_loop().create_future()


async def _run_readiness_probe(
    probe: Probe, target: ProbeTarget, update_record: RecordUpdater, report_event: EventReporter
) -> None:
    before = ProbeState(successful=False)
    async for state in _probe_states(probe, target, "Readiness", before, report_event):
        if (good := state.successful) != before.successful:
            update_record(lambda record: replace(record, ready=good))
        before = state


__all__ = ["GrpcHealthError", "check_grpc_health"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY = 0, 1, 3, 4, 6, 7
ACK = END_STREAM = 1
END_HEADERS, PADDED = 4, 8
MAX_FRAME_BYTES = 1 << 14
"""What a server may send while the client announces nothing else."""
MAX_MESSAGE_BYTES = 1 << 10
STATES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


class GrpcHealthError(Exception):
    """The service is not healthy, or its server does not speak gRPC."""


async def check_grpc_health(host: str, port: int, service: str, user_agent: str) -> None:
    """Ask a server for the health of a service. Raises GrpcHealthError: it does not serve; OSError,
    EOFError: there is no server, or it closes the connection.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        name = service.encode()
        message = b"\x0a" + _varint(len(name)) + name if name else b""
        body = struct.pack(">BI", 0, len(message)) + message
        writer.write(PREFACE + _frame(SETTINGS, 0, 0, b""))
        writer.write(_frame(HEADERS, END_HEADERS, 1, _headers(f"{host}:{port}", user_agent)))
        writer.write(_frame(DATA, END_STREAM, 1, body))
        answer = b""
        async for part in _answer(reader, writer):
            answer += part
            if len(answer) > MAX_MESSAGE_BYTES:
                raise GrpcHealthError("the answer is too long")
    finally:
        writer.close()
    status = answer[6:7] if answer[5:6] == b"\x08" else b""
    if not answer:
        raise GrpcHealthError("the server has no health service, or does not know the service")
    if status != b"\x01":
        state = STATES[status[0]] if status and status[0] < len(STATES) else STATES[0]
        raise GrpcHealthError(f"service unhealthy (responded with {state!r})")


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AsyncIterator[bytes]:
    """Yield the data of the stream until its end, and answer what the protocol asks for."""
    while True:
        head = await reader.readexactly(9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        if size > MAX_FRAME_BYTES:
            raise GrpcHealthError("the server does not speak HTTP/2")
        payload = await reader.readexactly(size)
        if kind in (SETTINGS, PING) and not flags & ACK:
            writer.write(_frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind in (RESET, GO_AWAY):
            raise GrpcHealthError("the server refused the call")
        elif kind == DATA:
            yield payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            return


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _headers(authority: str, user_agent: str) -> bytes:
    """Encode the headers: POST and http by their index, the others as literals that no table gets.

    A name with an index (RFC 7541, appendix A) has a prefix of four bits.
    """
    return b"".join(
        (
            b"\x83\x86",
            b"\x04" + _text("/grpc.health.v1.Health/Check"),
            b"\x01" + _text(authority),
            b"\x0f\x10" + _text("application/grpc"),
            b"\x0f\x2b" + _text(user_agent),
            b"\x00" + _text("te") + _text("trailers"),
        )
    )


def _text(text: str) -> bytes:
    encoded = text.encode()
    size = len(encoded)
    return (bytes([size]) if size < 0x7F else b"\x7f" + _varint(size - 0x7F)) + encoded


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
