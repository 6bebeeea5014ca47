"""The exec client of MPIJob launchers, against a test server."""

import ast
import asyncio
import inspect
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from gangline.local.apiserver.auth import pki
from gangline.operator.frameworks.mpi import exec_client

Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    """Responds as configured, and records the request."""

    serve: Serve | None = None
    asked: list[web.Request] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        assert self.serve is not None
        return await self.serve(request)


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """A server that a pod would find as its API server."""
    certificates = pki.prepare_certificates(tmp_path / "pki", ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server.certificate, certificates.server.key)
    state = Server()
    app = web.Application()
    app.router.add_get("/{path:.*}", state.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    account = tmp_path / "account"
    account.mkdir()
    (account / "namespace").write_text("team")
    (account / "token").write_text("secret")
    (account / "ca.crt").write_bytes(certificates.authority.certificate.read_bytes())
    monkeypatch.setattr(exec_client, "SERVICE_ACCOUNT_PATH", account)
    monkeypatch.setattr(exec_client.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(runner.addresses[0][1]))
    yield state
    await runner.cleanup()


async def run(*arguments: str) -> int:
    return await asyncio.to_thread(exec_client.main, list(arguments))


def failed_with(code: int) -> dict[str, Any]:
    cause = {"reason": "ExitCode", "message": str(code)}
    return {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}


def saying(*messages: bytes, outcome: dict[str, Any] | None = None) -> Serve:
    """Serve a command with this output and outcome."""

    async def serve(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io", "v4.channel.k8s.io"])
        await socket.prepare(request)
        for message in messages:
            await socket.send_bytes(message)
        if outcome is not None:
            await socket.send_bytes(b"\x03" + json.dumps(outcome).encode())
        await socket.close()
        return socket

    return serve


async def test_output_and_exit_code_are_relayed(server, capfdbinary):
    server.serve = saying(b"\x01out", b"\x02err", b"\x01 and more", outcome=failed_with(7))
    assert await run("train-worker-0", "mpi", "/bin/sh", "-c", "a & b") == 7
    expected = capfdbinary.readouterr()
    assert (expected.out, expected.err) == (b"out and more", b"err")
    (asked,) = server.asked
    assert asked.path == "/api/v1/namespaces/team/pods/train-worker-0/exec"
    assert asked.query.getall("command") == ["/bin/sh", "-c", "a & b"]
    assert (asked.query["container"], asked.query["stdout"]) == ("mpi", "true")
    assert asked.headers["Authorization"] == "Bearer secret"


async def test_success_is_zero(server):
    server.serve = saying(outcome={"status": "Success"})
    assert await run("pod", "mpi", "true") == 0


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65_535, 65_536, 300_000])
async def test_messages_of_every_length_arrive_completely(server, capfdbinary, length):
    server.serve = saying(b"\x01" + b"x" * length, outcome={"status": "Success"})
    assert await run("pod", "mpi", "true") == 0
    assert capfdbinary.readouterr().out == b"x" * length


async def test_a_long_silence_is_bridged_by_pings(server, monkeypatch):
    pings = asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        message = await socket.receive()
        assert message.type is WSMsgType.PING
        pings.set()
        await socket.ping(b"and you?")
        answer = await socket.receive()
        assert (answer.type, answer.data) == (WSMsgType.PONG, b"and you?")
        await socket.send_bytes(b"\x03" + json.dumps({"status": "Success"}).encode())
        await socket.close()
        return socket

    monkeypatch.setattr(exec_client, "PING_EVERY_S", 0.2)
    server.serve = serve
    assert await run("pod", "mpi", "true") == 0
    assert pings.is_set()


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_server_is_asked_again(server, status):
    async def serve(request: web.Request) -> web.StreamResponse:
        if len(server.asked) < 3:
            return web.Response(status=status)
        return await saying(outcome={"status": "Success"})(request)

    server.serve = serve
    assert await run("pod", "mpi", "true") == 0
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_refusal_is_reported_and_final(server, capfdbinary, status):
    async def serve(request: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "you may not"}, status=status)

    server.serve = serve
    assert await run("pod", "mpi", "true") == exec_client.CANNOT_RUN
    assert len(server.asked) == 1
    assert f"HTTP {status}: you may not" in capfdbinary.readouterr().err.decode()


async def test_a_server_that_stays_busy_is_given_up(server, capfdbinary):
    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="later")

    server.serve = serve
    assert await run("pod", "mpi", "true") == exec_client.CANNOT_RUN
    assert len(server.asked) == exec_client.ATTEMPTS
    assert "later" in capfdbinary.readouterr().err.decode()


async def test_a_command_that_may_have_run_is_not_run_again(server, capfdbinary):
    server.serve = saying(b"\x01half")
    assert await run("pod", "mpi", "true") == exec_client.CANNOT_RUN
    assert len(server.asked) == 1
    assert "while the command ran" in capfdbinary.readouterr().err.decode()


async def test_outcome_without_an_exit_code_is_reported(server, capfdbinary):
    server.serve = saying(outcome={"status": "Failure", "message": "no such container"})
    assert await run("pod", "mpi", "true") == exec_client.CANNOT_RUN
    assert "no such container" in capfdbinary.readouterr().err.decode()


async def test_a_server_of_another_authority_gets_no_token(server, tmp_path, capfdbinary):
    other = pki.prepare_certificates(tmp_path / "other", ["127.0.0.1"]).authority.certificate
    (exec_client.SERVICE_ACCOUNT_PATH / "ca.crt").write_bytes(other.read_bytes())
    assert await run("pod", "mpi", "true") == exec_client.CANNOT_RUN
    assert server.asked == []
    assert "certificate" in capfdbinary.readouterr().err.decode()


async def test_pod_without_a_service_account_is_reported(server, capfdbinary):
    (exec_client.SERVICE_ACCOUNT_PATH / "token").unlink()
    assert await run("pod", "mpi", "true") == exec_client.CANNOT_RUN
    assert "no access to the API server" in capfdbinary.readouterr().err.decode()


async def test_call_without_a_command_prints_the_usage():
    assert await run("pod", "mpi") == 2


def test_the_client_needs_nothing_but_an_old_python():
    tree = ast.parse(inspect.getsource(exec_client), feature_version=(3, 8))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names
