"""The phases of a start are reported once, after the first cycle."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from gangline.kube.informers.informer import ListTimes
from gangline.scheduler.loop import MAX_IDLE_REST_S, StartReporter, rest_after_cycle


def test_phases_are_reported_after_the_first_cycle(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gangline.scheduler.loop")

    class Pods(list[str]):
        list_times = (ListTimes(2, True, list_s=4.0, decode_s=2.5, cache_s=1.5),)

    informers: Any = SimpleNamespace(pods=Pods(["a", "b"]))
    start = StartReporter(informers)
    start.cycle_ended(0.1)
    assert not caplog.records
    start.synced()
    start.cycle_ended(0.25)
    start.cycle_ended(9.0)
    [record] = caplog.records
    found = vars(record)
    assert (found["pods"], found["protobuf"], found["list_s"], found["decode_s"]) == (
        2,
        True,
        4,
        2.5,
    )
    assert (found["cache_s"], found["first_cycle_s"]) == (1.5, 0.25)
    gauge = "gangline_scheduler_start_seconds"
    assert REGISTRY.get_sample_value(gauge, {"phase": "first_cycle"}) == 0.25
    assert REGISTRY.get_sample_value(gauge, {"phase": "list"}) == 4.0


@pytest.mark.parametrize(
    ("took_s", "has_decided", "rest_s"),
    [
        pytest.param(0.1, True, 0.1, id="half of the time"),
        pytest.param(0.1, False, 0.4, id="a fifth of the time if nothing is decided"),
        pytest.param(1.5, False, MAX_IDLE_REST_S, id="a limit"),
        pytest.param(10.0, False, 10.0, id="never more than half of the time"),
    ],
)
def test_cycles_leave_time_for_other_tasks(took_s: float, has_decided: bool, rest_s: float) -> None:
    assert rest_after_cycle(took_s, has_decided=has_decided) == rest_s
