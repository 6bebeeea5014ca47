"""Claims of a gang are written before its pods are bound, and given back if that fails."""

import asyncio
from typing import Any

import msgspec
import pytest

from gangline.api.core.devices import FINALIZER, DeviceConfiguration
from gangline.scheduler.apply.binder import Binder
from gangline.scheduler.apply.claim_binder import DeviceClaimBinder
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types import PodKey
from unit.kube.fake_server import FakeServer, answering, connected, failing
from unit.scheduler.builders import checked_cycle, cluster, group, node
from unit.scheduler.device_builders import DRIVER, add_claim, add_class, add_slice, device, user

CLAIM = "/apis/resource.k8s.io/v1/namespaces/d/resourceclaims"
Json = dict[str, Any]
OPAQUE = {"driver": DRIVER, "parameters": {"mode": "fast"}}
CONFIG = [msgspec.convert({"opaque": OPAQUE}, DeviceConfiguration)]


def gang_of_two() -> SchedulerCache:
    state = cluster(node("n1"), group("g", 2))
    add_class(state)
    add_slice(state, "n1", [device("gpu-0"), device("gpu-1")])
    for name in ("a", "b"):
        add_claim(state, f"of-{name}", owner=name)
        state.set_pod(user(name, f"of-{name}", group="g"))
    return state


def stored(name: str, **fields: Any) -> Json:
    metadata = {"name": name, "namespace": "d", "uid": f"uid-{name}", "resourceVersion": "7"}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
    return {"metadata": metadata, "spec": {"devices": {"requests": requests}}, **fields}


async def bind(
    state: SchedulerCache, server: FakeServer, client: Any, **claims: Json
) -> list[Json]:
    """Carry a cycle out; return the patches of claims and the binding requests, in order."""
    for name in ("a", "b"):
        claim = claims.get(name, stored(f"of-{name}"))
        path = f"{CLAIM}/of-{name}"
        server.routes["GET", path] = server.routes["PATCH", path] = answering(claim)
        server.routes["PATCH", f"{path}/status"] = answering(claim)
        pod = f"/api/v1/namespaces/d/pods/{name}/binding"
        server.routes.setdefault(("POST", pod), answering({"kind": "Status"}, 201))
    decision = checked_cycle(state)
    assert len(decision.bindings) == 2
    async with asyncio.TaskGroup() as tasks:
        devices = DeviceClaimBinder(client, state, tasks, lambda _: CONFIG)
        binder = Binder(
            client,
            state,
            tasks,
            at_once=4,
            bound=lambda _: None,
            released=lambda _: None,
            prepare=devices.prepare,
            give_back=devices.release,
        )
        state.devices.assume(decision.devices)
        binder.bind(decision.bindings)
    return [
        {"path": seen.path, **seen.json()}
        for seen in server.seen
        if seen.method in ("PATCH", "POST")
    ]


async def test_claims_are_protected_allocated_and_reserved_before_any_pod_is_bound() -> None:
    claim, tolerations = stored("of-a"), [{"key": "broken", "tolerationSeconds": 9}]
    request = claim["spec"]["devices"]["requests"][0]["exactly"]
    request |= {"adminAccess": True, "tolerations": tolerations}
    async with connected() as (server, client):
        writes = await bind(gang_of_two(), server, client, a=claim)
    paths = [write["path"] for write in writes]
    assert {path.rpartition("/")[2] for path in paths[-2:]} == {"binding"}
    own = [write for write in writes if "/of-a" in write["path"]]
    assert own[0]["metadata"] == {"resourceVersion": "7", "finalizers": [FINALIZER]}
    status = own[1]["status"]
    assert status["reservedFor"] == [{"resource": "pods", "name": "a", "uid": "uid-a"}]
    (result,) = status["allocation"]["devices"]["results"]
    assert (result["request"], result["driver"], result["pool"]) == ("gpu", DRIVER, "n1")
    assert (result["adminAccess"], result["tolerations"]) == (True, tolerations)
    assert status["allocation"]["devices"]["config"] == [
        {"source": "FromClass", "requests": ["gpu"], "opaque": OPAQUE}
    ]
    on_node = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    terms = status["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [on_node]}]


async def test_gang_is_not_bound_if_another_writer_gave_a_claim_other_devices() -> None:
    results = [{"request": "gpu", "driver": DRIVER, "pool": "n9", "device": "gpu-9"}]
    other = {"allocation": {"devices": {"results": results}}, "reservedFor": [
        {"resource": "pods", "name": "x", "uid": "uid-x"}]}  # fmt: skip
    state = gang_of_two()
    async with connected() as (server, client):
        writes = await bind(state, server, client, b=stored("of-b", status=other))
    assert not [write for write in writes if write["path"].endswith("/binding")]
    assert "other devices" in state.refused_bindings[PodKey("d/a")].message
    assert not state.devices.assumed
    assert {pod.node for pod in state.pods.values()} == {None}


@pytest.mark.parametrize("left_by", ["the pod itself", "a failed binding"])
async def test_devices_are_given_back_when_the_binding_fails(left_by: str) -> None:
    """A claim that others have reserved as well keeps its devices."""
    state = gang_of_two()
    mine = {"resource": "pods", "name": "a", "uid": "uid-a"}
    async with connected() as (server, client):
        path = "/api/v1/namespaces/d/pods/a/binding"
        server.routes["POST", path] = failing(409, "Conflict")
        users = [mine] if left_by == "the pod itself" else [mine, {**mine, "uid": "uid-x"}]
        claim = stored("of-a", status={"reservedFor": users})
        writes = await bind(state, server, client, a=claim)
    given_back = [w["status"] for w in writes if w["path"].endswith("/of-a/status")][-1]
    if left_by == "the pod itself":
        assert given_back == {"reservedFor": None, "allocation": None}
    else:
        assert given_back == {"reservedFor": [users[1]]}
    assert state.pods[PodKey("d/a")].node is None
