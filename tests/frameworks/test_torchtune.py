"""The shipped runtime of torchtune trains a small Llama with random weights."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from frameworks.test_train_job import environment, log_of
from frameworks.training import EXAMPLES, NAMESPACE, Training, training_cluster
from gangline.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS
from gangline.api.trainer.builtin_runtimes import builtin_runtimes

pytestmark = pytest.mark.timeout(600)

EXAMPLE = EXAMPLES / "torchtune"
STEPS = 5


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that pods see: ``/tmp`` is private to each."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def images(image_map: Path, tmp_path: Path) -> Path:
    """The image of the initializers is the environment of the tests."""
    found = yaml.safe_load(image_map.read_text())
    found["gangline-initializer:*"] = {"env": sys.prefix}
    file = tmp_path / "images.yaml"
    file.write_text(json.dumps(found))
    return file


@pytest.fixture
async def training(images: Path, tmp_path: Path) -> AsyncIterator[Training]:
    async with training_cluster(images, tmp_path / "home") as made:
        yield made


async def test_runtime_trains_what_its_initializers_fetched(
    training: Training, image_map: Path, folder: Path
) -> None:
    python = environment(image_map, "torchtune") / "bin" / "python"
    program = [python, EXAMPLE / "random_llama.py", folder / "llama"]
    await asyncio.to_thread(subprocess.run, program, check=True)
    text = (EXAMPLE / "train.yaml").read_text().replace("/var/tmp/llama", f"{folder}/llama")
    job = yaml.safe_load(text)
    name = job["spec"]["runtimeRef"]["name"]
    listed = (await training.client.list(CLUSTER_TRAINING_RUNTIMES)).items
    if name not in {each.metadata.name for each in listed}:
        (runtime,) = (each for each in builtin_runtimes() if each["metadata"]["name"] == name)
        await training.client.create(CLUSTER_TRAINING_RUNTIMES, runtime)
    await training.client.create(TRAIN_JOBS, job, NAMESPACE)
    output = await log_of(training, "llama", "node-0-0")
    losses = dict(re.findall(r"1\|(\d+)\|Loss: (\d+\.\d+)", output))
    assert len(losses) == STEPS, output
    assert float(losses["5"]) < float(losses["1"]) / 2
    assert "full model checkpoint" in output
