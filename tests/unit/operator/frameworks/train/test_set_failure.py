"""The failure policy of a JobSet: the first rule that applies to the failed job counts."""

from typing import Any

import msgspec
import pytest

from gangline.api.jobs.training_runtime import PodFailureRule, SetFailurePolicy
from gangline.api.trainer.effective import EffectiveRole
from gangline.operator.frameworks.train.status import (
    is_counted,
    pod_ends_job,
    restarts_together,
)
from gangline.operator.model.replicas import ObservedPod

FAILS_AT_2 = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}}
NODE = EffectiveRole("node", 2, {})
STRICT = EffectiveRole("node", 2, {}, failure_rules=(msgspec.convert(FAILS_AT_2, PodFailureRule),))


def policy(*rules: dict[str, Any], restarts: int | None = 1) -> SetFailurePolicy:
    named = [{"name": f"rule{number}", **rule} for number, rule in enumerate(rules)]
    return msgspec.convert({"maxRestarts": restarts, "rules": named}, SetFailurePolicy)


def pod(code: int) -> ObservedPod:
    ended = {"name": "node", "state": {"terminated": {"exitCode": code}}}
    status = {"phase": "Failed", "containerStatuses": [ended]}
    return msgspec.convert({"metadata": {"name": "a"}, "status": status}, ObservedPod)


FAIL: dict[str, Any] = {"action": "FailJobSet"}
FREELY: dict[str, Any] = {"action": "RestartJobSetAndIgnoreMaxRestarts"}
RESTART: dict[str, Any] = {"action": "RestartJobSet"}
BY_POLICY = {"onJobFailureReasons": ["PodFailurePolicy"]}
OF_LAUNCHER = {"targetReplicatedJobs": ["launcher"]}


@pytest.mark.parametrize(
    ("given", "role", "ends", "counted"),
    [
        pytest.param(policy(), NODE, False, True, id="no rule: restarts of all"),
        pytest.param(policy(FAIL), NODE, True, True, id="a rule for all failures"),
        pytest.param(policy({**FAIL, **OF_LAUNCHER}), NODE, False, True, id="another job"),
        pytest.param(policy({**FAIL, **BY_POLICY}), NODE, False, True, id="another reason"),
        pytest.param(policy({**FAIL, **BY_POLICY}), STRICT, True, True, id="its reason"),
        pytest.param(policy(), STRICT, False, True, id="the set restarts a job that has failed"),
        pytest.param(policy(FREELY, FAIL), NODE, False, False, id="the first one counts"),
        pytest.param(policy(RESTART, FREELY), NODE, False, True, id="a restart that counts"),
        pytest.param(policy(restarts=None), STRICT, True, True, id="without restarts"),
    ],
)
def test_rule_of_a_failure(
    given: SetFailurePolicy, role: EffectiveRole, ends: bool, counted: bool
) -> None:
    assert pod_ends_job(given, role, pod(2)) is ends
    assert is_counted(given, role, pod(2)) is counted


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, False),
        (policy(restarts=None), False),
        (policy(restarts=0), False),
        (policy(FAIL, restarts=0), False),
        (policy(FREELY, restarts=0), True),
        (policy(RESTART, restarts=None), True),
        (policy(), True),
    ],
)
def test_all_pods_restart_where_the_policy_can_ask_for_it(
    given: SetFailurePolicy | None, expected: bool
) -> None:
    assert restarts_together(given) is expected
