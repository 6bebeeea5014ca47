"""What counts against a change while it is tried."""

import msgspec
import pytest

from gangline.api.jobs.training_facts import DeviceShortageFacts
from gangline.brain.advisers.advice import GuardAction, What
from gangline.brain.evaluation.trials import trial_events
from gangline.brain.facts.records import PodRun, Run
from unit.brain.histories import a_job

AT_MS = 1_000_000
RUN = Run(job=a_job())
POD = PodRun(role="worker", rank=0, number=0, started_ms=1, ended_ms=AT_MS + 1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"pods": (msgspec.structs.replace(POD, cause="Error"),)}, False),
        ({"pods": (msgspec.structs.replace(POD, cause="OutOfMemory", oom=True),)}, True),
        ({"pods": (msgspec.structs.replace(POD, cause="DeviceOutOfMemory"),)}, True),
        (
            {"shortages": (DeviceShortageFacts(device_model="A", micro_batch=8, at=AT_MS + 1),)},
            True,
        ),
        (
            {"shortages": (DeviceShortageFacts(device_model="A", micro_batch=8, at=AT_MS - 1),)},
            False,
        ),
    ],
)
def test_lack_of_memory_of_pod_or_device_since_the_change(
    changes: dict[str, object], expected: bool
) -> None:
    action = GuardAction(id=1, job="u", family="f", what=What.MICRO_BATCH, at_ms=AT_MS)
    run = msgspec.structs.replace(RUN, **changes)
    assert trial_events(run, action, []).oom is expected
