"""Clients of Kubeflow Trainer's status server, unchanged: transformers and the Kubeflow SDK."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from frameworks.client_matrix import interpreters
from frameworks.training import NAMESPACE, Training, training_cluster
from gangline.api.resources import TRAIN_JOBS
from integration.cluster.embedded import until

pytestmark = pytest.mark.timeout(600)

SDK_IMAGE = "kubeflow-sdk"
PATIENCE_S = 300.0
TRAINS = """
import torch
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, inputs, labels):
        return {"loss": ((self.layer(inputs) - labels) ** 2).mean()}

rows = [{"inputs": torch.tensor([float(i)]), "labels": torch.tensor([2.0 * i])} for i in range(8)]
options = {"max_steps": 12, "logging_steps": 2, "use_cpu": True, "disable_tqdm": True}
Trainer(Model(), TrainingArguments("/tmp/out", **options), train_dataset=rows).train()
"""
REPORTS = """
from kubeflow.trainer import update_trainjob_status
assert update_trainjob_status(60, 90, {"accuracy": 0.75, "epoch": 3})
"""
READS = """
import json, sys
from kubeflow_trainer_api import models
from kubeflow.trainer import TrainerClient
client = TrainerClient()
place = ("trainer.kubeflow.org", "v1alpha1", "default", "trainjobs", sys.argv[1])
stored = client.backend.custom_api.get_namespaced_custom_object(*place)
status = models.TrainerV1alpha1TrainJob.from_dict(stored).status.trainer_status
metrics = {metric.name: metric.value for metric in status.metrics}
print(json.dumps([client.get_job(sys.argv[1]).status, status.progress_percentage,
                  status.estimated_remaining_seconds, metrics]))
"""


@pytest.fixture
def sdk() -> Path:
    """The interpreter of the environment with the Kubeflow SDK."""
    interpreter = interpreters().get("kubeflow")
    if interpreter is None:
        pytest.skip("there is no environment of kubeflow: run tools/client_environments.py --map")
    return Path(interpreter)


@pytest.fixture
def images(image_map: Path, sdk: Path, tmp_path: Path) -> Path:
    """The image map of the examples, with the environment of the SDK."""
    entries = yaml.safe_load(image_map.read_text())
    entries[f"{SDK_IMAGE}:*"] = {"env": str(sdk.parents[1])}
    extended = tmp_path / "images.json"
    extended.write_text(json.dumps(entries))
    return extended


@pytest.fixture
async def training(images: Path, tmp_path: Path) -> AsyncIterator[Training]:
    async with training_cluster(images, tmp_path / "home") as made:
        yield made


async def train(training: Training, name: str, image: str, program: str) -> None:
    """Run a TrainJob of one node to its end."""
    trainer = {"image": f"{image}:1", "command": ["python", "-c", program], "numNodes": 1}
    resources = {"requests": {"cpu": "500m"}}
    spec = {
        "runtimeRef": {"name": "torch-distributed"},
        "trainer": trainer | {"resourcesPerNode": resources},
    }
    job = {"metadata": {"name": name}, "spec": spec}
    await training.client.create(TRAIN_JOBS, job, NAMESPACE)

    async def ended() -> bool:
        conditions = (await training.client.get(TRAIN_JOBS, name, NAMESPACE)).status.conditions
        assert not any(one.type == "Failed" for one in conditions), report()
        return any(one.type == "Complete" for one in conditions)

    def report() -> str:
        return training.cluster.run("logs", name).stdout

    await until(ended, PATIENCE_S, report)


async def read(training: Training, sdk: Path, name: str) -> list[Any]:
    """What the SDK reads of a job."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sdk, "-c", READS, name],
        env=training.cluster.environment
        | {"KUBECONFIG": str(training.cluster.home.default_kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return result


async def test_transformers_and_the_kubeflow_sdk_report_unchanged(
    training: Training, sdk: Path
) -> None:
    await train(training, "transformers", "gangline/examples-checkpoint", TRAINS)
    await train(training, "sdk", SDK_IMAGE, REPORTS)

    async def final() -> bool:
        return (await read(training, sdk, "transformers"))[1] == 100

    await until(final, PATIENCE_S)
    status, percentage, left_s, metrics = await read(training, sdk, "transformers")
    assert (status, percentage, left_s) == ("Complete", 100, 0)
    assert {"loss", "learning_rate", "train_loss"} <= metrics.keys()
    reported = ["Complete", 60, 90, {"accuracy": "0.75", "epoch": "3"}]
    assert await read(training, sdk, "sdk") == reported
    page = training.cluster.run("get", "sdk").stdout
    assert "Progress:   60%\n" in page
    assert "Metrics:    accuracy 0.75, epoch 3" in page
