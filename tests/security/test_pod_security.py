"""Pod Security admission of a running API server: labels of a namespace limit its pods."""

import json
from pathlib import Path
from typing import Any

import aiohttp

from security.conftest import AttackedServer, attacked_server

PREFIX = "pod-security.kubernetes.io/"
PODS = "/api/v1/namespaces/{}/pods"
PLAIN = {"name": "a", "image": "i"}
HARDENED = PLAIN | {
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
}


async def create_namespace(server: AttackedServer, name: str, **labels: str) -> tuple[int, Any]:
    metadata = {"name": name, "labels": {PREFIX + key: value for key, value in labels.items()}}
    return await server.request("POST", "/api/v1/namespaces", json={"metadata": metadata})


async def create_pod(
    server: AttackedServer, namespace: str, name: str, container: dict[str, Any], **spec: Any
) -> tuple[int, Any]:
    pod = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
    return await server.request("POST", PODS.format(namespace), json=pod)


async def warnings_of(server: AttackedServer, method: str, path: str, **more: Any) -> list[str]:
    """Send a request that must succeed, and return the warnings in its answer."""
    connector = aiohttp.TCPConnector(ssl=server.tls)
    headers = server.admin | more.pop("headers", {})
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.request(method, server.url + path, headers=headers, **more) as answer,
    ):
        assert answer.status < 300, await answer.text()
        texts = answer.headers.getall("Warning", [])
    return [text.partition('"')[2][:-1].replace('\\"', '"') for text in texts]


async def test_pods_that_a_namespace_forbids_are_refused(attacked: AttackedServer) -> None:
    await create_namespace(attacked, "strict", enforce="restricted")
    await create_namespace(attacked, "old", enforce="restricted", **{"enforce-version": "v1.7"})
    await create_namespace(attacked, "base", enforce="baseline")

    status, body = await create_pod(attacked, "strict", "plain", PLAIN)
    assert (status, body["reason"]) == (403, "Forbidden")
    assert body["message"].startswith(
        'pods "plain" is forbidden: violates PodSecurity "restricted:latest": '
        'allowPrivilegeEscalation != false (container "a" must set '
    )
    status, _ = await create_pod(attacked, "strict", "good", HARDENED)
    assert status == 201
    # Version 1.7 had neither of the other controls.
    status, _ = await create_pod(
        attacked, "old", "plain", PLAIN, securityContext={"runAsNonRoot": True}
    )
    assert status == 201

    status, _ = await create_pod(attacked, "base", "plain", PLAIN)
    assert status == 201
    status, body = await create_pod(attacked, "base", "bad", PLAIN, hostNetwork=True)
    assert (status, "violates PodSecurity" in body["message"]) == (403, True), body


async def test_a_new_image_is_checked_and_other_updates_are_not(attacked: AttackedServer) -> None:
    await create_namespace(attacked, "later")
    await create_pod(attacked, "later", "p", PLAIN)
    path = PODS.format("later") + "/p"
    merge = {"Content-Type": "application/merge-patch+json"}
    labels = {"metadata": {"labels": {PREFIX + "enforce": "restricted"}}}
    found = await warnings_of(
        attacked, "PATCH", "/api/v1/namespaces/later", data=json.dumps(labels), headers=merge
    )
    assert found == [
        'existing pods in namespace "later" violate the new PodSecurity enforce level '
        '"restricted:latest"',
        "p: allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, "
        "seccompProfile",
    ]
    patch = json.dumps({"metadata": {"labels": {"x": "y"}}})
    assert (await attacked.request("PATCH", path, data=patch, headers=merge))[0] == 200
    strategic = {"Content-Type": "application/strategic-merge-patch+json"}
    patch = json.dumps({"spec": {"containers": [{"name": "a", "image": "other"}]}})
    status, body = await attacked.request("PATCH", path, data=patch, headers=strategic)
    assert (status, "violates PodSecurity" in body["message"]) == (403, True)
    assert (await attacked.request("DELETE", path))[0] == 200


async def test_users_are_warned_of_workloads_and_wrong_labels_are_refused(
    attacked: AttackedServer,
) -> None:
    status, body = await create_namespace(attacked, "wrong", enforce="strict")
    assert status == 422
    assert "must be one of privileged, baseline, restricted" in body["message"]
    await create_namespace(attacked, "warned", enforce="baseline", warn="restricted")
    pod = {"containers": [PLAIN], "restartPolicy": "Never"}
    job = {"metadata": {"name": "w"}, "spec": {"template": {"spec": pod}}}
    path = "/apis/batch/v1/namespaces/warned/jobs"
    found = await warnings_of(attacked, "POST", path, json=job)
    assert found[-1].startswith('would violate PodSecurity "restricted:latest": allowPrivilege')
    good = {"metadata": {"name": "good"}, "spec": {"containers": [HARDENED]}}
    assert await warnings_of(attacked, "POST", PODS.format("warned"), json=good) == []


async def test_violations_are_noted_in_the_audit_log(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    async with attacked_server(tmp_path / "data", "--audit-log", str(log)) as server:
        await create_namespace(server, "audited", audit="baseline")
        status, _ = await create_pod(server, "audited", "p", PLAIN, hostPID=True)
        assert status == 201
    events = [json.loads(line) for line in log.read_text().splitlines()]
    (event,) = [
        each
        for each in events
        if each["verb"] == "create" and each["objectRef"]["resource"] == "pods"
    ]
    notes = event["annotations"]
    assert notes[PREFIX + "enforce-policy"] == "privileged:latest"
    assert notes[PREFIX + "audit-violations"] == (
        'would violate PodSecurity "baseline:latest": host namespaces (hostPID=true)'
    )
