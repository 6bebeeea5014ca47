"""ElasticJobs and ScalePlans on a real API server: rights, kills, names, namespaces.

Takes 35 s: the operator is killed before and after each of its writes.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from gangline.api.jobs.elastic import ElasticJob, ScalePlan
from gangline.api.resources import (
    CONFIG_MAPS,
    ELASTIC_JOBS,
    EVENTS,
    PODS,
    SCALE_PLANS,
    SECRETS,
    SERVICES,
)
from gangline.brain.advisers.advice import GuardAction, What
from gangline.brain.publication import scale_plan
from gangline.kube.http.request import Request
from gangline.local.apiserver.server import ApiServer
from gangline.operator.model.labels import JOB_NAME
from integration.operator.cluster import NAMESPACE, Scene
from integration.operator.faults import FaultyTransport, faulty
from integration.operator.process import apply, deployed, kubeconfig_of, operator
from unit.operator.elastic_jobs import MASTER, manifest, role, short_name

ACCOUNT = "gangline-system/gangline-operator"
ONE_KIND = frozenset({"ElasticJob"})
"""For operators that start many times."""
ELASTIC = "dlrover-run --nnodes=1:10 train.py"


class Elastic:
    """ElasticJobs called ``train``, and their plans."""

    def __init__(self, stage: Scene, namespace: str = NAMESPACE) -> None:
        self.stage, self.client, self.namespace = stage, stage.client, namespace

    async def submit(self, workers: int, **spec: Any) -> None:
        written = manifest({"worker": role(workers, ELASTIC)}, **spec)
        written["metadata"] = {"name": "train"}
        await self.client.create(ELASTIC_JOBS, written, self.namespace)

    async def job(self) -> ElasticJob:
        return await self.client.get(ELASTIC_JOBS, "train", self.namespace)

    async def names(self) -> set[str]:
        pods = await self.client.list(PODS, self.namespace)
        return {short_name(pod.metadata.name) for pod in pods.items}

    async def until_pods(self, *names: str) -> None:
        async def there() -> bool:
            return await self.names() == set(names)

        await self.stage.until(there, f"the pods are {names}")

    async def until_phase(self, phase: str) -> None:
        async def reached() -> bool:
            return (await self.job()).status.phase == phase

        await self.stage.until(reached, f"the job is {phase}")

    async def delete_pod(self, short: str) -> None:
        name = f"{MASTER}-{short[7:]}" if short.startswith("master") else f"train-edljob-{short}"
        await self.client.delete(PODS, name, self.namespace)

    async def plan(self, name: str, **spec: Any) -> None:
        written = {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ScalePlan",
            "metadata": {"name": name, "labels": {"scale-type": "manual"}},
            "spec": {"ownerJob": "train", **spec},
        }
        await self.client.create(SCALE_PLANS, written, self.namespace)

    async def until_plan(self, name: str, phase: str) -> ScalePlan:
        async def reached() -> bool:
            found = await self.client.get(SCALE_PLANS, name, self.namespace)
            return found.status.phase == phase

        await self.stage.until(reached, f"plan {name} is {phase}")
        return await self.client.get(SCALE_PLANS, name, self.namespace)

    async def secret(self) -> str:
        """The job's Secret; there is exactly one."""
        (found,) = (await self.client.list(SECRETS, self.namespace, labels=JOB_NAME)).items
        assert found.metadata.name.startswith("train-edljob-secret-")
        assert found.metadata.controller
        return found.data["secret"]


@pytest.fixture
def elastic(stage: Scene) -> Elastic:
    return Elastic(stage)


async def test_role_that_the_api_server_does_not_know_yet_is_no_problem_of_the_job(
    elastic: Elastic,
) -> None:
    bindings: list[bool] = []

    def fault(request: Request, _: int) -> str:
        if not request.path.endswith("/rolebindings"):
            return ""
        roles = [write.path for write in transport.writes if write.path.endswith("/roles")]
        bindings.append(bool(roles))
        return "missing" if len(bindings) < 3 else ""

    async with faulty(elastic.client.config, fault) as (client, transport):
        await elastic.stage.start_operator(client)
        await elastic.submit(1)
        await elastic.until_phase("Running")
        assert bindings == [True] * 3
        events = await elastic.client.list(EVENTS, NAMESPACE)
        assert not [event for event in events.items if event.type == "Warning"]
        await elastic.stage.kill_operator()


async def test_complete_life_with_the_rights_of_the_shipped_manifests(
    elastic: Elastic, api_server: ApiServer, tmp_path: Path
) -> None:
    client = elastic.client
    for shipped in deployed():
        await apply(client, shipped)
    limited = await kubeconfig_of(client, ACCOUNT, api_server.kubeconfig, tmp_path / "limited")
    async with operator(limited) as running:
        await elastic.submit(2)
        await elastic.until_pods("master-0", "worker-0", "worker-1")
        await elastic.until_phase("Running")
        secret = await elastic.secret()
        assert len(secret) > 64, "in base64"
        master = await client.get(PODS, f"{MASTER}-0", NAMESPACE)
        assert (await client.get(CONFIG_MAPS, MASTER, NAMESPACE)).metadata.controller
        journal = {"data": {"journal": "what the master wrote"}}
        await client.patch(CONFIG_MAPS, MASTER, journal, NAMESPACE)

        await elastic.delete_pod("worker-1")
        await elastic.until_pods("master-0", "worker-0", "worker-2")
        await elastic.delete_pod("master-0")
        await elastic.until_pods("master-1", "worker-0", "worker-2")
        service = await client.get(SERVICES, MASTER, NAMESPACE)
        assert service.metadata.controller == master.metadata.controller

        await elastic.plan("more", replicaResourceSpecs={"worker": {"replicas": 3}})
        done = await elastic.until_plan("more", "Succeeded")
        assert done.status.create_time
        assert done.status.finish_time
        assert [owner.kind for owner in done.metadata.owner_references] == ["ElasticJob"]
        await elastic.plan("bad", removePods=[{"name": "nobody"}])
        failed = await elastic.until_plan("bad", "Failed")
        assert "spec.removePods[0].name: 'nobody'" in failed.status.message
        await elastic.until_pods("master-1", "worker-0", "worker-2", "worker-3")

        for name in ("worker-0", "worker-2", "worker-3"):
            await elastic.stage.kubelets.end(f"train-edljob-{name}", 0)
        await elastic.until_phase("Succeeded")
        await elastic.until_pods("worker-0", "worker-2", "worker-3")
        assert await elastic.secret() == secret, "made once"
        written = await client.get(CONFIG_MAPS, MASTER, NAMESPACE)
        assert written.data == journal["data"], "the master's, and nobody else's"
        assert [line for line in running.lines if "forbidden" in line.lower()] == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "hang"])
async def test_an_operator_killed_at_any_write_carries_out_each_plan_once(
    elastic: Elastic, how: str
) -> None:
    """``stop``: just before the write takes effect; ``hang``: just after."""
    stage, number = elastic.stage, 0
    await stage.start_operator(kinds=ONE_KIND)
    await elastic.submit(1)
    await elastic.until_phase("Running")
    workers = 1
    while True:
        number += 1
        await stage.kill_operator()

        def fault(_: object, count: int, number: int = number) -> str:
            return "" if count < number else how

        async with faulty(stage.client.config, fault) as (client, transport):
            await stage.start_operator(client, kinds=ONE_KIND)
            await elastic.plan(f"plan-{number}", createPods=[{"type": "worker"}])
            killed = await hit_or_done(elastic, transport, f"plan-{number}")
            await stage.kill_operator()
        await stage.start_operator(kinds=ONE_KIND)
        await elastic.until_plan(f"plan-{number}", "Succeeded")
        workers += 1
        found = await elastic.names()
        assert len(found) == workers + 1, found
        if not killed:
            break
    assert number > 4


async def hit_or_done(elastic: Elastic, transport: FaultyTransport, plan: str) -> bool:
    async def settled() -> bool:
        found = await elastic.client.get(SCALE_PLANS, plan, NAMESPACE)
        return transport.hanging.is_set() or found.status.phase == "Succeeded"

    await elastic.stage.until(settled, "the write hangs or the plan is carried out")
    return transport.hanging.is_set()


async def test_p5_a_hot_parameter_server_moves_and_workers_go_on(
    elastic: Elastic, api_server: ApiServer
) -> None:
    client = elastic.client
    async with operator(api_server.kubeconfig):
        roles = {"ps": role(2, "train"), "worker": role(2, "train")}
        written = manifest(roles, distributionStrategy="ParameterServerStrategy")
        written["metadata"] = {"name": "train"}
        await client.create(ELASTIC_JOBS, written, NAMESPACE)
        await elastic.until_pods("master-0", "ps-0", "ps-1", "worker-0", "worker-1")
        await elastic.until_phase("Running")
        pods = (await client.list(PODS, NAMESPACE)).items
        before = {short_name(pod.metadata.name): pod for pod in pods}
        change = GuardAction(
            id=7, job="", family="", at_ms=0, what=What.PS_CPU, role="ps", rank=0, after=4000
        )
        plan = scale_plan(await elastic.job(), change)
        assert plan is not None
        await client.create(SCALE_PLANS, plan, NAMESPACE)
        await elastic.until_plan("train-brain-7", "Succeeded")
        await elastic.until_pods("master-0", "ps-1", "ps-2", "worker-0", "worker-1")

    pods = (await client.list(PODS, NAMESPACE)).items
    after = {short_name(pod.metadata.name): pod for pod in pods}
    for name in ("master-0", "ps-1", "worker-0", "worker-1"):
        assert after[name].metadata.uid == before[name].metadata.uid
        assert all(not each.restart_count for each in after[name].status.container_statuses)
    moved = after["ps-2"]
    assert moved.spec.containers[0].resources.requests["cpu"] == "4"
    (variable,) = [v for v in after["worker-0"].spec.containers[0].env if v.name == "TF_CONFIG"]
    hosts = json.loads(variable.value)["cluster"]["ps"]
    for host, server in zip(hosts, (moved, after["ps-1"]), strict=True):
        service = await client.get(SERVICES, host.partition(".")[0], NAMESPACE)
        assert service.spec.selector.items() <= server.metadata.labels.items()
