"""``gangline plan calibrate`` and ``--measure``: training steps in real processes."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gangline.cli.commands.plan import plan_command
from gangline.cli.errors import to_command_error
from gangline.cli.planning.calibrate import calibrate_command
from gangline.sizing.sources.timed_slice import LEAST_TIMES, STEPS

MODELS = Path(__file__).parents[3] / "benchmarks" / "sizing" / "models.py"
SHAPE = ("--layers", "2", "--hidden", "64", "--heads", "2", "--vocab", "256", "--seq", "32")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(command: click.Command, *arguments: str) -> str:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refusal(command: click.Command, *arguments: str) -> str:
    """What the user reads if the command fails."""
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code != 0
    if isinstance(result.exception, SystemExit):
        return result.output
    assert isinstance(result.exception, Exception)
    error = to_command_error(result.exception)
    return f"{error.message} {error.hint}"


def test_a_calibration_of_two_processes_is_used_for_their_device(home: Path) -> None:
    run(calibrate_command, *SHAPE, "--precision", "fp32")
    file = home / "calibrations" / "CPU.json"
    found = json.loads(file.read_text())
    assert found["devices"] == 2
    steps = [len(run["seconds"]) for run in found["layers"]["runs"]]
    # Fewer than 15 where the machine is too busy for them in six seconds.
    assert len(steps) == 3
    assert all(LEAST_TIMES <= count <= STEPS for count in steps)
    # The slice has no embeddings: states of their size are updated beside those of its layers.
    assert found["update"]["parameters"] == found["slice"]["parameters"]
    assert found["copy"]["bytes"] == 2**23
    assert [each["bytes"] for each in found["all_reduce"]] == [4**n for n in range(6, 14)]

    used = run(plan_command, *SHAPE, "--gpu", "cpu", "--gpus", "2", "--precision", "fp32")
    assert "2 x CPU" in used
    assert "measured" in used
    assert "unknown GPU 'cpu'" in refusal(
        plan_command, *SHAPE, "--gpu", "cpu", "--calibration", "off"
    )
    narrow = refusal(plan_command, *SHAPE, "--calibration", str(file))
    assert "was measured with 32 bits, the training has 16" in narrow
    other = refusal(plan_command, *SHAPE, "--calibration", str(file), "--gpu", "A100")
    assert "--gpu A100 contradicts --calibration, which is of CPU" in other


def test_a_slice_that_fails_ends_all_processes_with_its_reason(home: Path) -> None:
    target = (f"{MODELS}:gpt_10m", "--input", "2x999", "--token-ids", "--processes", "2")
    assert "the slice cannot be timed: IndexError" in refusal(calibrate_command, "--trace", *target)
    assert not home.exists()


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
    assert "--measure" in refusal(plan_command, *arguments)
    training = json.loads(run(plan_command, *arguments, "--measure", "-o", "json"))["training"]
    # Two products of 8 x 64 x 32; the input needs no gradient.
    assert training["model_flops"] == 100 * 2 * 2 * 64 * 32
