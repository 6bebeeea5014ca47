"""The status of a pending gang on a real API server says when it is expected to start."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from gangline.api.resources import POD_GROUPS, PODS
from gangline.kube.client.client import ApiClient
from gangline.local import custom_resources
from gangline.scheduler.reporting import start_forecasts
from integration.scheduler import test_scheduling
from integration.scheduler.test_scheduling import (
    SETTINGS,
    add_gang,
    add_node,
    eventually,
    placed,
    scheduling,
)

FORECASTING = replace(SETTINGS, forecast_interval_s=0.5)


@pytest.fixture
async def full(client: ApiClient) -> ApiClient:
    """A cluster with one node."""
    await custom_resources.install_definitions(client)
    await add_node(client, "a")
    return client


def start_message(client: ApiClient, name: str) -> Callable[[], Awaitable[str]]:
    async def claim() -> str:
        group = await client.get(POD_GROUPS, name, "default")
        found = [each for each in group.status.conditions if each.type == "StartExpected"]
        return found[0].message if found else ""

    return claim


@pytest.mark.timeout(300)
async def test_status_has_place_and_interval_until_the_gang_starts(
    full: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_forecasts, "REST_FACTOR", 0)
    # The process that forecasts yields to everything else that runs on the machine.
    monkeypatch.setattr(test_scheduling, "PATIENCE_S", 100.0)
    async with scheduling(full, FORECASTING):
        await add_gang(full, "runs", 4)
        run_time = {"metadata": {"annotations": {"gangline.dev/run-time-seconds": "3600"}}}
        await full.patch(POD_GROUPS, "runs", run_time, "default")
        await eventually(placed(full, "runs", 4), "the first gang fills the node")
        # Gangs of the same second are in the order of their names.
        await add_gang(full, "next", 4)
        await add_gang(full, "then", 4)
        text = await eventually(start_message(full, "then"), "the second start is forecast")
        assert text.startswith("Place 2 in queue 'default', after default/next. ")
        text = await eventually(start_message(full, "next"), "the first start is forecast")
        assert text.startswith("Place 1 in queue 'default'. Expected to start between ")
        await full.delete(POD_GROUPS, "runs", "default")
        for number in range(4):
            await full.delete(PODS, f"runs-{number}", "default", grace_seconds=0)
        await eventually(placed(full, "next", 4), "the next gang starts")

        async def is_gone() -> bool:
            return not await start_message(full, "next")()

        await eventually(is_gone, "a gang that runs has no expected start")
