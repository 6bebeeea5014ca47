"""The scheduler on a real API server: gangs are placed, reasons are written."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from gangline.api.core.pod import Pod
from gangline.api.meta.conditions import find_condition
from gangline.api.meta.objects import Status
from gangline.api.resources import (
    EVENTS,
    NODES,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
)
from gangline.api.volcano.scheduling import (
    PREVIOUS_NODES_ANNOTATION,
    RESERVED_ANNOTATION,
    PodGroup,
    PreviousNodesAnnotation,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, NotFound
from gangline.local import custom_resources
from gangline.local.apiserver.server import ApiServer, ApiServerSettings
from gangline.scheduler.loop import run
from gangline.scheduler.settings import SchedulerSettings

PATIENCE_S = 60.0
SETTINGS = SchedulerSettings(
    gang_creation_grace_s=0.3,
    message_update_interval_s=0.2,
    preempt=False,
    queue_status_interval_s=0.2,
)
PREEMPTING = replace(SETTINGS, preempt=True)


@asynccontextmanager
async def scheduling(
    client: ApiClient, settings: SchedulerSettings = SETTINGS
) -> AsyncIterator[None]:
    """Run a scheduler meanwhile."""
    stop = asyncio.Event()
    task = asyncio.create_task(run(client, settings, stop))
    try:
        yield
    finally:
        stop.set()
        await task


@pytest.fixture
async def cluster(client: ApiClient) -> ApiClient:
    """A cluster that knows pod groups and queues, without nodes."""
    await custom_resources.install_definitions(client)
    return client


async def eventually(claim: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Wait until a claim holds; return what made it true."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not (found := await claim()):
                await asyncio.sleep(0.02)
            return found
    except TimeoutError:
        raise AssertionError(f"not in {PATIENCE_S} s: {what}") from None


async def add_node(client: ApiClient, name: str, cpu: str = "4") -> None:
    await client.create(NODES, {"metadata": {"name": name}})
    has = {"cpu": cpu, "memory": "8Gi", "pods": "10"}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"capacity": has, "allocatable": has, "conditions": ready}
    await client.patch(NODES, name, {"status": status}, subresource="status")


async def add_pod(client: ApiClient, name: str, cpu: str = "1", **fields: Any) -> None:
    group = fields.pop("group", None)
    metadata: dict[str, Any] = {"name": name}
    if group:
        metadata["annotations"] = {"scheduling.k8s.io/group-name": group}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    spec = {"schedulerName": "gangline", "containers": [container]} | fields
    await client.create(PODS, {"metadata": metadata, "spec": spec}, "default")


async def add_group(client: ApiClient, name: str, size: int, **spec: Any) -> None:
    body = {"metadata": {"name": name}, "spec": {"minMember": size, **spec}}
    await client.create(POD_GROUPS, body, "default")


async def add_gang(client: ApiClient, name: str, size: int, cpu: str = "1", **spec: Any) -> None:
    await add_group(client, name, size, **spec)
    for index in range(size):
        await add_pod(client, f"{name}-{index}", cpu, group=name)


async def pods(client: ApiClient, prefix: str) -> list[Pod]:
    found = (await client.list(PODS, "default")).items
    return [pod for pod in found if pod.metadata.name.startswith(f"{prefix}-")]


def placed(client: ApiClient, name: str, size: int) -> Callable[[], Awaitable[bool]]:
    async def claim() -> bool:
        return sum(bool(pod.spec.node_name) for pod in await pods(client, name)) == size

    return claim


def in_phase(client: ApiClient, name: str, phase: str) -> Callable[[], Awaitable[bool]]:
    async def claim() -> bool:
        return (await client.get(POD_GROUPS, name, "default")).status.phase == phase

    return claim


def waits_because(
    client: ApiClient, name: str, reason: str
) -> Callable[[], Awaitable[PodGroup | None]]:
    async def claim() -> PodGroup | None:
        group = await client.get(POD_GROUPS, name, "default")
        held = [c for c in group.status.conditions if c.type == "Unschedulable"]
        return group if held and (held[0].status, held[0].reason) == ("True", reason) else None

    return claim


async def test_gang_is_placed_and_its_status_is_running(cluster: ApiClient) -> None:
    for name in ("a", "b"):
        await add_node(cluster, name)
    async with scheduling(cluster):
        await add_gang(cluster, "job", 4, cpu="2")
        await eventually(placed(cluster, "job", 4), "the gang has nodes")
        await eventually(in_phase(cluster, "job", "Running"), "the group says so")


async def test_the_second_gang_waits_with_reasons_everywhere_and_then_runs(
    cluster: ApiClient,
) -> None:
    await add_node(cluster, "a")
    async with scheduling(cluster):
        await add_gang(cluster, "first", 2, cpu="2")
        await eventually(placed(cluster, "first", 2), "the first gang has nodes")
        await add_gang(cluster, "second", 2, cpu="2")
        group = await eventually(
            waits_because(cluster, "second", "NotEnoughResources"), "the second says why"
        )
        assert "cpu 4 more" in group.status.conditions[0].message
        assert group.status.phase == "Inqueue"

        async def told() -> bool:
            waiting = await pods(cluster, "second")
            return all(
                _says(pod, "0/1 nodes are available: 1 Insufficient cpu.") for pod in waiting
            )

        async def event() -> bool:
            events = (await cluster.list(EVENTS, "default")).items
            told = {(each.involved_object.name, each.reason) for each in events}
            return {("second-0", "FailedScheduling"), ("second", "Unschedulable")} <= told

        await eventually(told, "its pods say why")
        await eventually(event, "events say why")
        assert not any(pod.spec.node_name for pod in await pods(cluster, "second"))
        for pod in await pods(cluster, "first"):
            await cluster.delete(PODS, pod.metadata.name, "default", grace_seconds=0)
        await eventually(placed(cluster, "second", 2), "the second gang has nodes")


def _says(pod: Pod, text: str) -> bool:
    conditions = [c for c in pod.status.conditions if c.type == "PodScheduled"]
    return bool(conditions) and (
        conditions[0].status == "False"
        and conditions[0].reason == "Unschedulable"
        and conditions[0].message.startswith(text)
    )


async def test_a_gang_starts_when_a_node_comes(cluster: ApiClient) -> None:
    async with scheduling(cluster):
        await add_gang(cluster, "job", 2, cpu="2")
        await eventually(waits_because(cluster, "job", "NotEnoughResources"), "it waits")
        await add_node(cluster, "a")
        await eventually(placed(cluster, "job", 2), "the gang has nodes")


async def test_a_gang_waits_for_its_queue(cluster: ApiClient) -> None:
    await add_node(cluster, "a")
    async with scheduling(cluster):
        await add_gang(cluster, "job", 1, queue="team")
        await eventually(waits_because(cluster, "job", "QueueNotFound"), "it says so")
        await cluster.create(QUEUES, {"metadata": {"name": "team"}, "spec": {"weight": 1}})
        await eventually(placed(cluster, "job", 1), "the gang has a node")


async def test_queue_reports_usage_and_keeps_its_limit(cluster: ApiClient) -> None:
    await add_node(cluster, "a")
    limited = {"metadata": {"name": "team"}, "spec": {"capability": {"cpu": "2"}}}
    await cluster.create(QUEUES, limited)
    async with scheduling(cluster):
        await add_gang(cluster, "first", 2, queue="team")
        await eventually(placed(cluster, "first", 2), "the first gang has nodes")
        await add_gang(cluster, "second", 1, queue="team")
        group = await eventually(waits_because(cluster, "second", "QueueLimit"), "it says why")
        assert "2 of 2 cpu in use, 1 requested" in group.status.conditions[0].message

        async def told() -> bool:
            status = (await cluster.get(QUEUES, "team")).status
            counts = (status.state, status.running, status.pending, status.inqueue)
            return counts == ("Open", 1, 1, 0) and status.allocated.get("cpu") == "2"

        await eventually(told, "the queue says what it holds")


async def test_the_default_queue_is_made(cluster: ApiClient) -> None:
    async def there() -> bool:
        try:
            await cluster.get(QUEUES, "default")
        except NotFound:
            return False
        return True

    async with scheduling(cluster):
        await eventually(there, "the default queue exists")


async def test_a_member_that_was_lost_is_placed_before_others(cluster: ApiClient) -> None:
    await add_node(cluster, "a")
    async with scheduling(cluster):
        await add_gang(cluster, "job", 2, cpu="2")
        await eventually(placed(cluster, "job", 2), "the gang has nodes")
        await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
        await add_gang(cluster, "urgent", 2, cpu="2", priorityClassName="high")
        await eventually(waits_because(cluster, "urgent", "NotEnoughResources"), "it waits")
        await cluster.delete(PODS, "job-1", "default", grace_seconds=0)
        await add_pod(cluster, "job-1", "2", group="job")
        await eventually(placed(cluster, "job", 2), "the lost member is back")
        assert not any(pod.spec.node_name for pod in await pods(cluster, "urgent"))


async def announce_restart(client: ApiClient, name: str) -> dict[str, str]:
    """Ask for the places of a gang to be kept; return the node of each of its pods."""
    nodes = {pod.metadata.name: pod.spec.node_name for pod in await pods(client, name)}
    until = datetime.now(UTC) + timedelta(minutes=1)
    kept = msgspec.json.encode(PreviousNodesAnnotation(until, nodes)).decode()
    body = {"metadata": {"annotations": {PREVIOUS_NODES_ANNOTATION: kept}}}
    await client.patch(POD_GROUPS, name, body, "default")
    return nodes


async def two_gangs_for_the_room_of_one(client: ApiClient) -> None:
    """Let ``first`` fill two nodes and ``second`` wait for them, which has the higher priority."""
    for name in ("a", "b"):
        await add_node(client, name)
    await add_gang(client, "first", 2, cpu="4")
    await eventually(placed(client, "first", 2), "the first gang has nodes")
    await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
    await add_gang(client, "second", 2, cpu="4", priorityClassName="high")
    await eventually(waits_because(client, "second", "NotEnoughResources"), "the second waits")


async def delete_pods(client: ApiClient, prefix: str) -> None:
    for pod in await pods(client, prefix):
        await client.delete(PODS, pod.metadata.name, "default", grace_seconds=0)


async def test_places_are_kept_by_a_scheduler_that_was_restarted_meanwhile(
    cluster: ApiClient,
) -> None:
    async with scheduling(cluster):
        await two_gangs_for_the_room_of_one(cluster)
    least = {"spec": {"minResources": {"cpu": "8", "pods": "2"}}}
    await cluster.patch(POD_GROUPS, "first", least, "default")
    nodes = await announce_restart(cluster, "first")
    await delete_pods(cluster, "first")
    async with scheduling(cluster):
        await eventually(held_for(cluster, "second", "default/first"), "the room is held")
        for name in nodes:
            await add_pod(cluster, name, "4", group="first")
        await eventually(placed(cluster, "first", 2), "the first gang is back")
        back = {pod.metadata.name: pod.spec.node_name for pod in await pods(cluster, "first")}
        assert back == nodes


def held_for(client: ApiClient, name: str, holder: str) -> Callable[[], Awaitable[bool]]:
    async def claim() -> bool:
        group = await client.get(POD_GROUPS, name, "default")
        told = [c.message for c in group.status.conditions if c.type == "Unschedulable"]
        return bool(told) and f"reserved for {holder}" in told[0]

    return claim


async def test_gang_of_higher_priority_evicts_what_it_needs(cluster: ApiClient) -> None:
    await add_node(cluster, "a")
    async with scheduling(cluster, PREEMPTING):
        await add_group(cluster, "elastic", 1)
        for index in range(4):
            await add_pod(cluster, f"elastic-{index}", group="elastic")
        await eventually(placed(cluster, "elastic", 4), "the elastic gang has the node")
        await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
        await add_gang(cluster, "urgent", 2, priorityClassName="high")

        async def two_are_told_to_go() -> bool:
            told = await pods(cluster, "elastic")
            going = [pod for pod in told if pod.metadata.deletion_timestamp]
            return len(going) == 2 and all(
                any(c.type == "DisruptionTarget" for c in pod.status.conditions) for pod in going
            )

        await eventually(two_are_told_to_go, "two pods are evicted, and say why")

        async def nominated() -> bool:
            urgent = await pods(cluster, "urgent")
            return all(pod.status.nominated_node_name == "a" for pod in urgent)

        await eventually(nominated, "autoscalers see the node that is made free")
        for pod in await pods(cluster, "elastic"):
            if pod.metadata.deletion_timestamp:
                name = pod.metadata.name
                await cluster.delete(PODS, name, "default", grace_seconds=0)
                await add_pod(cluster, name, group="elastic")
        await eventually(placed(cluster, "urgent", 2), "the urgent gang has the room")


async def test_restarted_scheduler_keeps_preemptor_reservations(cluster: ApiClient) -> None:
    """The evicted gang is recreated while no scheduler runs: it must not get the nodes again."""
    await add_node(cluster, "a")
    async with scheduling(cluster, PREEMPTING):
        await add_gang(cluster, "low", 2, cpu="2")
        await eventually(placed(cluster, "low", 2), "the low gang has the node")
        await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
        await add_gang(cluster, "urgent", 2, cpu="2", priorityClassName="high")

        async def promised() -> bool:
            group = await cluster.get(POD_GROUPS, "urgent", "default")
            return "cleared" in group.metadata.annotations.get(RESERVED_ANNOTATION, "")

        await eventually(promised, "the group carries the promise")
    await delete_pods(cluster, "low")
    for index in range(2):
        await add_pod(cluster, f"low-{index}", "2", group="low")
    async with scheduling(cluster, PREEMPTING):
        await eventually(placed(cluster, "urgent", 2), "the urgent gang has the room")

        async def forgotten() -> bool:
            group = await cluster.get(POD_GROUPS, "urgent", "default")
            return RESERVED_ANNOTATION not in group.metadata.annotations

        await eventually(forgotten, "the promise is kept and crossed out")


async def test_contradictions_are_reported_once(cluster: ApiClient) -> None:
    await add_node(cluster, "a")
    noted = {"name": "odd", "annotations": {"gangline.dev/run-time-seconds": "soon"}}
    await cluster.create(POD_GROUPS, {"metadata": noted, "spec": {"minMember": 1}}, "default")
    async with scheduling(cluster):
        await cluster.patch(
            NODES, "a", {"status": {"allocatable": {"cpu": "9"}}}, subresource="status"
        )
        await add_gang(cluster, "job", 1)
        await eventually(placed(cluster, "job", 1), "others go on")

        async def told() -> list[tuple[str, str, int]]:
            found = (await cluster.list(EVENTS, "default")).items
            events = [(each.involved_object.name, each.reason, each.count) for each in found]
            wanted = {"AllocatableOverCapacity", "Unreadable"}
            listed = sorted(event for event in events if event[1] in wanted)
            return listed if len(listed) >= len(wanted) else []

        await eventually(told, "both have an event")
        await add_gang(cluster, "later", 1)
        await eventually(placed(cluster, "later", 1), "a further decision was made")
        assert await told() == [("a", "AllocatableOverCapacity", 1), ("odd", "Unreadable", 1)]


@pytest.mark.slow
async def test_a_cluster_that_knows_no_groups_gets_its_pods_scheduled(client: ApiClient) -> None:
    await add_node(client, "a")
    async with scheduling(client):
        await add_pod(client, "own-0")
        await eventually(placed(client, "own", 1), "the pod has a node")


class RefusingClient(ApiClient):
    """Refuses bindings of a gang, as an admission webhook may."""

    async def bind(self, name: str, namespace: str, node: str, *, uid: str | None = None) -> None:
        if name.startswith("refused-"):
            raise Forbidden(Status(status="Failure", code=403, message="denied by a webhook"))
        await super().bind(name, namespace, node, uid=uid)


async def test_a_gang_whose_bindings_are_refused_says_so_and_leaves_its_nodes_to_others(
    cluster: ApiClient,
) -> None:
    for name in "ab":
        await add_node(cluster, name, cpu="1")
    async with RefusingClient(cluster.config) as refusing, scheduling(refusing):
        await add_gang(cluster, "refused", 2)
        group = await eventually(
            waits_because(cluster, "refused", "BindingRefused"), "the gang says it"
        )
        assert group.status.phase == "Inqueue"
        await add_gang(cluster, "other", 2)
        await eventually(placed(cluster, "other", 2), "the nodes are free")
        pod = await cluster.get(PODS, "refused-0", "default")
        condition = find_condition(pod.status.conditions, "PodScheduled")
        assert condition is not None
        assert re.search(r"was refused: .*denied by a webhook", condition.message)


@pytest.mark.slow
async def test_an_api_server_that_was_away_is_found_again(tmp_path: Path) -> None:
    server = ApiServer(ApiServerSettings(data=tmp_path / "apiserver"))
    await server.start()
    port = urlsplit(server.url).port or 0
    try:
        async with ApiClient(server.config) as client:
            await custom_resources.install_definitions(client)
            await add_node(client, "a")
            async with scheduling(client):
                await add_gang(client, "before", 1)
                await eventually(placed(client, "before", 1), "the first gang has a node")
                await server.stop()
                server = ApiServer(ApiServerSettings(data=tmp_path / "apiserver", port=port))
                await server.start()
                await add_gang(client, "after", 2)
                await eventually(placed(client, "after", 2), "the second gang has nodes")
    finally:
        await server.stop()


async def test_a_gang_without_pods_is_admitted_when_the_cluster_holds_it(
    cluster: ApiClient,
) -> None:
    await add_node(cluster, "a", cpu="4")
    async with scheduling(cluster):
        for name in ("first", "second"):
            spec = {"minMember": 1, "minResources": {"cpu": "4"}}
            body = {"metadata": {"name": name}, "spec": spec}
            await cluster.create(POD_GROUPS, body, "default")
            await eventually(in_phase(cluster, name, "Pending" if name == "second" else "Inqueue"),
                             "the phase tells the controller whether to create pods")  # fmt: skip
        group = await cluster.get(POD_GROUPS, "second", "default")
        assert group.status.conditions[0].reason == "Overcommitted"
        await cluster.delete(POD_GROUPS, "first", "default")
        await eventually(in_phase(cluster, "second", "Inqueue"), "its pods may be created")
