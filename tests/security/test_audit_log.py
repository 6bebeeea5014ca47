"""The audit log: every request leaves an event, and no event contains a secret."""

import contextlib
import stat
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit
from typing import Any, cast

import msgspec
import pytest

from integration.cluster.embedded import until
from security.conftest import attacked_server
from security.rbac_objects import bind

SECRETS = "/api/v1/namespaces/default/secrets"
HIDDEN = "correct-horse-battery-staple"


async def events_with(log: Path, uri: str, count: int = 1) -> list[dict[str, Any]]:
    """Return the completed events of a URI, once there are enough."""

    async def found() -> Any:
        completed = [event for event in read_events(log) if event["stage"] == "ResponseComplete"]
        chosen = [event for event in completed if event["requestURI"] == uri]
        return [chosen] if len(chosen) >= count else None

    [chosen] = await until(found)
    return cast("list[dict[str, Any]]", chosen)


def read_events(log: Path) -> list[dict[str, Any]]:
    """Return the events of complete lines; a full disk leaves an incomplete one."""
    events = []
    for line in log.read_bytes().splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            events.append(msgspec.json.decode(line))
    return events


async def test_events_name_the_user_the_object_and_the_decision(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "audit.jsonl"
    async with attacked_server(tmp_path / "data", "--audit-log", str(log)) as server:
        made = {"metadata": {"name": "s"}, "stringData": {"password": HIDDEN}}
        await server.request("POST", SECRETS, json=made)
        headers = {"User-Agent": "probe/1", "Impersonate-Group": "team"}
        await server.request("GET", f"{SECRETS}/s?x=1", user="mallory", headers=headers)
        await server.request("GET", "/version", headers={"Authorization": "Bearer " + HIDDEN})
        [created] = await events_with(log, SECRETS)
        [refused] = await events_with(log, f"{SECRETS}/s?x=1")
        [invalid] = await events_with(log, "/version")
    assert created["objectRef"] == {
        "resource": "secrets", "namespace": "default", "name": "s", "apiVersion": "v1",
    }  # fmt: skip
    assert (created["verb"], created["responseStatus"]["code"]) == ("create", 201)
    assert created["user"]["groups"] == ["system:masters", "system:authenticated"]
    assert created["annotations"]["authorization.k8s.io/decision"] == "allow"
    assert (refused["kind"], refused["apiVersion"]) == ("Event", "audit.k8s.io/v1")
    assert (refused["level"], refused["userAgent"]) == ("Metadata", "probe/1")
    assert refused["user"]["username"] == "gangline-admin"
    assert refused["impersonatedUser"] == {
        "username": "mallory", "groups": ["team", "system:authenticated"],
    }  # fmt: skip
    assert refused["sourceIPs"] == ["127.0.0.1"]
    assert refused["annotations"]["authorization.k8s.io/decision"] == "forbid"
    assert (refused["responseStatus"]["code"], refused["responseStatus"]["reason"]) == (
        403, "Forbidden")  # fmt: skip
    assert (invalid["user"], invalid["responseStatus"]["code"]) == ({}, 401)
    assert refused["requestReceivedTimestamp"] < refused["stageTimestamp"]
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert HIDDEN.encode() not in log.read_bytes()


async def test_a_stream_is_recorded_when_it_begins(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    async with attacked_server(tmp_path / "data", "--audit-log", str(log)) as server:
        await bind(server, "editor", "edit", "default")
        uri = "/api/v1/namespaces/default/pods/p/exec?command=id&stdout=true"
        await server.request("POST", uri, user="editor")
        [ended] = await events_with(log, uri)
    stages = [e["stage"] for e in read_events(log) if e["auditID"] == ended["auditID"]]
    assert stages == ["ResponseStarted", "ResponseComplete"]
    assert ended["objectRef"]["subresource"] == "exec"
    assert ended["responseStatus"]["code"] == 404


@pytest.mark.parametrize("header", ["User-Agent", "Impersonate-User"])
async def test_bytes_that_are_not_text_stop_neither_the_server_nor_the_log(
    tmp_path: Path, header: str
) -> None:
    log = tmp_path / "audit.jsonl"
    async with attacked_server(tmp_path / "data", "--audit-log", str(log)) as server:
        reader, writer = await server.connect()
        authorization = server.admin["Authorization"].encode()
        writer.write(
            b"GET /version?%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: %s\r\n"
            b"%s: \xff\xfe\r\n\r\n" % (header.encode(), authorization, header.encode())
        )  # fmt: skip
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await events_with(log, f"/version?{header}")
    for line in log.read_bytes().splitlines():
        assert msgspec.json.decode(line)["kind"] == "Event"


async def test_a_full_disk_loses_events_but_stops_no_request(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    async with attacked_server(tmp_path / "data", "--audit-log", str(log)) as server:
        await events_with(log, "/version", count=0)
        process: Any = server.process
        # The kernel refuses to write beyond the limit. Only reads are sent: the limit is that of
        # every file of the server, and the log of its database is larger.
        limit = log.stat().st_size + 10
        prlimit(process.pid, RLIMIT_FSIZE, (limit, RLIM_INFINITY))
        for _ in range(3):
            assert (await server.request("GET", "/version"))[0] == 200

        async def lost() -> Any:
            _, metrics = await server.request("GET", "/metrics")
            counts = [line for line in metrics.splitlines() if "lost_total " in line]
            return any(float(line.split()[-1]) > 0 for line in counts if line[0] != "#")

        await until(lost)
        prlimit(process.pid, RLIMIT_FSIZE, (RLIM_INFINITY, RLIM_INFINITY))
        await server.request("GET", "/readyz")
        [event] = await events_with(log, "/readyz")
        assert event["responseStatus"]["code"] == 200
