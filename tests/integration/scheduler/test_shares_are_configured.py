"""Shares of namespaces and the hierarchy of queues, enabled by the configuration file."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from gangline.api.resources import CONFIG_MAPS, NAMESPACES, NODES, POD_GROUPS, PODS, QUEUES
from gangline.api.volcano.scheduling import HIERARCHY_ANNOTATION, HIERARCHY_WEIGHTS_ANNOTATION
from gangline.cli import main
from gangline.cli.errors import ExitCode
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import AlreadyExists
from gangline.local import custom_resources
from gangline.local.apiserver.server import ApiServer
from gangline.scheduler.loop import run
from gangline.scheduler.reporting.replay import CONFIG_KEY, CONFIG_MAP, CONFIG_NAMESPACE
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.volcano_config import read_configuration

PATIENCE_S = 60.0
WRITTEN = """
actions: "allocate"
tiers:
- plugins:
  - {name: drf, enableNamespaceOrder: true, enableHierarchy: true}
  - {name: overcommit, arguments: {overcommit-factor: 0.5}}
"""


async def _node(client: ApiClient, cpu: int) -> None:
    await client.create(NODES, {"metadata": {"name": "n"}})
    status = {
        "allocatable": {"cpu": str(cpu), "pods": "100"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await client.patch(NODES, "n", {"status": status}, subresource="status")


async def _gang(client: ApiClient, namespace: str, name: str, queue: str) -> None:
    """Make a gang of one pod of one CPU."""
    group = {"metadata": {"name": name}, "spec": {"queue": queue, "minMember": 1}}
    await client.create(POD_GROUPS, group, namespace)
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    metadata = {"name": name, "annotations": {"scheduling.k8s.io/group-name": name}}
    spec = {"schedulerName": "gangline", "containers": [container]}
    await client.create(PODS, {"metadata": metadata, "spec": spec}, namespace)


async def _bound(client: ApiClient, namespace: str) -> list[str]:
    pods = (await client.list(PODS, namespace)).items
    return sorted(pod.metadata.name for pod in pods if pod.spec.node_name)


async def _until(client: ApiClient, namespace: str, holds: Callable[[list[str]], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds(await _bound(client, namespace)):
            await asyncio.sleep(0.05)


async def test_namespaces_take_turns_and_hierarchy_annotations_apply(
    client: ApiClient,
    api_server: ApiServer,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await custom_resources.install_definitions(client)
    for namespace in ("one", "two", CONFIG_NAMESPACE):
        with suppress(AlreadyExists):
            await client.create(NAMESPACES, {"metadata": {"name": namespace}})
    told = {"metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: WRITTEN}}
    await client.create(CONFIG_MAPS, told, CONFIG_NAMESPACE)
    for name, path, weights in _places():
        annotations = {HIERARCHY_ANNOTATION: path, HIERARCHY_WEIGHTS_ANNOTATION: weights}
        await client.create(QUEUES, {"metadata": {"name": name, "annotations": annotations}})
    # Of four gangs that came first three are one namespace's: by age alone they would all start.
    for index in range(4):
        await _gang(client, "one", f"g{index}", "dev")
    await _gang(client, "two", "late", "dev")
    stop = asyncio.Event()
    settings = read_configuration(WRITTEN).apply_to(SchedulerSettings())
    scheduler = asyncio.create_task(run(client, settings, stop))
    await _node(client, 3)
    await _until(client, "two", lambda bound: bound == ["late"])
    await _until(client, "one", lambda bound: len(bound) == 2)
    assert "overcommit-factor of plugin 'overcommit'" in caplog.text

    line = ["queue", "get", "dev", "--kubeconfig", str(api_server.kubeconfig)]
    assert await asyncio.to_thread(main.run, line) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "root/eng" in shown
    stop.set()
    await scheduler


def _places() -> Iterator[tuple[str, str, str]]:
    yield "dev", "root/eng/dev", "1/3/1"
    yield "sales", "root/sales", "1/1"
