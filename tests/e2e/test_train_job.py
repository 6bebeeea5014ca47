"""TrainJob: two PyTorch processes of a runtime learn digits."""

import re
from pathlib import Path
from typing import Any

import pytest

from e2e.jobs import Manifest
from e2e.scenario import Scenario, condition
from gangline.api.resources import TRAIN_JOBS, TRAINING_RUNTIMES

SCRIPT = Path(__file__).parents[2] / "examples" / "pytorch" / "digits.py"
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def runtime(pod: Manifest) -> Manifest:
    """A runtime whose nodes run torchrun."""
    job = {
        "name": "node",
        "template": {"metadata": {"labels": STEP}, "spec": {"template": {"spec": pod}}},
    }
    return {
        "apiVersion": TRAINING_RUNTIMES.api_version,
        "kind": TRAINING_RUNTIMES.kind,
        "metadata": {"name": "digits"},
        "spec": {"mlPolicy": {"torch": {}}, "template": {"spec": {"replicatedJobs": [job]}}},
    }


def job(**spec: Any) -> Manifest:
    return {
        "apiVersion": TRAIN_JOBS.api_version,
        "kind": TRAIN_JOBS.kind,
        "metadata": {"name": "digits"},
        "spec": {"runtimeRef": {"name": "digits", "kind": "TrainingRuntime"}, **spec},
    }


@pytest.mark.timeout(300)
async def test_two_nodes_of_a_runtime_train_digits_together(scenario: Scenario) -> None:
    pod = scenario.cluster.python(SCRIPT, "--checkpoint", "/shared/digits.pt", "--steps", "200")
    container = pod["containers"][0]
    container["name"] = "node"
    container["command"] = ["python", "-m", "torch.distributed.run", *container["command"][1:]]
    container.setdefault("volumeMounts", []).append({"name": "shared", "mountPath": "/shared"})
    pod.setdefault("volumes", []).append(
        {"name": "shared", "hostPath": {"path": str(scenario.shared)}}
    )
    await scenario.client.create(TRAINING_RUNTIMES, runtime(pod), scenario.namespace)
    scenario = scenario.of(TRAIN_JOBS)
    await scenario.submit(job(trainer={"numNodes": 2, "numProcPerNode": 1}))
    done = await scenario.job_when(
        "digits",
        lambda found: condition(found, "Complete") or condition(found, "Failed"),
        "has ended",
        240,
    )
    assert condition(done, "Complete") == "True", done.status
    pods = await scenario.pods("digits")
    assert sorted(pods) == ["digits-node-0-0", "digits-node-0-1"]
    logs = scenario.client.logs("digits-node-0-0", scenario.namespace)
    text = "".join([line.decode() async for line in logs])
    accuracy = re.search(r"test accuracy (\d\.\d+)", text)
    assert accuracy is not None, text
    assert float(accuracy.group(1)) >= 0.9
