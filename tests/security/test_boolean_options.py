"""Boolean options of requests to a running cluster, each in more than one spelling.

Clients spell them differently: kubectl ``true`` and ``1``, older official Python clients ``True``.
``None`` stands for an absent option. Unit tests read every spelling (``test_query_options``).
"""

import asyncio
import json
from functools import partial
from typing import Any
from urllib.parse import urlencode

import aiohttp

from integration.cluster.embedded import until
from security.conftest import AttackedServer, StartedPod

SPELLINGS: list[tuple[str | None, bool]] = [
    ("True", True), ("", True), ("0", False), ("False", False), (None, False)
]  # fmt: skip
MAPS = "/api/v1/namespaces/default/configmaps"
REPLIES_WITHIN_S = 30.0
STDIN, STDOUT, STDERR, CLOSE = 0, 1, 2, 255
STREAMS = "/api/v1/namespaces/streams/pods/p"


def path_with(path: str, name: str, text: str | None, **more: str) -> str:
    query = urlencode(more | ({} if text is None else {name: text}))
    return f"{path}?{query}"


async def create_map(server: AttackedServer, name: str) -> str:
    """Create a configuration map; returns its revision."""
    body = {"metadata": {"name": name}, "data": {"k": "v"}}
    status, found = await server.request("POST", MAPS, json=body)
    assert status == 201, found
    return str(found["metadata"]["resourceVersion"])


async def test_watch(attacked: AttackedServer) -> None:
    """A watch stays open and reports what is created after its start; a list ends."""
    before = await create_map(attacked, "before")
    for number, (text, expected) in enumerate(SPELLINGS):
        path = path_with(MAPS, "watch", text, resourceVersion=before)
        async with attacked.stream(path) as content, asyncio.timeout(REPLIES_WITHIN_S):
            if expected:
                before = await create_map(attacked, f"m{number}")
                event = json.loads(await content.readline())
                assert event["type"] == "ADDED", text
                assert event["object"]["metadata"]["name"] == f"m{number}"
            else:
                found = json.loads(await content.read())
                assert found["kind"] == "ConfigMapList", text


async def first_events(server: AttackedServer, path: str) -> list[dict[str, Any]]:
    """Return the events that a watch sends until its timeout of one second."""
    async with server.stream(f"{path}&watch=True&timeoutSeconds=1") as content:
        async with asyncio.timeout(REPLIES_WITHIN_S):
            return [json.loads(line) for line in (await content.read()).splitlines()]


async def test_initial_events_and_their_bookmark(attacked: AttackedServer) -> None:
    """Without ``sendInitialEvents`` a watch from a revision on has no initial events; a false one
    has none either, and the bookmark after them needs ``allowWatchBookmarks``.
    """
    revision = await create_map(attacked, "m")
    match = {"resourceVersionMatch": "NotOlderThan", "resourceVersion": revision}
    more = {"fieldSelector": "metadata.name=m"}
    initial = [
        first_events(
            attacked,
            path_with(
                MAPS,
                "sendInitialEvents",
                text,
                **more,
                **(match if text is not None else {"resourceVersion": revision}),
            ),
        )
        for text, _ in SPELLINGS
    ]
    for (text, expected), events in zip(SPELLINGS, await asyncio.gather(*initial), strict=True):
        assert [event["type"] for event in events] == ["ADDED"] * expected, text
    marked = [
        first_events(
            attacked,
            path_with(MAPS, "allowWatchBookmarks", text, sendInitialEvents="True", **more, **match),
        )
        for text, _ in SPELLINGS
    ]
    for (text, expected), events in zip(SPELLINGS, await asyncio.gather(*marked), strict=True):
        assert [event["type"] for event in events] == ["ADDED"] + ["BOOKMARK"] * expected, text


async def test_force_of_an_apply(attacked: AttackedServer) -> None:
    """A forced apply takes over a field of another manager; another one conflicts."""

    async def apply(manager: str, value: str, text: str | None) -> int:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "m"},
            "data": {"k": value},
        }
        status, _ = await attacked.request(
            "PATCH",
            path_with(f"{MAPS}/m", "force", text, fieldManager=manager),
            json=body,
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        return status

    assert await apply("first", "start", None) == 201
    for number, (text, expected) in enumerate(SPELLINGS):
        status = await apply(f"manager{number}", f"value{number}", text)
        assert status == (200 if expected else 409), text


async def test_orphan_dependents(attacked: AttackedServer) -> None:
    """An orphaning deletion waits for the garbage collector, which does not run here."""
    path = "/apis/apps/v1/namespaces/default/replicasets"
    labels = {"app": "x"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    for number, (text, expected) in enumerate(SPELLINGS):
        name = f"r{number}"
        body = {"metadata": {"name": name}, "spec": spec}
        status, found = await attacked.request("POST", path, json=body)
        assert status == 201, found
        await attacked.request("DELETE", path_with(f"{path}/{name}", "orphanDependents", text))
        status, found = await attacked.request("GET", f"{path}/{name}")
        finalizers = found["metadata"].get("finalizers", [])
        assert (status, finalizers) == ((200, ["orphan"]) if expected else (404, [])), text


async def test_a_dry_run_has_one_spelling(attacked: AttackedServer) -> None:
    """``dryRun`` is a list of names: any other value is refused, so that nothing is stored."""
    body = {"metadata": {"name": "m"}}
    for text in ("", "True", "true", "all", "false", "0"):
        status, found = await attacked.request("POST", path_with(MAPS, "dryRun", text), json=body)
        assert status == 400, found
        assert "dryRun" in found["message"]
    status, _ = await attacked.request("GET", f"{MAPS}/m")
    assert status == 404


TWO_RUNS = """
if test -e /data/second; then echo second; else touch /data/second; echo first; exit 1; fi
while true; do sleep 0.2; echo tick; done
"""


async def test_logs(attacked_cluster: AttackedServer, started_pod: StartedPod) -> None:
    """``tailLines=0`` selects only lines that follow; the log of the earlier run is ``first``."""
    container = {
        "name": "c",
        "image": "any",
        "command": ["sh", "-c", TWO_RUNS],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    volumes = [{"name": "data", "emptyDir": {}}]
    await started_pod("streams", "p", [], containers=[container], volumes=volumes)

    async def second_run_prints() -> bool:
        _, found = await attacked_cluster.request("GET", f"{STREAMS}/log")
        return isinstance(found, str) and found.startswith("second\ntick\n")

    await until(second_run_prints)
    for text, expected in SPELLINGS:
        path = path_with(f"{STREAMS}/log", "follow", text, tailLines="0")
        async with attacked_cluster.stream(path) as content, asyncio.timeout(REPLIES_WITHIN_S):
            assert await content.readline() == (b"tick\n" if expected else b""), text
        _, found = await attacked_cluster.request(
            "GET", path_with(f"{STREAMS}/log", "timestamps", text, tailLines="1")
        )
        assert len(found.split()) == (2 if expected else 1), (text, found)
        _, found = await attacked_cluster.request(
            "GET", path_with(f"{STREAMS}/log", "previous", text)
        )
        assert (found == "first\n") == expected, (text, found)
        # Without effect: the connection to a kubelet is always verified.
        status, _ = await attacked_cluster.request(
            "GET", path_with(f"{STREAMS}/log", "insecureSkipTLSVerifyBackend", text)
        )
        assert status == 200, text


async def stream_messages(
    server: AttackedServer, path: str, sent: list[bytes], most: int = 1000
) -> dict[int, bytes]:
    """Send messages to a stream of a pod; returns its data by channel, after ``most`` messages."""
    collected: dict[int, bytes] = {}
    connector = aiohttp.TCPConnector(ssl=server.tls)
    async with (
        asyncio.timeout(REPLIES_WITHIN_S),
        aiohttp.ClientSession(connector=connector, headers=server.admin) as session,
        session.ws_connect(server.url + path, protocols=["v5.channel.k8s.io"]) as socket,
    ):
        for message in sent:
            await socket.send_bytes(message)
        for _ in range(most):
            reply = await socket.receive()
            if reply.type is not aiohttp.WSMsgType.BINARY:
                break
            channel = reply.data[0]
            collected[channel] = collected.get(channel, b"") + reply.data[1:]
    return collected


async def test_streams_of_a_command(
    attacked_cluster: AttackedServer, started_pod: StartedPod
) -> None:
    """A command reads input, writes output and errors, and has a terminal, if so requested."""
    await started_pod("streams", "p", ["sleep", "600"])
    script = "cat; echo out; echo err >&2; test ! -t 1 || echo terminal"
    base = f"{STREAMS}/exec?command=sh&command=-c&{urlencode({'command': script})}"
    typed = [bytes([STDIN]) + b"typed ", bytes([CLOSE, STDIN])]

    async def run(name: str, text: str | None, sent: list[bytes], *others: str) -> dict[int, bytes]:
        chosen = {other: "True" for other in others} | ({} if text is None else {name: text})
        return await stream_messages(attacked_cluster, f"{base}&{urlencode(chosen)}", sent)

    for text, expected in SPELLINGS:
        found = await run("stdin", text, typed, "stdout", "stderr")
        assert found[STDOUT] == (b"typed out\n" if expected else b"out\n"), text
        found = await run("stdout", text, [], "stderr")
        assert (found.get(STDOUT), found[STDERR]) == (b"out\n" if expected else None, b"err\n"), (
            text
        )
        found = await run("stderr", text, [], "stdout")
        assert (found[STDOUT], found.get(STDERR)) == (b"out\n", b"err\n" if expected else None), (
            text
        )
        end = [bytes([STDIN]) + b"\x04"] if expected else []
        found = await run("tty", text, end, "stdout", *(["stdin"] if expected else []))
        assert (b"terminal" in found[STDOUT]) == expected, text


async def test_streams_of_a_container(
    attacked_cluster: AttackedServer, started_pod: StartedPod
) -> None:
    """A client that attaches gets the requested streams, and its input counts if requested."""
    script = (
        "while true; do echo out; echo err >&2; sleep 0.1; done & while read x; do echo $x; done"
    )
    container = {"name": "c", "image": "any", "stdin": True, "command": ["sh", "-c", script]}
    await started_pod("streams", "p", [], containers=[container])
    attach = f"{STREAMS}/attach"
    for number, (text, expected) in enumerate(SPELLINGS):
        path = path_with(attach, "stdout", text, stderr="1")
        found = await stream_messages(attacked_cluster, path, [], most=4)
        assert set(found) == ({STDOUT, STDERR} if expected else {STDERR}), text
        path = path_with(attach, "stderr", text, stdout="1")
        found = await stream_messages(attacked_cluster, path, [], most=4)
        assert set(found) == ({STDOUT, STDERR} if expected else {STDOUT}), text
        word, end = f"word{number}", f"end{number}"
        path = path_with(attach, "stdin", text, stdout="1")
        await stream_messages(attacked_cluster, path, [bytes([STDIN]) + f"{word}\n".encode()], 3)
        path = path_with(attach, "stdin", "1", stdout="1")
        await stream_messages(attacked_cluster, path, [bytes([STDIN]) + f"{end}\n".encode()], 3)

        arrived = {end, word} if expected else {end}
        lines = await until(partial(logged_lines, attacked_cluster, arrived))
        assert (word in lines) == expected, text


async def logged_lines(server: AttackedServer, at_least: set[str]) -> list[str]:
    """Return the lines of the pod's log once they include these, or else none."""
    _, found = await server.request("GET", f"{STREAMS}/log")
    written: list[str] = found.splitlines()
    return written if at_least <= set(written) else []
