"""``gangline queue`` on a real API server: closed queues admit nothing, and become empty."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from gangline.api.resources import NODES, POD_GROUPS, PODS, QUEUES
from gangline.cli import main
from gangline.cli.errors import ExitCode
from gangline.kube.client.client import ApiClient
from gangline.local import custom_resources
from gangline.local.apiserver.server import ApiServer
from gangline.scheduler.loop import run
from gangline.scheduler.settings import SchedulerSettings

PATIENCE_S = 60.0


async def test_a_queue_is_listed_closed_emptied_and_opened_again(
    client: ApiClient, api_server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async def queue(*arguments: str, code: ExitCode = ExitCode.DONE) -> str:
        line = ["queue", *arguments, "--kubeconfig", str(api_server.kubeconfig)]
        assert await asyncio.to_thread(main.run, line) == code
        return capsys.readouterr().out

    async def until(holds: Callable[[dict[str, Any]], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds(json.loads(await queue("get", "team", "-o", "json")).get("status", {})):
                await asyncio.sleep(0.05)

    await custom_resources.install_definitions(client)
    spec = {"weight": 3, "capability": {"cpu": "2"}}
    await client.create(QUEUES, {"metadata": {"name": "team"}, "spec": spec})
    await client.create(NODES, {"metadata": {"name": "n"}})
    status = {
        "allocatable": {"cpu": "4", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await client.patch(NODES, "n", {"status": status}, subresource="status")
    stop = asyncio.Event()
    settings = SchedulerSettings(queue_status_interval_s=0.05)
    scheduler = asyncio.create_task(run(client, settings, stop))
    gang = {"metadata": {"name": "g"}, "spec": {"queue": "team", "minMember": 1}}
    await client.create(POD_GROUPS, gang, "default")
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    metadata = {"name": "p", "annotations": {"scheduling.k8s.io/group-name": "g"}}
    pod = {"schedulerName": "gangline", "containers": [container]}
    await client.create(PODS, {"metadata": metadata, "spec": pod}, "default")

    await until(lambda status: status.get("running") == 1)
    rows = (await queue("list")).splitlines()
    assert rows[0].split()[:5] == ["NAME", "WEIGHT", "STATE", "PARENT", "INQUEUE"]
    assert [row.split()[:4] for row in rows[1:]] == [
        ["default", "1", "Open", "root"],
        ["team", "3", "Open", "root"],
    ]
    shown = await queue("get", "team")
    assert "Capability:  cpu=2" in shown
    assert "fair share cpu 1" in shown

    assert await queue("close", "team") == "queue/team closed\n"
    await until(lambda status: status.get("state") == "Closing")
    await client.delete(POD_GROUPS, "g", "default")
    await until(lambda status: status.get("state") == "Closed")
    await queue("open", "team")
    await until(lambda status: status.get("state") == "Open")
    await queue("close", "root", code=ExitCode.USAGE)
    await queue("close", "nobody", code=ExitCode.NOT_FOUND)
    stop.set()
    await scheduler
