"""The scheduler on a real API server asks a gang for a save before it evicts the gang."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gangline.api.resources import NODES, POD_GROUPS, PODS, PRIORITY_CLASSES
from gangline.api.volcano.eviction_saves import (
    SAVE_ANSWER_ANNOTATION,
    SAVE_REQUEST_ANNOTATION,
    SAVES_ANNOTATION,
    SaveAnswerAnnotation,
    SaveRequestAnnotation,
    read_save_request,
)
from gangline.kube.client.client import ApiClient
from gangline.local import custom_resources
from integration.scheduler.test_scheduling import (
    PREEMPTING,
    add_gang,
    add_node,
    eventually,
    placed,
    pods,
    scheduling,
)

PATIENT = replace(PREEMPTING, save_wait_s=300.0)


@pytest.fixture
async def victims(client: ApiClient) -> ApiClient:
    """A node, and a class of higher priority."""
    await custom_resources.install_definitions(client)
    await add_node(client, "a")
    await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
    return client


async def annotate(client: ApiClient, name: str, **values: Any) -> None:
    body = {"metadata": {"annotations": values}}
    await client.patch(POD_GROUPS, name, body, "default")


async def low_gang(client: ApiClient) -> None:
    """A gang with checkpoints that fills the node."""
    await add_gang(client, "low", 2, cpu="2")
    await annotate(client, "low", **{SAVES_ANNOTATION: "true"})
    await eventually(placed(client, "low", 2), "the low gang has the node")


def asked(client: ApiClient) -> Callable[[], Awaitable[SaveRequestAnnotation | None]]:
    async def claim() -> SaveRequestAnnotation | None:
        group = await client.get(POD_GROUPS, "low", "default")
        return read_save_request(group.metadata.annotations)

    return claim


async def answer(client: ApiClient, request_id: str) -> None:
    text = msgspec.json.encode(SaveAnswerAnnotation(id=request_id, step=7)).decode()
    await annotate(client, "low", **{SAVE_ANSWER_ANNOTATION: text})


def terminating(client: ApiClient, count: int) -> Callable[[], Awaitable[bool]]:
    async def claim() -> bool:
        found = [pod.metadata.deletion_timestamp for pod in await pods(client, "low")]
        return sum(each is not None for each in found) == count

    return claim


async def remove(client: ApiClient, name: str) -> None:
    for pod in await pods(client, name):
        await client.delete(PODS, pod.metadata.name, "default", grace_seconds=0)


async def decided(client: ApiClient) -> None:
    """Wait until the scheduler has made further decisions: a gang that fits nowhere is placed."""
    await add_node(client, "b", cpu="1")
    await add_gang(client, "probe", 1, cpu="1")
    await eventually(placed(client, "probe", 1), "a later decision was made")
    await remove(client, "probe")
    await client.delete(NODES, "b")


async def test_gang_is_evicted_after_its_answer_and_the_node_stays_reserved(
    victims: ApiClient,
) -> None:
    async with scheduling(victims, PATIENT):
        await low_gang(victims)
        await add_gang(victims, "urgent", 2, cpu="2", priorityClassName="high")
        request = await eventually(asked(victims), "the low gang is asked")
        assert request.beneficiary == "default/urgent"
        await answer(victims, "of an older request")
        await decided(victims)
        assert await terminating(victims, 0)()
        assert (await asked(victims)()) == request, "the gang is asked once"
        await answer(victims, request.id)
        await eventually(terminating(victims, 2), "the answer leads to the eviction")
        await remove(victims, "low")
        await eventually(placed(victims, "urgent", 2), "the urgent gang has the node")

        async def request_is_removed() -> bool:
            return await asked(victims)() is None

        await eventually(request_is_removed, "the request is removed")


async def test_request_is_withdrawn_when_the_claimant_is_deleted(victims: ApiClient) -> None:
    async with scheduling(victims, PATIENT):
        await low_gang(victims)
        await add_gang(victims, "urgent", 2, cpu="2", priorityClassName="high")
        await eventually(asked(victims), "the low gang is asked")
        await remove(victims, "urgent")

        async def withdrawn() -> bool:
            return await asked(victims)() is None

        await eventually(withdrawn, "the request is withdrawn")
        assert await terminating(victims, 0)()


async def test_restarted_scheduler_continues_the_request(victims: ApiClient) -> None:
    async with scheduling(victims, PATIENT):
        await low_gang(victims)
        await add_gang(victims, "urgent", 2, cpu="2", priorityClassName="high")
        request = await eventually(asked(victims), "the low gang is asked")
    async with scheduling(victims, PATIENT):
        await decided(victims)
        assert await asked(victims)() == request
        assert await terminating(victims, 0)()
        await answer(victims, request.id)
        await eventually(terminating(victims, 2), "the answer to the first process counts")


async def test_abandoned_request_is_removed_after_its_time(victims: ApiClient) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    stale = SaveRequestAnnotation(id="x", seconds=30, deadline=past, beneficiary="default/gone")
    await add_gang(victims, "low", 1)
    text = msgspec.json.encode(stale).decode()
    await annotate(victims, "low", **{SAVE_REQUEST_ANNOTATION: text})
    async with scheduling(victims, PATIENT):

        async def removed() -> bool:
            return await asked(victims)() is None

        await eventually(removed, "nothing continues it")
