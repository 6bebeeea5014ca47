"""Reports of one job are merged into few writes, and the last one is never lost."""

import asyncio
from typing import Any

import pytest

from gangline.api.jobs.progress import TrainerStatus
from gangline.api.meta.objects import Status
from gangline.kube.errors import NotFound
from gangline.operator.model.job import table_entry
from gangline.operator.webhook.progress_access import JobIdentity
from gangline.operator.webhook.progress_endpoint import ProgressWriter

JOB = JobIdentity(table_entry("TrainJob"), "team", "train", "job-uid")


class Server:
    """A client whose API server stores reports."""

    def __init__(self) -> None:
        self.stored = list[int]()
        self.fails = False
        self.drops = False
        self.changed = asyncio.Event()

    async def patch(self, _: Any, name: str, patch: Any, namespace: str, **more: Any) -> Any:
        assert (name, namespace, more["subresource"]) == ("train", "team", "status")
        same, report = patch
        assert same == {"op": "test", "path": "/metadata/uid", "value": "job-uid"}
        if self.fails:
            raise NotFound(Status(reason="NotFound"))
        self.stored.append(report["value"]["progressPercentage"])
        self.changed.set()
        return {"status": {} if self.drops else {"trainerStatus": report["value"]}}


def percent(number: int) -> TrainerStatus:
    return TrainerStatus(progress_percentage=number)


async def test_reports_of_a_moment_are_merged_and_the_last_one_is_stored() -> None:
    server = Server()
    writer = ProgressWriter(server, interval_s=0.01)  # type: ignore[arg-type]
    for number in range(100):
        await writer.write(JOB, percent(number))
    assert server.stored == [0]
    async with asyncio.timeout(5):
        while server.stored[-1] != 99:
            server.changed.clear()
            await server.changed.wait()
    assert server.stored == [0, 99]


async def test_what_waits_is_stored_when_the_operator_stops() -> None:
    server = Server()
    writer = ProgressWriter(server, interval_s=600)  # type: ignore[arg-type]
    for number in (1, 2, 3):
        await writer.write(JOB, percent(number))
    await writer.close()
    assert server.stored == [1, 3]


async def test_after_an_error_the_next_sender_gets_the_reason() -> None:
    server = Server()
    writer = ProgressWriter(server, interval_s=0)  # type: ignore[arg-type]
    await writer.write(JOB, percent(1))
    await writer.write(JOB, percent(2))
    server.fails = True

    async def report_until_refused() -> None:
        while True:
            await writer.write(JOB, percent(3))
            await asyncio.sleep(0)

    with pytest.raises(NotFound):
        await asyncio.wait_for(report_until_refused(), 5)


async def test_a_definition_without_the_field_is_reported() -> None:
    server = Server()
    server.drops = True
    with pytest.raises(Exception, match=r"definition of TrainJob drops status\.trainerStatus"):
        await ProgressWriter(server).write(JOB, percent(1))  # type: ignore[arg-type]
