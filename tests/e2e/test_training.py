"""Real training: three PyTorch processes learn digits, one is killed, the accuracy is reached.

Takes 40 s: three processes import PyTorch and train, and one starts again.
"""

import re
from pathlib import Path

import pytest

from e2e.jobs import job
from e2e.scenario import Scenario

SCRIPT = Path(__file__).parents[2] / "examples" / "pytorch" / "digits.py"


@pytest.mark.timeout(600)
async def test_three_pods_train_digits_together(scenario: Scenario) -> None:
    spec = scenario.cluster.python(SCRIPT, "--checkpoint", "/shared/digits.pt", "--steps", "300")
    container = spec["containers"][0]
    container.setdefault("volumeMounts", []).append({"name": "shared", "mountPath": "/shared"})
    spec.setdefault("volumes", []).append(
        {"name": "shared", "hostPath": {"path": str(scenario.shared)}}
    )
    role = {"restartPolicy": "OnFailure", "template": {"spec": spec}}
    await scenario.submit(job("digits", role | {"replicas": 1}, role | {"replicas": 2}))
    assert await scenario.outcome("digits", 300) == "Succeeded"
    lines = [
        line.decode() async for line in scenario.client.logs("digits-master-0", scenario.namespace)
    ]
    accuracy = re.search(r"test accuracy (\d\.\d+)", "".join(lines))
    assert accuracy is not None, lines
    assert float(accuracy.group(1)) >= 0.9
