"""The right to use a queue: an ordinary user puts work only into queues that are granted to it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from integration.cluster.embedded import embedded, until
from security.conftest import AttackedServer, _attacked_server
from security.rbac_objects import grant, rule
from unit.operator.builders import manifest

SCHEDULING = "/apis/scheduling.volcano.sh/v1beta1"
JOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
GROUPS = f"{SCHEDULING}/namespaces/default/podgroups"
PODS = "/api/v1/namespaces/default/pods"
QUEUE = "scheduling.volcano.sh/queue-name"
CONFIGURATION = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/gangline-operator"
)


def job(name: str, queue: str) -> dict[str, Any]:
    written = manifest(1, None, name=name)
    written["metadata"] = {"name": name, "namespace": "default"}
    written["spec"]["runPolicy"] = {"schedulingPolicy": {"queue": queue}, "suspend": True}
    return written


def group(name: str, queue: str) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": 1, "queue": queue},
    }


def pod(name: str, queue: str, **spec: Any) -> dict[str, Any]:
    annotations = {QUEUE: queue} if queue else {}
    containers = [{"name": "c", "image": "any", "command": ["true"]}]
    body = {"containers": containers, "schedulerName": "nobody", **spec}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": body}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[AttackedServer]:
    """A cluster with queues ``ours`` and ``theirs``, and a user ``ann`` who may use ``ours``."""
    async with embedded(tmp_path / "home", "--nodes", "1", "--queue-access") as cluster:
        record = cluster.home.read_run_record()
        assert record is not None
        server = _attacked_server(cluster.process, record.url, cluster.home.folder)
        for name in ("ours", "theirs"):
            queue = {"metadata": {"name": name}, "spec": {"weight": 1}}
            status, body = await server.request("POST", f"{SCHEDULING}/queues", json=queue)
            assert status == 201, body
        await grant(
            server,
            "ann",
            rule("kubeflow.org", "pytorchjobs", "create,update,patch,get"),
            rule("scheduling.volcano.sh", "podgroups", "create,update,get"),
            rule("", "pods", "create,get,patch,update"),
            rule("scheduling.volcano.sh", "queues", "use", "ours"),
        )

        async def registered() -> bool:
            status, body = await server.request("GET", CONFIGURATION)
            return status == 200 and len(body["webhooks"]) == 2

        await until(registered, 60)
        yield server


@pytest.mark.slow
async def test_an_ordinary_user_uses_only_queues_that_are_granted(guarded: AttackedServer) -> None:
    async def post(path: str, body: dict[str, Any], user: str = "ann") -> tuple[int, str]:
        status, answer = await guarded.request("POST", path, user=user, json=body)
        return status, str(answer.get("message", ""))

    assert (await post(JOBS, job("mine", "ours")))[0] == 201
    assert (await post(GROUPS, group("mine", "ours")))[0] == 201
    assert (await post(PODS, pod("mine", "ours")))[0] == 201
    assert (await post(PODS, pod("plain", "")))[0] == 201
    for path, body in (
        (JOBS, job("stolen", "theirs")),
        (JOBS, job("default", "")),
        (GROUPS, group("stolen", "theirs")),
        (GROUPS, group("default", "")),
        (PODS, pod("stolen", "theirs")),
    ):
        status, message = await post(path, body)
        assert status == 403, (path, body)
        assert "user 'ann' may not use the queue" in message
        assert "'use'" in message

    # A change of the queue is a use of the new one; other changes of the object are not reviewed.
    _, known = await guarded.request("GET", f"{GROUPS}/mine", user="ann")
    moved = known | {"spec": known["spec"] | {"queue": "theirs"}}
    status, _ = await guarded.request("PUT", f"{GROUPS}/mine", user="ann", json=moved)
    assert status == 403
    relabelled = known | {"metadata": known["metadata"] | {"labels": {"a": "b"}}}
    status, _ = await guarded.request("PUT", f"{GROUPS}/mine", user="ann", json=relabelled)
    assert status in (200, 409)

    # So is a change of a pod's annotations: the scheduler reads them again.
    merge = {"Content-Type": "application/merge-patch+json"}
    plain, mine = f"{PODS}/plain", f"{PODS}/mine"

    async def patch(path: str, **metadata: Any) -> tuple[int, str]:
        body = json.dumps({"metadata": metadata}).encode()
        status, answer = await guarded.request("PATCH", path, user="ann", headers=merge, data=body)
        return status, str(answer.get("message", ""))

    for path, annotations in (
        (plain, {QUEUE: "theirs"}),
        (plain, {"scheduling.volcano.sh/group-min-member": "1"}),  # the queue "default"
        (mine, {QUEUE: "theirs"}),
    ):
        status, message = await patch(path, annotations=annotations)
        assert status == 403, (path, annotations)
        assert "user 'ann' may not use the queue" in message
    _, known = await guarded.request("GET", plain, user="ann")
    known["metadata"]["annotations"] = {QUEUE: "theirs"}
    assert (await guarded.request("PUT", plain, user="ann", json=known))[0] == 403
    assert (await patch(plain, annotations={QUEUE: "ours"}))[0] == 200
    assert (await patch(plain, annotations={"a": "b"}, labels={"a": "b"}))[0] == 200

    # A pod may use a queue by the right of its service account.
    account = "system:serviceaccount:default:trainer"
    await guarded.request(
        "POST", "/api/v1/namespaces/default/serviceaccounts", json={"metadata": {"name": "trainer"}}
    )
    await grant(guarded, account, rule("scheduling.volcano.sh", "queues", "use", "theirs"))
    status, message = await post(PODS, pod("by-account", "theirs", serviceAccountName="trainer"))
    assert status == 201, message

    # The administrator uses every queue.
    status, body = await guarded.request("POST", JOBS, json=job("admins", "theirs"))
    assert status == 201, body
