"""A ResourceQuota limits what a user may create, also by many requests at the same time."""

import asyncio
import subprocess
from typing import Any

import pytest

from integration.cluster.embedded import until
from security.conftest import AttackedServer

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


async def limit(server: AttackedServer, hard: dict[str, Any], **spec: Any) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}}
    status, body = await server.request("POST", QUOTAS, json=quota)
    assert status == 201, body


async def used(server: AttackedServer, expected: dict[str, str]) -> None:
    """Wait until the status of the quota shows this use."""
    async with asyncio.timeout(30):
        while True:
            _, quota = await server.request("GET", f"{QUOTAS}/q")
            if quota.get("status", {}).get("used") == expected:
                assert quota["status"]["hard"].keys() == expected.keys()
                return
            await asyncio.sleep(0.05)


def config_map(number: int) -> dict[str, Any]:
    return {"metadata": {"name": f"c{number}"}}


def pod(name: str, resources: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox", "resources": resources or {}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


@pytest.mark.parametrize("resource", ["configmaps", "count/configmaps"])
async def test_parallel_creations_do_not_exceed_a_count(
    attacked: AttackedServer, resource: str
) -> None:
    await limit(attacked, {resource: "10"})
    answers = await asyncio.gather(
        *(attacked.request("POST", CONFIG_MAPS, json=config_map(n)) for n in range(50))
    )
    assert [status for status, _ in answers].count(201) == 10
    refused = [body for status, body in answers if status != 201]
    assert {body["code"] for body in refused} == {403}
    assert refused[0]["reason"] == "Forbidden"
    name = refused[0]["details"]["name"]
    assert refused[0]["message"] == (
        f'configmaps "{name}" is forbidden: exceeded quota: q, '
        f"requested: {resource}=1, used: {resource}=10, limited: {resource}=10"
    )
    _, found = await attacked.request("GET", CONFIG_MAPS)
    assert len(found["items"]) == 10
    _, quota = await attacked.request("GET", f"{QUOTAS}/q")
    assert quota["status"] == {"hard": {resource: "10"}, "used": {resource: "10"}}
    await attacked.request("DELETE", f"{CONFIG_MAPS}/{found['items'][0]['metadata']['name']}")
    status, _ = await attacked.request("POST", CONFIG_MAPS, json=config_map(100))
    assert status == 201


async def test_each_way_of_creating_is_counted(attacked: AttackedServer) -> None:
    await limit(attacked, {"count/configmaps": 1})
    status, _ = await attacked.request("POST", f"{CONFIG_MAPS}?dryRun=All", json=config_map(0))
    assert status == 201
    status, _ = await attacked.request("POST", CONFIG_MAPS, json=config_map(0))
    assert status == 201
    apply = {"Content-Type": "application/apply-patch+yaml"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}}
    for query in ("fieldManager=m", "fieldManager=m&dryRun=All"):
        status, answer = await attacked.request(
            "PATCH", f"{CONFIG_MAPS}/applied?{query}", json=body, headers=apply
        )
        assert (status, answer["reason"]) == (403, "Forbidden")
    status, _ = await attacked.request("PUT", f"{CONFIG_MAPS}/c0", json=config_map(0))
    assert status == 200


async def test_use_follows_deletions_and_ended_pods(attacked: AttackedServer) -> None:
    hard = {"pods": "2", "count/pods": "3", "requests.cpu": "1", "limits.memory": "1Gi"}
    await limit(attacked, hard)
    await used(attacked, dict.fromkeys(hard, "0"))
    small = {"requests": {"cpu": "300m"}, "limits": {"memory": "100Mi", "cpu": "1"}}
    for name in ("a", "b"):
        status, body = await attacked.request("POST", PODS, json=pod(name, small))
        assert status == 201, body
    expected = {"pods": "2", "count/pods": "2", "requests.cpu": "600m", "limits.memory": "200Mi"}
    _, quota = await attacked.request("GET", f"{QUOTAS}/q")
    assert quota["status"]["used"] == expected
    status, body = await attacked.request("POST", PODS, json=pod("c", small))
    assert status == 403
    assert body["message"].endswith(
        "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
    )
    merge = {"Content-Type": "application/merge-patch+json"}
    status, _ = await attacked.request(
        "PATCH", f"{PODS}/a/status", json={"status": {"phase": "Succeeded"}}, headers=merge
    )
    assert status == 200
    await used(attacked, {**expected, "pods": "1", "requests.cpu": "300m",
                          "limits.memory": "100Mi"})  # fmt: skip
    large = {"requests": {"cpu": "800m"}, "limits": {"memory": "1Gi", "cpu": "1"}}
    status, body = await attacked.request("POST", PODS, json=pod("c", large))
    assert status == 403
    assert body["message"].endswith(
        "exceeded quota: q, requested: limits.memory=1Gi,requests.cpu=800m, "
        "used: limits.memory=100Mi,requests.cpu=300m, limited: limits.memory=1Gi,requests.cpu=1"
    )
    for name in ("a", "b"):
        await attacked.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    await used(attacked, dict.fromkeys(hard, "0"))


async def test_a_container_must_have_the_limited_values(attacked: AttackedServer) -> None:
    await limit(attacked, {"limits.cpu": "2", "memory": "1Gi"})
    status, body = await attacked.request("POST", PODS, json=pod("a"))
    assert status == 403
    assert body["message"] == (
        'pods "a" is forbidden: failed quota: q: '
        "must specify limits.cpu for: main; memory for: main"
    )


async def test_a_scope_selects_pods(attacked: AttackedServer) -> None:
    await limit(attacked, {"pods": "1"}, scopes=["BestEffort", "NotTerminating"])
    requests = {"requests": {"cpu": "1m"}}
    for body, expected in (
        (pod("burstable", requests), 201),
        (pod("deadline", activeDeadlineSeconds=60), 201),
        (pod("first"), 201),
        (pod("second"), 403),
        (pod("other", requests), 201),
    ):
        status, answer = await attacked.request("POST", PODS, json=body)
        assert status == expected, answer
    await used(attacked, {"pods": "1"})


async def test_services_and_claims_are_measured_at_updates_too(attacked: AttackedServer) -> None:
    await limit(attacked, {"services": "2", "services.nodeports": "1", "requests.storage": "2Gi"})
    services = "/api/v1/namespaces/default/services"
    service = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1, "name": "a"}]}}
    status, body = await attacked.request("POST", services, json=service)
    assert status == 201, body
    merge = {"Content-Type": "application/merge-patch+json"}
    two = {"spec": {"type": "NodePort", "ports": [{"port": 1, "name": "a"},
                                                 {"port": 2, "name": "b"}]}}  # fmt: skip
    status, body = await attacked.request("PATCH", f"{services}/s", json=two, headers=merge)
    assert status == 403
    assert "requested: services.nodeports=2, used: services.nodeports=0" in body["message"]
    claim = {
        "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "3Gi"}}},
    }
    path = "/api/v1/namespaces/default/persistentvolumeclaims"
    status, body = await attacked.request("POST", path, json=claim)
    assert status == 403
    assert "requested: requests.storage=3Gi, used: requests.storage=0" in body["message"]


async def test_custom_objects_are_counted(attacked: AttackedServer) -> None:
    group = "apps.example"
    definition = {
        "metadata": {"name": f"things.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{
                "name": "v1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }],
        },
    }  # fmt: skip
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    status, body = await attacked.request("POST", crds, json=definition)
    assert status == 201, body
    await limit(attacked, {f"count/things.{group}": "1"})
    path = f"/apis/{group}/v1/namespaces/default/things"
    made = {"apiVersion": f"{group}/v1", "kind": "Thing"}
    codes = []
    for name in ("a", "b"):
        status, body = await attacked.request(
            "POST", path, json={**made, "metadata": {"name": name}}
        )
        codes.append(status)
    assert codes == [201, 403]
    assert f"exceeded quota: q, requested: count/things.{group}=1" in body["message"]


async def test_invalid_quotas_are_refused(attacked: AttackedServer) -> None:
    for spec, field in (
        ({"hard": {"pods": "-1"}}, "spec.hard[pods]"),
        ({"hard": {"pods": "1.5"}}, "spec.hard[pods]"),
        ({"hard": {"widgets": "1"}}, "spec.hard[widgets]"),
        ({"hard": {"pods": "x"}}, "spec.hard[pods]"),
        ({"hard": {"pods": "1"}, "scopes": ["Some"]}, "spec.scopes[0]"),
        ({"hard": {"services": "1"}, "scopes": ["Terminating"]}, "spec.scopes"),
        ({"hard": {"pods": "1"}, "scopes": ["Terminating", "NotTerminating"]}, "spec.scopes"),
    ):
        quota = {"metadata": {"name": "q"}, "spec": spec}
        status, body = await attacked.request("POST", QUOTAS, json=quota)
        assert status == 422, spec
        assert field in [cause["field"] for cause in body["details"]["causes"]]


async def test_kubectl_creates_and_describes_a_quota(attacked: AttackedServer) -> None:
    kubectl = ["kubectl", "--kubeconfig", str(attacked.data / "kubeconfig")]
    made = await asyncio.to_thread(
        subprocess.run,
        [*kubectl, "create", "quota", "q", "--hard=count/configmaps=3,pods=2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    await used(attacked, {"count/configmaps": "0", "pods": "0"})
    shown = await asyncio.to_thread(
        subprocess.run,
        [*kubectl, "describe", "quota", "q"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ["count/configmaps", "0", "3"] in [line.split() for line in shown.stdout.splitlines()]


async def test_a_job_beyond_a_quota_says_so_and_starts_when_it_is_raised(
    attacked_cluster: AttackedServer,
) -> None:
    await limit(attacked_cluster, {"count/pods": "1"})
    template = {
        "spec": {"containers": [{"name": "pytorch", "image": "any", "command": ["sleep", "600"]}]}
    }
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "large"},
        "spec": {
            "pytorchReplicaSpecs": {
                role: {"replicas": 1, "template": template} for role in ("Master", "Worker")
            }
        },
    }
    jobs = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
    status, body = await attacked_cluster.request("POST", jobs, json=job)
    assert status == 201, body

    async def refused() -> bool:
        _, events = await attacked_cluster.request("GET", "/api/v1/namespaces/default/events")
        return any(
            event["involvedObject"]["name"] == "large"
            and event["type"] == "Warning"
            and "exceeded quota: q, requested: count/pods=1, used: count/pods=1" in event["message"]
            for event in events["items"]
        )

    await until(refused)
    _, found = await attacked_cluster.request("GET", PODS)
    assert len(found["items"]) == 1
    merge = {"Content-Type": "application/merge-patch+json"}
    raised = {"spec": {"hard": {"count/pods": "2"}}}
    await attacked_cluster.request("PATCH", f"{QUOTAS}/q", json=raised, headers=merge)

    async def both_exist() -> bool:
        _, found = await attacked_cluster.request("GET", PODS)
        return len(found["items"]) == 2

    await until(both_exist)
    await used(attacked_cluster, {"count/pods": "2"})
