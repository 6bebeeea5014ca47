"""Room for one of two jobs, and many jobs at once."""

import asyncio

import pytest

from e2e.jobs import job, replica, until
from e2e.scenario import Scenario, condition, finished
from e2e.waiting import eventually
from gangline.api.quantity import milli
from gangline.api.resources import NODES, PODS, PYTORCH_JOBS
from gangline.kube.errors import NotFound


async def test_the_second_of_two_jobs_waits_with_a_reason_and_then_runs(
    scenario: Scenario,
) -> None:
    shared = str(scenario.shared)
    nodes = await scenario.client.list(NODES)
    most = min(milli(node.status.allocatable["cpu"]) for node in nodes.items)
    cpu = f"{most * 6 // 10}m"
    replicas = scenario.cluster.nodes

    def greedy(name: str) -> dict:
        return job(name, worker=replica(until("go"), replicas, shared=shared, cpu=cpu))

    await scenario.submit(greedy("first"))
    await scenario.running("first", replicas)
    await scenario.submit(greedy("second"))

    async def reason() -> str | None:
        try:
            group = await scenario.pod_group("second")
        except NotFound:
            return None
        waits = [c for c in group.status.conditions if c.type == "Unschedulable"]
        return waits[0].message if waits and waits[0].status == "True" else None

    message = await eventually(reason, "the PodGroup says why it waits")
    assert "cpu" in message
    assert any(digit.isdigit() for digit in message)
    pods = await scenario.pods("second")
    assert not [pod for pod in pods.values() if pod.spec.node_name], "none is placed alone"
    waits = [condition(pod, "PodScheduled") for pod in pods.values()]
    assert set(waits) == {"False"}
    scenario.let("go")
    assert await scenario.outcome("first") == "Succeeded"
    assert await scenario.outcome("second") == "Succeeded"


@pytest.mark.embedded_only("one real kubelet starts a pod a second; the operator is what is tested")
@pytest.mark.timeout(600)
async def test_two_hundred_jobs_at_once_all_end(scenario: Scenario) -> None:
    names = [f"many-{number}" for number in range(200)]
    await asyncio.gather(*(scenario.submit(job(name, replica("true"))) for name in names))

    async def done() -> bool:
        listing = await scenario.client.list(PYTORCH_JOBS, scenario.namespace)
        return len(listing.items) == len(names) and all(finished(each) for each in listing.items)

    await eventually(done, "all jobs have finished", 400)
    listing = await scenario.client.list(PYTORCH_JOBS, scenario.namespace)
    assert {condition(each, "Succeeded") for each in listing.items} == {"True"}


@pytest.mark.kubernetes_only("the embedded cluster really runs them")
@pytest.mark.timeout(600)
async def test_two_hundred_jobs_at_once_get_their_pods(scenario: Scenario) -> None:
    names = [f"many-{number}" for number in range(200)]
    wide = {"worker": replica("true", 2, cpu="1m"), "master": replica("true", cpu="1m")}
    await asyncio.gather(*(scenario.submit(job(name, **wide)) for name in names))

    async def made() -> bool:
        listing = await scenario.client.list(PODS, scenario.namespace)
        return len(listing.items) >= 3 * len(names)

    await eventually(made, "all pods exist", 300)
