"""Many concurrent jobs.

After all others: a real controller manager sends twenty requests a second, and the endpoints of six
hundred services keep it from those of later scenarios for minutes, in which no pod finds another.

Takes 40 s: two hundred jobs.
"""

import asyncio

import pytest

from e2e.jobs import job, replica
from e2e.scenario import Scenario, condition, finished
from e2e.waiting import eventually
from gangline.api.resources import PODS, PYTORCH_JOBS

pytestmark = pytest.mark.last


@pytest.mark.embedded_only("one real kubelet starts a pod a second; the operator is what is tested")
@pytest.mark.timeout(600)
async def test_two_hundred_jobs_at_once_all_end(scenario: Scenario) -> None:
    names = [f"many-{number}" for number in range(200)]
    await asyncio.gather(*(scenario.submit(job(name, replica("true"))) for name in names))

    async def done() -> bool:
        listing = await scenario.client.list(PYTORCH_JOBS, scenario.namespace)
        return len(listing.items) == len(names) and all(finished(each) for each in listing.items)

    await eventually(done, "all jobs have finished", 400)
    listing = await scenario.client.list(PYTORCH_JOBS, scenario.namespace)
    assert {condition(each, "Succeeded") for each in listing.items} == {"True"}


@pytest.mark.kubernetes_only("the embedded cluster really runs them")
@pytest.mark.timeout(600)
async def test_two_hundred_jobs_at_once_get_their_pods(scenario: Scenario) -> None:
    names = [f"many-{number}" for number in range(200)]
    wide = {"worker": replica("true", 2, cpu="1m"), "master": replica("true", cpu="1m")}
    await asyncio.gather(*(scenario.submit(job(name, **wide)) for name in names))

    async def made() -> bool:
        listing = await scenario.client.list(PODS, scenario.namespace)
        return len(listing.items) >= 3 * len(names)

    await eventually(made, "all pods exist", 300)
    # It would recreate them until the controller manager has deleted the namespace.
    scenario.cluster.stop_component("operator")
