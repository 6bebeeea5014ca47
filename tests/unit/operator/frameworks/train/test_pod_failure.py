"""The pod failure policy of a replicated job: the first rule that applies counts."""

from typing import Any

import msgspec
import pytest

from gangline.api.jobs.training_runtime import PodFailureRule
from gangline.operator.frameworks.train.status import rules_end_job
from gangline.operator.model.replicas import ObservedPod

AT_2: dict[str, Any] = {"operator": "In", "values": [2]}
FAILS_AT_2 = {"action": "FailJob", "onExitCodes": AT_2}
FAILS_UNLESS_1 = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}
DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def pod(code: int, *, disrupted: bool = False) -> ObservedPod:
    ended = {"name": "node", "state": {"terminated": {"exitCode": code}}}
    status: dict[str, Any] = {"phase": "Failed", "containerStatuses": [ended]}
    if disrupted:
        status["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    return msgspec.convert({"metadata": {"name": "a"}, "status": status}, ObservedPod)


@pytest.mark.parametrize(
    ("rules", "code", "expected"),
    [
        ([], 2, False),
        ([FAILS_AT_2], 2, True),
        ([FAILS_AT_2], 1, False),
        ([FAILS_UNLESS_1], 1, False),
        ([FAILS_UNLESS_1], 137, True),
        ([FAILS_UNLESS_1], 0, False),
        ([{**FAILS_AT_2, "action": "Count"}, FAILS_UNLESS_1], 2, False),
    ],
)
def test_exit_codes(rules: list[dict[str, Any]], code: int, expected: bool) -> None:
    decoded = msgspec.convert(rules, list[PodFailureRule])
    assert rules_end_job(decoded, pod(code)) is expected


def test_code_of_another_container_does_not_count() -> None:
    rule = {**FAILS_AT_2, "onExitCodes": {**AT_2, "containerName": "other"}}
    assert not rules_end_job(msgspec.convert([rule], list[PodFailureRule]), pod(2))


def test_disruption_before_exit_code() -> None:
    rules = msgspec.convert([DISRUPTED, FAILS_AT_2], list[PodFailureRule])
    assert not rules_end_job(rules, pod(2, disrupted=True))
    assert rules_end_job(rules, pod(2))
