"""Many concurrent jobs.

Takes 40 s: two hundred jobs.
"""

import asyncio

import pytest

from e2e.jobs import job, replica
from e2e.scenario import Scenario, condition, finished
from e2e.waiting import eventually
from gangline.api.resources import PYTORCH_JOBS

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
