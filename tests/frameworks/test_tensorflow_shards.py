"""TensorFlow: data shards through its input pipeline, which prefetches in its own threads."""

import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml

SCRIPT = Path(__file__).with_name("tensorflow_shards.py")
SOURCES = Path(__file__).parents[2] / "src"


@pytest.mark.timeout(300)
def test_a_pipeline_of_tensorflow_is_accounted_for_exactly(image_map: Path) -> None:
    environments = yaml.safe_load(image_map.read_text())
    python = Path(environments["gangline/examples-tensorflow:*"]["env"], "bin", "python")
    packages = sysconfig.get_paths()["purelib"]
    command = [str(python), str(SCRIPT), packages, str(SOURCES)]
    output = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=240
    ).stdout
    assert output.splitlines()[-1] == "all records came twice"
