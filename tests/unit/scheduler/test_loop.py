"""The phases of a start are reported once, after the first cycle."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from gangline.kube.informers.informer import ListTimes
from gangline.scheduler.loop import StartReporter


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
