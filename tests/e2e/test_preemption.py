"""A job of higher priority preempts another, which continues afterwards."""

from e2e.jobs import job, replica, until
from e2e.scenario import Scenario
from gangline.api.quantity import parse_quantity
from gangline.api.resources import NODES, PRIORITY_CLASSES


async def test_a_job_of_higher_priority_runs_first_and_the_other_one_afterwards(
    scenario: Scenario,
) -> None:
    shared = str(scenario.shared)
    nodes = await scenario.client.list(NODES)
    most = min(parse_quantity(node.status.allocatable["cpu"]).milli for node in nodes.items)
    cpu = f"{most * 6 // 10}m"
    replicas = scenario.cluster.nodes
    urgent = f"urgent-{scenario.namespace}"
    await scenario.client.create(PRIORITY_CLASSES, {"metadata": {"name": urgent}, "value": 1000})
    try:
        low = job("low", worker=replica(until("low"), replicas, shared=shared, cpu=cpu))
        await scenario.submit(low)
        await scenario.running("low", replicas)
        high = job(
            "high",
            worker=replica(until("high"), replicas, shared=shared, cpu=cpu),
            schedulingPolicy={"priorityClass": urgent},
        )
        await scenario.submit(high)
        await scenario.running("high", replicas)
        pods = await scenario.pods("low")
        assert not [pod for pod in pods.values() if pod.status.phase == "Running"]
        scenario.let("high")
        assert await scenario.outcome("high") == "Succeeded"
        await scenario.running("low", replicas)
        scenario.let("low")
        assert await scenario.outcome("low") == "Succeeded"
    finally:
        await scenario.client.delete(PRIORITY_CLASSES, urgent)
