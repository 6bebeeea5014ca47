"""Traces of real PyTorch models, and plans that rest on them."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from gangline.cli.commands.plan import plan_command
from gangline.sizing.hardware import find_device
from gangline.sizing.model import ModelShape, ShapeError, model_per_token
from gangline.sizing.plan import PlanRequest, make_plan
from gangline.sizing.sources import trace
from gangline.sizing.traced import TracedModel, read_trace

MODELS = Path(__file__).parent / "models" / "traced_models.py"


def run_trace(function: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, trace.__file__, f"{MODELS}:{function}", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=200)


@cache
def traced(function: str, *arguments: str) -> TracedModel:
    return read_trace(json.loads(run_trace(function, *arguments).stdout))


def test_s19_resnet_50() -> None:
    """25.6 million parameters, 8.2 billion operations forward for an image of 224 x 224."""
    model = traced("resnet50", "--input", "8x3x224x224")
    assert model.parameters == pytest.approx(25.6e6, rel=0.01)
    assert model.sample_flops / 3 == pytest.approx(8.2e9, rel=0.02)
    assert not model.is_lower_bound
    assert model.sample_bytes == 3 * 224 * 224 * 4


def test_s9_a_traced_encoder_decoder_needs_what_the_estimator_of_deepspeed_says() -> None:
    """DeepSpeed's estimator for T5-small on one GPU: 1.08 GB with ZeRO-3."""
    arguments = ["--trace", f"{MODELS}:t5_small", "--input", "2x64", "--token-ids"]
    arguments += ["--samples", "1M", "--epochs", "90", "--gpus", "1"]
    result = CliRunner().invoke(plan_command, [*arguments, "--as", "deepspeed"])
    assert result.exit_code == 0, result.output
    sizes = {tuple(line.split()[:2]): line.split()[-2] for line in result.output.splitlines()}
    assert sizes["ZeRO-3", "none"] == "1.08"
    planned = CliRunner().invoke(plan_command, [*arguments, "--gpu", "A100"])
    assert "60.5M parameters, traced" in planned.output
    assert "90M samples" in planned.output


def test_a_traced_transformer_needs_what_its_shape_says() -> None:
    model = traced("language_model", "--input", "4x128", "--tokens")
    shape = ModelShape(4, 256, 4, 128, 1000, tied=False)
    # PyTorch's encoder has no normalisation at its end.
    assert model.parameters == shape.parameters - 2 * 256
    assert model.sample_bytes == 128 * 8  # token ids have 64 bits
    assert model.sample_flops / 128 == pytest.approx(model_per_token(shape), rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet50", "--input", "8x3x"], "--input"),
        (["resnet50", "--input", "8x5x224x224"], "Invalid channel dimensions"),
        (["broken", "--input", "8"], "no such data set"),
        (["nothing", "--input", "8"], "has no function 'nothing'"),
    ],
)
def test_what_cannot_be_traced_is_explained(arguments: list[str], message: str) -> None:
    done = run_trace(*arguments)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_of_a_traced_model_spreads_it_by_data_parallelism_only() -> None:
    model = TracedModel(25_557_032, 8, 1.94e11, 687e6, 2_359_296)
    plan = make_plan(PlanRequest(model, find_device("A100"), 16, tokens=1.28e6 * 90))
    assert plan.fits
    for choice in plan.choices:
        assert choice.candidate.layout.data == 16
    assert plan.efficiency.high / plan.efficiency.low > 2


def test_a_trace_without_formulas_is_a_lower_bound_and_says_so() -> None:
    model = TracedModel(1000, 1, 1e6, 1e3, 1000, coverage=0.5, uncounted={"my.operator": 3})
    plan = make_plan(PlanRequest(model, find_device("A100"), 1, tokens=1000))
    assert any("lower bound" in each and "my.operator" in each for each in plan.assumptions)


@pytest.mark.parametrize("found", [{}, {"parameters": 0}, {"parameters": "many"}])
def test_what_is_no_trace_is_refused(found: dict[str, object]) -> None:
    with pytest.raises(ShapeError):
        read_trace(found)


def test_a_trace_needs_an_input_and_samples() -> None:
    for arguments in (["--trace", "a.py:b"], ["--trace", "a.py:b", "--input", "8x3"]):
        result = CliRunner().invoke(plan_command, arguments)
        assert result.exit_code == 2
