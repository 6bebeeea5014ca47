"""A gang for which there is no room."""

from e2e.jobs import job, replica
from e2e.scenario import Scenario
from gangline.api.quantity import parse_quantity
from gangline.api.resources import NODES


async def test_a_gang_that_finds_no_room_in_its_time_fails_with_the_reason(
    scenario: Scenario,
) -> None:
    nodes = await scenario.client.list(NODES)
    most = max(parse_quantity(node.status.allocatable["cpu"]).milli for node in nodes.items)
    policy = {"scheduleTimeoutSeconds": 3}
    await scenario.submit(job("small", replica("true")))
    assert await scenario.outcome("small") == "Succeeded", "the scheduler has started"
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
