"""``gangline plan calibrate`` and ``--measure`` in real processes.

Takes 50 s: a calibration takes real training steps, once with two processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[3] / "benchmarks" / "sizing" / "models.py"
SHAPE = ("--layers", "2", "--hidden", "64", "--heads", "2", "--vocab", "256", "--seq", "32")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def plan(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gangline", "plan", *arguments],
        env=os.environ | {"GANGLINE_HOME": str(home)},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def test_a_calibration_of_two_processes_is_used_for_their_device(tmp_path: Path) -> None:
    done = plan(tmp_path, "calibrate", *SHAPE, "--precision", "fp32")
    assert done.returncode == 0, done.stderr
    file = tmp_path / "calibrations" / "CPU.json"
    found = json.loads(file.read_text())
    assert found["devices"] == 2
    assert sum(len(run["seconds"]) for run in found["layers"]["runs"]) == 45
    # The slice has no embeddings: states of their size are updated beside those of its layers.
    assert found["update"]["parameters"] == found["slice"]["parameters"]
    assert found["copy"]["bytes"] == 2**23
    assert [each["bytes"] for each in found["all_reduce"]] == [4**n for n in range(6, 14)]
    used = plan(tmp_path, *SHAPE, "--gpu", "cpu", "--gpus", "2", "--precision", "fp32")
    assert used.returncode == 0, used.stderr
    assert "2 x CPU" in used.stdout
    assert "measured" in used.stdout
    ignored = plan(tmp_path, *SHAPE, "--gpu", "cpu", "--calibration", "off")
    assert "unknown GPU 'cpu'" in ignored.stderr
    narrow = plan(tmp_path, *SHAPE, "--calibration", str(file))
    assert "was measured with 32 bits, the training has 16" in narrow.stderr
    other = plan(tmp_path, *SHAPE, "--calibration", str(file), "--gpu", "A100")
    assert "--gpu A100 contradicts --calibration, which is of CPU" in other.stderr


def test_a_slice_that_fails_ends_all_processes_with_its_reason(tmp_path: Path) -> None:
    target = (f"{MODELS}:gpt_10m", "--input", "2x999", "--token-ids")
    done = plan(tmp_path, "calibrate", "--trace", *target)
    assert done.returncode != 0
    assert "the slice cannot be timed: IndexError" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_model_that_the_meta_device_cannot_trace_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "dynamic.py"
    file.write_text(
        "import torch\n"
        "class Dynamic(torch.nn.Linear):\n"
        "    def forward(self, inputs):\n"
        "        return super().forward(inputs[inputs.sum(1) > -1e9])\n"
        "def make():\n"
        "    return Dynamic(64, 32)\n"
    )
    arguments = ("--trace", f"{file}:make", "--input", "8x64", "--samples", "100", "--gpu", "A100")
    traced = plan(tmp_path, *arguments)
    assert traced.returncode == 2
    assert "--measure" in traced.stderr
    measured = plan(tmp_path, *arguments, "--measure", "-o", "json")
    assert measured.returncode == 0, measured.stderr
    training = json.loads(measured.stdout)["training"]
    # Two products of 8 x 64 x 32; the input needs no gradient.
    assert training["model_flops"] == 100 * 2 * 2 * 64 * 32
