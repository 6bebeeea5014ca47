"""Resources for one of two jobs."""

from e2e.jobs import job, replica, until
from e2e.scenario import Scenario, condition
from e2e.waiting import eventually
from gangline.api.quantity import parse_quantity
from gangline.api.resources import NODES
from gangline.kube.errors import NotFound


async def test_the_second_of_two_jobs_waits_with_a_reason_and_then_runs(
    scenario: Scenario,
) -> None:
    shared = str(scenario.shared)
    nodes = await scenario.client.list(NODES)
    most = min(parse_quantity(node.status.allocatable["cpu"]).milli for node in nodes.items)
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

    async def pods_say_so() -> bool:
        waits = (await scenario.pods("second")).values()
        return {condition(pod, "PodScheduled") for pod in waits} == {"False"}

    await eventually(pods_say_so, "each pod says that it waits")
    scenario.let("go")
    assert await scenario.outcome("first") == "Succeeded"
    assert await scenario.outcome("second") == "Succeeded"


async def test_a_gang_that_finds_no_room_in_its_time_fails_with_the_reason(
    scenario: Scenario,
) -> None:
    nodes = await scenario.client.list(NODES)
    most = max(parse_quantity(node.status.allocatable["cpu"]).milli for node in nodes.items)
    policy = {"scheduleTimeoutSeconds": 3}
    await scenario.submit(
        job(
            "hopeless",
            worker=replica("true", 2, cpu=f"{most + 1000}m"),
            cleanPodPolicy="All",
            schedulingPolicy=policy,
        )
    )
    assert await scenario.outcome("hopeless") == "Failed"
    conditions = (await scenario.job("hopeless")).status.conditions
    failed = next(entry for entry in conditions if entry.type == "Failed")
    assert "could not be placed within" in failed.message
    assert "cpu" in failed.message
    await scenario.pods_when("hopeless", lambda pods: not pods, "its pods are gone")
