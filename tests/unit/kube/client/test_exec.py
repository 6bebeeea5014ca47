"""Running commands in containers: channels, exit codes, broken connections."""

import json

import pytest
from aiohttp import web

from gangline.kube import errors
from gangline.kube.client.exec import PROTOCOLS, ExecResult
from unit.kube.fake_server import failing

PATH = "/api/v1/namespaces/ns/pods/p/exec"


def outcome(**status):
    return b"\x03" + json.dumps({"kind": "Status", **status}).encode()


def exit_code(code):
    causes = [{"reason": "ExitCode", "message": str(code)}]
    details = {"causes": causes}
    return outcome(status="Failure", reason="NonZeroExitCode", details=details)


def container(*messages, echo=False, protocols=PROTOCOLS):
    """A container that sends ``messages``; with ``echo``, its input comes first."""

    async def answer(request):
        socket = web.WebSocketResponse(protocols=protocols)
        await socket.prepare(request)
        if echo:
            async for message in socket:
                if message.data[0] == 255:
                    break
                await socket.send_bytes(b"\x01" + message.data[1:])
        for message in messages:
            await socket.send_bytes(message)
        await socket.close()
        return socket

    return answer


async def test_exec_returns_output_and_end_of_a_command(client, server):
    server.routes["GET", PATH] = container(
        b"\x01", b"\x01out", b"\x02err", b"\x01put", outcome(status="Success")
    )
    assert await client.exec("p", "ns", ["echo", "a b"], container="c") == ExecResult(
        0, b"output", b"err"
    )
    query = server.seen[0].query
    assert (query["container"], query["stdout"], query["stderr"]) == ("c", "true", "true")
    assert "stdin" not in query


async def test_a_command_that_fails_has_its_exit_code(client, server):
    server.routes["GET", PATH] = container(exit_code(42))
    assert (await client.exec("p", "ns", ["false"])).exit_code == 42


async def test_a_command_reads_what_it_is_given(client, server):
    server.routes["GET", PATH] = container(outcome(status="Success"), echo=True)
    done = await client.exec("p", "ns", ["cat"], stdin=b"typed")
    assert done.stdout == b"typed"


async def test_exec_of_an_unknown_command_raises(client, server):
    server.routes["GET", PATH] = container(
        outcome(status="Failure", reason="InternalError", message="no such command")
    )
    with pytest.raises(errors.ApiError, match="no such command"):
        await client.exec("p", "ns", ["nope"])


async def test_broken_exec_connection_raises(client, server):
    server.routes["GET", PATH] = container(b"\x01half")
    with pytest.raises(errors.Unreachable, match="was lost"):
        await client.exec("p", "ns", ["cat"])


async def test_exec_in_a_missing_pod_raises(client, server):
    server.routes["GET", PATH] = failing(404, "NotFound")
    with pytest.raises(errors.NotFound, match="as scripted"):
        await client.exec("p", "ns", ["true"])


async def test_a_command_that_does_not_end_is_left(client, server):
    async def hangs(request):
        socket = web.WebSocketResponse(protocols=PROTOCOLS)
        await socket.prepare(request)
        async for _ in socket:
            pass
        return socket

    server.routes["GET", PATH] = hangs
    with pytest.raises(errors.Unreachable, match="did not end"):
        await client.exec("p", "ns", ["top"], timeout_s=0.2)


async def test_text_frames_are_ignored(client, server):
    async def answer(request):
        socket = web.WebSocketResponse(protocols=PROTOCOLS)
        await socket.prepare(request)
        await socket.send_str("hello")
        await socket.send_bytes(outcome(status="Success"))
        await socket.close()
        return socket

    server.routes["GET", PATH] = answer
    assert (await client.exec("p", "ns", ["true"])).exit_code == 0
