"""Probe and hook handlers: exec, HTTP GET, TCP connect."""

import asyncio
import ssl
from dataclasses import dataclass

import aiohttp

from gangline.api.core.container import Container
from gangline.api.core.probe import (
    ExecAction,
    HTTPGetAction,
    LifecycleHandler,
    Probe,
    TCPSocketAction,
)
from gangline.local.kubelet.probes.state import resolve_port
from gangline.local.kubelet.runtime.interface import ContainerStartError, RunningContainer

_MAX_OUTPUT = 1024


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """The container that a probe or hook applies to."""

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
    except TimeoutError:
        return f"timed out after {timeout_s:g} s"
    if probe.grpc is not None:
        return "gRPC probes are not available on this cluster: use exec, httpGet or tcpSocket"
    return "the probe names no action"


async def run_hook(hook: LifecycleHandler, target: ProbeTarget) -> str | None:
    """Run a lifecycle hook to its end; None is a success, else the reason of the failure."""
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
    headers = {"User-Agent": "kube-probe/1.31", "Accept": "*/*"}
    headers |= {each.name: each.value for each in action.http_headers}
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=_unverified_tls())) as session,
            session.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            if 200 <= answer.status < 400:
                return None
            return f"HTTP probe failed with statuscode: {answer.status}"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # A host name that IDNA refuses, or a header that HTTP does, is a ValueError.
        return f"Get {url!r}: {error}"


def _unverified_tls() -> ssl.SSLContext:
    """A TLS context that accepts any certificate, as Kubernetes' probes do."""
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
