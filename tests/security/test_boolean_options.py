"""Boolean options of requests to a running cluster, each in more than one spelling.

Clients spell them differently: kubectl ``true`` and ``1``, older official Python clients ``True``.
``None`` stands for an absent option. Unit tests read every spelling (``test_query_options``).
"""

import asyncio
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
