"""Which statuses of PodGroups the scheduler writes: few, and none that it must correct."""

from contextlib import aclosing
from dataclasses import replace

from gangline.api.resources import POD_GROUPS, PODS
from gangline.api.volcano.scheduling import PodGroup
from gangline.kube.client.client import ApiClient
from integration.scheduler import test_scheduling
from integration.scheduler.test_scheduling import (
    SETTINGS,
    add_gang,
    add_node,
    eventually,
    in_phase,
    scheduling,
    waits_because,
)

cluster = test_scheduling.cluster


async def changes_until(client: ApiClient, revision: str, name: str, phase: str) -> list[PodGroup]:
    """Return the states of all groups since a revision, until one of them is in a phase."""
    found: list[PodGroup] = []
    watch = client.watch(POD_GROUPS, "default", resource_version=revision, timeout_s=60)
    async with aclosing(watch) as events:
        async for event in events:
            if event.type == "BOOKMARK":
                continue
            found.append(event.object)
            if (event.object.metadata.name, event.object.status.phase) == (name, phase):
                return found
    raise AssertionError(f"{name} is not {phase}")


async def set_phase(client: ApiClient, name: str, phase: str) -> None:
    await client.patch(PODS, name, {"status": {"phase": phase}}, "default", subresource="status")


async def test_pending_gang_keeps_its_reason_when_the_scheduler_restarts(
    cluster: ApiClient,
) -> None:
    await add_node(cluster, "a")
    async with scheduling(cluster):
        await add_gang(cluster, "large", 2, cpu="4")
        await eventually(waits_because(cluster, "large", "NotEnoughResources"), "it says why")
    revision = (await cluster.get(POD_GROUPS, "large", "default")).metadata.resource_version
    await add_gang(cluster, "small", 1)
    async with scheduling(cluster):
        changes = await changes_until(cluster, revision, "small", "Running")
    reasons = [
        condition.reason
        for group in changes
        if group.metadata.name == "large"
        for condition in group.status.conditions
    ]
    assert set(reasons) <= {"NotEnoughResources"}


async def test_pods_of_a_gang_that_start_and_end_are_counted_in_one_write(
    cluster: ApiClient,
) -> None:
    await add_node(cluster, "a")
    async with scheduling(cluster, replace(SETTINGS, count_update_interval_s=3600.0)):
        await add_gang(cluster, "job", 3)
        await eventually(in_phase(cluster, "job", "Running"), "the group says so")
        revision = (await cluster.get(POD_GROUPS, "job", "default")).metadata.resource_version
        for phase in ("Running", "Succeeded"):
            for index in range(3):
                await set_phase(cluster, f"job-{index}", phase)
        [group] = await changes_until(cluster, revision, "job", "Completed")
        assert (group.status.running, group.status.succeeded) == (0, 3)


async def test_running_pods_of_a_gang_are_counted_after_the_interval(cluster: ApiClient) -> None:
    await add_node(cluster, "a")
    async with scheduling(cluster, replace(SETTINGS, count_update_interval_s=0.05)):
        await add_gang(cluster, "job", 3)
        await eventually(in_phase(cluster, "job", "Running"), "the group says so")
        for index in range(3):
            await set_phase(cluster, f"job-{index}", "Running")

        async def counted() -> bool:
            return (await cluster.get(POD_GROUPS, "job", "default")).status.running == 3

        await eventually(counted, "its pods are counted")
