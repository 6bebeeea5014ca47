"""Capabilities of containers: none for users other than root, a bounding set as asked."""

import re
from typing import Any

import pytest

from integration.cluster.embedded import until
from security.conftest import AttackedServer, StartedPod

DEFAULT = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
    "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
NUMBERS = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "SETPCAP": 8, "NET_BIND_SERVICE": 10, "NET_ADMIN": 12, "NET_RAW": 13, "SYS_CHROOT": 18,
    "SYS_PTRACE": 19, "MKNOD": 27, "AUDIT_WRITE": 29, "SETFCAP": 31,
}  # fmt: skip
"""From ``linux/capability.h``."""
SHOW = "grep -E '^(Cap|NoNewPrivs|Uid|Groups)' /proc/self/status; echo variable=$NAME; sleep 600"


def mask(names: set[str]) -> int:
    return sum(1 << NUMBERS[name] for name in names)


async def status_of(
    server: AttackedServer, started_pod: StartedPod, context: dict[str, Any]
) -> dict[str, str]:
    """Return what a container with this security context shows of itself."""
    container = {
        "name": "c",
        "image": "any",
        "command": ["sh", "-c", SHOW],
        "env": [{"name": "NAME", "value": "a b$'\""}],
        "securityContext": context,
    }
    await started_pod("default", "p", ["true"], containers=[container])

    async def shown() -> dict[str, str] | None:
        _, log = await server.request("GET", "/api/v1/namespaces/default/pods/p/log")
        found = dict(re.split(r":\s*|=", line, maxsplit=1) for line in log.splitlines())
        return found if "variable" in found else None

    found = await until(shown)
    assert found is not None
    assert found["variable"] == "a b$'\""
    return found


@pytest.mark.parametrize(
    ("context", "bounding"),
    [
        ({}, DEFAULT),
        ({"capabilities": {"drop": ["ALL"]}}, set()),
        ({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}, {"NET_BIND_SERVICE"}),
        ({"capabilities": {"add": ["NET_ADMIN"], "drop": ["CHOWN"]}},
         (DEFAULT | {"NET_ADMIN"}) - {"CHOWN"}),
    ],
    ids=["default", "none", "one", "changed"],
)  # fmt: skip
async def test_a_user_other_than_root_has_no_capabilities(
    attacked_cluster: AttackedServer,
    started_pod: StartedPod,
    context: dict[str, Any],
    bounding: set[str],
) -> None:
    user = {"runAsUser": 1234, "runAsGroup": 2345}
    found = await status_of(attacked_cluster, started_pod, context | user)
    assert found["Uid"].split() == ["1234"] * 4
    assert found["Groups"].split() == ["2345"]
    for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(found[kind], 16) == 0, kind
    assert int(found["CapBnd"], 16) == mask(bounding)


async def test_root_has_the_capabilities_of_its_security_context(
    attacked_cluster: AttackedServer, started_pod: StartedPod
) -> None:
    context = {
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "SYS_PTRACE"]},
        "allowPrivilegeEscalation": False,
    }
    found = await status_of(attacked_cluster, started_pod, context)
    assert int(found["CapEff"], 16) == mask({"CHOWN", "SYS_PTRACE"})
    assert int(found["CapBnd"], 16) == mask({"CHOWN", "SYS_PTRACE"})
    assert found["NoNewPrivs"] == "1"


async def test_a_session_in_a_container_has_the_same_capabilities(
    attacked_cluster: AttackedServer, started_pod: StartedPod
) -> None:
    probe = ["sh", "-c", "grep Cap /proc/self/status >/tmp/session; sleep 0"]
    container = {
        "name": "c",
        "image": "any",
        "command": ["sh", "-c", "until [ -s /tmp/session ]; do sleep 0.1; done; "
                                "cat /tmp/session; sleep 600"],
        "securityContext": {"runAsUser": 1234},
        "startupProbe": {"exec": {"command": probe}, "periodSeconds": 1},
    }  # fmt: skip
    await started_pod("default", "p", ["true"], containers=[container])

    async def shown() -> str:
        path = "/api/v1/namespaces/default/pods/p/log"
        return str((await attacked_cluster.request("GET", path))[1])

    log = await until(shown)
    values = dict(line.split(":\t") for line in log.splitlines())
    assert int(values["CapEff"], 16) == int(values["CapAmb"], 16) == 0
    assert int(values["CapBnd"], 16) == mask(DEFAULT)
