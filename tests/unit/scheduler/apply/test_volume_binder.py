"""Pods of a gang are bound once their nodes reach all of their volumes, or none of them is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from gangline.scheduler.apply.binder import Binder, VolumeBinder
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.plugins.volumes import ClaimInfo, StorageClassInfo, VolumeInfo
from gangline.scheduler.types import LabelExpression, NodeTerm, PodBinding, PodKey
from unit.kube.fake_server import FakeServer, answering, connected, failing
from unit.scheduler.builders import checked_cycle, cluster, group, node, pod

MODES = frozenset({"ReadWriteOnce"})


def volume(name: str, host: str, claim: str = "") -> VolumeInfo:
    here = LabelExpression("host", "In", (host,))
    return VolumeInfo(name, (NodeTerm((here,)),), "local", MODES, 1, claim=claim)


@dataclass
class Run:
    """A cycle and its bindings, while controllers of the cluster may change claims."""

    state: SchedulerCache
    server: FakeServer
    volumes: VolumeBinder
    bound: list[PodBinding] = field(default_factory=list)
    released: list[float] = field(default_factory=list)

    def change_claim(self, name: str, **facts: object) -> None:
        claims = self.state.storage.claims
        claims[f"d/{name}"] = replace(claims[f"d/{name}"], **facts)  # type: ignore[arg-type]
        self._notify()

    def add_volume(self, added: VolumeInfo) -> None:
        self.state.storage.volumes[added.name] = added
        self._notify()

    def _notify(self) -> None:
        self.state.storage_changed()
        self.volumes.notify_changed()

    async def written(self, path: str) -> dict[str, object]:
        """Wait for a patch of this object; return its body."""
        async with asyncio.timeout(60):
            while True:
                for seen in self.server.seen:
                    if seen.method == "PATCH" and seen.path.endswith(path):
                        return seen.json()
                await asyncio.sleep(0)

    def refusal(self, name: str) -> str:
        return self.state.refused_bindings[PodKey(f"d/{name}")].message


@asynccontextmanager
async def bindings(state: SchedulerCache) -> AsyncIterator[Run]:
    """Run a cycle and carry its bindings out; at the end of the context all are settled."""
    decision = checked_cycle(state)
    assert decision.bindings
    async with connected() as (server, client), asyncio.TaskGroup() as tasks:
        for name in state.storage.volumes:
            path = f"/api/v1/persistentvolumes/{name}"
            stored = {"metadata": {"name": name, "resourceVersion": "7"}, "spec": {}}
            server.routes["GET", path] = server.routes["PATCH", path] = answering(stored)
        for key in state.storage.claims:
            path = f"/api/v1/namespaces/d/persistentvolumeclaims/{key[2:]}"
            server.routes["PATCH", path] = answering({"metadata": {"name": key[2:]}})
        for key in state.pods:
            path = f"/api/v1/namespaces/d/pods/{key[2:]}/binding"
            server.routes["POST", path] = answering({"kind": "Status"}, 201)
        run = Run(state, server, VolumeBinder(client, state))
        binder = Binder(
            client,
            state,
            tasks,
            at_once=4,
            bound=run.bound.append,
            released=run.released.append,
            prepare=run.volumes.prepare,
        )
        binder.bind(decision.bindings, decision.volumes)
        yield run
        async with asyncio.timeout(60):
            await binder.in_flight.idle.wait()


def gang(provisioned: bool = False) -> SchedulerCache:
    """A gang of three pods, two of which have claims, and the volumes for them on one node."""
    named = "cloud" if provisioned else "local"
    state = cluster(
        *(node(name, labels={"host": name}) for name in ("a", "b")),
        group("g", 3),
        *(pod(f"g-{i}", group="g", claims=(f"d/c{i}",) if i < 2 else ()) for i in range(3)),
    )
    storage = state.storage
    storage.classes["local"] = StorageClassInfo("local", True, can_provision=False)
    storage.classes["cloud"] = StorageClassInfo("cloud", True, driver="csi.example.com")
    for name in ("c0", "c1"):
        key = f"d/{name}"
        storage.claims[key] = ClaimInfo(
            key, f"uid-{name}", storage_class=named, size=1, modes=MODES
        )
    if not provisioned:
        storage.volumes |= {"v0": volume("v0", "a"), "v1": volume("v1", "a")}
    storage.synced = True
    state.storage_changed()
    return state


async def test_no_pod_is_bound_before_all_claims_of_the_gang() -> None:
    async with bindings(gang()) as run:
        body = await run.written("/persistentvolumes/v0")
        owner = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "d"}
        assert body["spec"] == {"claimRef": {**owner, "name": "c0", "uid": "uid-c0"}}
        await run.written("/persistentvolumes/v1")
        run.change_claim("c0", volume="v0")
        assert not run.bound
        run.change_claim("c1", volume="v1")
    assert {binding.pod for binding in run.bound} == {"d/g-0", "d/g-1", "d/g-2"}
    assert not run.released


def bind_elsewhere(run: Run) -> None:
    run.add_volume(volume("elsewhere", "b"))
    run.change_claim("c1", volume="elsewhere")


def take_volume(run: Run) -> None:
    run.add_volume(volume("v1", "a", claim="d/other"))


def delete_claim(run: Run) -> None:
    del run.state.storage.claims["d/c1"]
    run.volumes.notify_changed()


def delete_pod(run: Run) -> None:
    run.state.remove_pod(PodKey("d/g-1"))
    run.volumes.notify_changed()


def remove_node(run: Run) -> None:
    run.state.remove_node(run.state.nodes.name_of(0))
    run.volumes.notify_changed()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            bind_elsewhere,
            "volume claim d/c1 was bound to volume elsewhere, which is not reached from node a",
            id="bound elsewhere by another controller",
        ),
        pytest.param(take_volume, "volume v1 was taken by claim d/other", id="volume taken"),
        pytest.param(delete_claim, "volume claim d/c1 was deleted", id="claim deleted"),
        pytest.param(delete_pod, "pod d/g-1 was deleted before", id="member deleted"),
        pytest.param(remove_node, "node a was removed before", id="node removed"),
    ],
)
async def test_gang_whose_volumes_fail_gives_all_its_nodes_back(
    change: Callable[[Run], None], reason: str
) -> None:
    async with bindings(gang()) as run:
        await run.written("/persistentvolumes/v1")
        run.change_claim("c0", volume="v0")
        change(run)
    assert not run.bound
    assert not [each for each in run.state.pods.values() if each.node]
    assert reason in run.refusal("g-0")
    assert reason in run.refusal("g-2")
    assert not run.state.storage.assumed


async def test_claim_that_was_bound_since_the_cycle_is_compared_before_any_write() -> None:
    state = gang()
    async with bindings(state) as run:
        bind_elsewhere(run)
    assert not run.bound
    assert not [seen for seen in run.server.seen if seen.method == "PATCH"]


async def test_provisioner_that_withdraws_the_node_ends_the_binding() -> None:
    async with bindings(gang(provisioned=True)) as run:
        body = await run.written("/persistentvolumeclaims/c1")
        assert body["metadata"]["annotations"] == {  # type: ignore[index]
            "volume.kubernetes.io/selected-node": "a"
        }
        async with asyncio.timeout(60):
            while not run.released:
                for selected in ("a", ""):
                    run.change_claim("c1", selected_node=selected)
                    await asyncio.sleep(0)
    assert not run.bound
    assert "no volume for claim d/c1 could be bound on node a" in run.refusal("g-1")


async def test_failed_write_of_a_volume_is_repeated_and_a_conflict_is_not() -> None:
    state = gang()
    async with bindings(state) as run:
        run.server.faults.append(failing(500, "InternalError"))
        await run.written("/persistentvolumes/v1")
        run.change_claim("c0", volume="v0")
        run.change_claim("c1", volume="v1")
    assert len(run.bound) == 3
    async with bindings(gang()) as run:
        run.server.faults.append(failing(409, "Conflict"))
    assert not run.bound
