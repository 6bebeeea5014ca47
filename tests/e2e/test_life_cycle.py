"""A job's life on real kubelets: restarts of containers and their limit.

Other rules of the life cycle are those of tests/integration/operator and tests/unit/operator.
"""

import pytest

from e2e.jobs import fails_first, job, replica, until
from e2e.scenario import Scenario

FOREVER = "sleep 3600"


@pytest.mark.parametrize(("role", "policy"), [("Master", "OnFailure"), ("Worker", "Always")])
async def test_a_failed_container_is_restarted_in_its_pod(
    scenario: Scenario, role: str, policy: str
) -> None:
    shared = str(scenario.shared)
    flaky = replica(fails_first(), restart=policy, shared=shared)
    calm = replica(until("go"), restart="OnFailure", shared=shared)
    roles = {"Master": (flaky, calm), "Worker": (calm, flaky)}[role]
    await scenario.submit(job("flaky", *roles))
    name = f"flaky-{role.lower()}-0"

    def restarted(pods: dict) -> bool:
        statuses = pods[name].status.container_statuses if name in pods else []
        return any(status.restart_count >= 1 for status in statuses)

    await scenario.pods_when("flaky", restarted, f"{name} was restarted")
    scenario.let("go")
    assert await scenario.outcome("flaky") == "Succeeded"


async def test_backoff_limit_counts_restarts_of_containers(scenario: Scenario) -> None:
    await scenario.submit(job("hopeless", replica(FOREVER), replica("exit 1"), backoffLimit=1))
    assert await scenario.outcome("hopeless") == "Failed"
    ended = await scenario.job("hopeless")
    told = next(entry for entry in ended.status.conditions if entry.type == "Failed")
    assert "backoff" in (told.message + told.reason).lower()
