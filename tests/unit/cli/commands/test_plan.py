"""``gangline plan``: options that contradict each other, goals, jobs that are checked."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gangline.cli.commands.plan import NOTHING_FITS, plan_command
from gangline.cli.errors import to_command_error

SEVEN_BILLION = ("--params", "7B", "--seq", "4096", "--tokens", "300B")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(plan_command, list(arguments))


def message(result: Result) -> str:
    """Return what the user reads, whichever way the command fails."""
    if isinstance(result.exception, SystemExit):
        return result.output
    assert isinstance(result.exception, Exception)
    return str(to_command_error(result.exception))


@pytest.fixture(autouse=True)
def no_calibrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job as ``-o job`` prints it."""
    result = run(*SEVEN_BILLION, "--gpus", "16", "-o", "job", "--", "train.py")
    assert result.exit_code == 0, result.output
    file = tmp_path / "job.yaml"
    file.write_text(result.output)
    return file


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "the model is missing"),
        (("--params", "7B", "--gpus", "12", "--nodes", "2"), "contradicts --nodes 2"),
        (("--params", "7B", "--budget", "100"), "--budget needs --price"),
        (("--params", "7B", "--price", "0"), "must be greater than 0"),
        (("--params", "7B", "--price", "nan"), "must be greater than 0"),
        (("--params", "7B", "--deadline", "soon"), "is not a duration such as 36h or 7d"),
        (("--params", "7B", "--deadline", "0d"), "must be greater than 0"),
        (("--params", "7B", "--gpu", "H1000"), "unknown GPU 'H1000'"),
        (("--params", "7B", "--samples", "10"), "need --trace"),
        (("--params", "7B", "--input", "8x3"), "--input has no effect without --trace"),
        (("--params", "7B", "--measure"), "--measure has no effect without --trace"),
        (("--params", "7B", "--like", "a", "--check", "b"), "--like and --check name two jobs"),
        (("--params", "7B", "--efficiency", "0.4", "--calibration", "x"), "contradicts"),
        (("--params", "7B", "--active-experts", "2"), "--active-experts needs --experts"),
        (("--params", "7B", "train.py"), "needs -o job"),
        (("--params", "7B", "--layers", "2", "--hidden", "64"), "contradict 2 layers"),
        (("--trace", "a.py:b", "--params", "7B"), "--trace contradicts --params"),
        (("--trace", "a.py:b", "--tokens", "7B"), "give --samples in place of --tokens"),
        (
            ("--layers", "2", "--hidden", "100", "--heads", "7", "--vocab", "10"),
            "7 do not divide hidden 100; 5 would",
        ),
        (
            ("--layers", "2", "--hidden", "96", "--heads", "6", "--kv-heads", "4"),
            "4 do not divide the 6 heads",
        ),
        (
            ("--layers", "1", "--hidden", "64", "--heads", "1", "--gpus", "7", "--batch", "3"),
            "no data parallelism of 7 devices divides the global batch 3",
        ),
    ],
)
def test_impossible_requests_are_refused_with_the_option_that_is_wrong(
    arguments: tuple[str, ...], text: str
) -> None:
    result = run(*arguments)
    assert result.exit_code != 0
    assert text in message(result)


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "mamba"}))
    result = run("--config", str(file))
    assert "'mamba' is not a known architecture; known: bloom" in message(result)


def test_the_fewest_gpus_that_meet_the_deadline_are_chosen() -> None:
    result = run(*SEVEN_BILLION, "--deadline", "14d", "-o", "json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.output)
    devices = plan["hardware"]["devices"]
    assert plan["layouts"][0]["training_s"]["p50"] <= 14 * 86_400
    half = run(*SEVEN_BILLION, "--deadline", "14d", "-o", "json", "--gpus", str(devices // 2))
    assert half.exit_code == NOTHING_FITS
    assert f"{devices} would meet it" in json.loads(half.output)["misses"][0]


def test_a_deadline_that_nothing_meets_names_the_shortest_training_and_fewer_tokens() -> None:
    result = run("--params", "70B", "--tokens", "300B", "--deadline", "1h")
    assert result.exit_code == NOTHING_FITS
    text = " ".join(result.output.split())
    assert "the deadline of 0.0417 days" in text
    assert "the shortest are" in text
    assert "of the tokens would meet it" in text


def test_a_budget_that_is_too_small_names_a_price_and_tokens_that_would_do() -> None:
    result = run(*SEVEN_BILLION, "--gpus", "8", "--price", "2", "--budget", "100")
    assert result.exit_code == NOTHING_FITS
    assert "of the tokens, or for all of them at" in " ".join(result.output.split())


def test_the_table_has_at_most_80_columns_and_says_what_the_ranges_are() -> None:
    for size, gpus in (("7B", "64"), ("405B", "16384")):
        result = run("--params", size, "--gpus", gpus, "--price", "2")
        assert max(map(len, result.output.splitlines())) <= 80
        for name in ("Best ", "Limit ", "Memory ", "Ranges     p10 - p50 - p90"):
            assert name in result.output


def test_a_planned_job_passes_its_own_check(job: Path) -> None:
    result = run("-f", str(job))
    assert result.exit_code == 0, result.output
    assert "too small" not in result.output
    assert "wasteful" not in result.output


@pytest.mark.parametrize(
    ("change", "resource", "verdict"),
    [
        ({"memory": "2Gi"}, "memory of a pod", "too small"),
        ({"memory": "4Ti"}, "memory of a pod", "wasteful"),
        ({"cpu": "2"}, "CPUs of a pod", "too small"),
        ({"cpu": "1000"}, "CPUs of a pod", "wasteful"),
    ],
)
def test_resources_of_the_wrong_size_are_named(
    job: Path, change: dict[str, str], resource: str, verdict: str
) -> None:
    manifest: dict[str, Any] = yaml.safe_load(job.read_text())
    for spec in manifest["spec"]["pytorchReplicaSpecs"].values():
        spec["template"]["spec"]["containers"][0]["resources"]["limits"].update(change)
    job.write_text(yaml.safe_dump(manifest))
    result = run("-f", str(job), "-o", "json")
    assert result.exit_code == (NOTHING_FITS if verdict == "too small" else 0), result.output
    verdicts = {each["resource"]: each["verdict"] for each in json.loads(result.output)}
    assert verdicts[resource] == verdict
    assert verdicts["GPUs"] == "fits"


def test_a_job_whose_gpus_cannot_hold_the_model_is_too_small(job: Path) -> None:
    result = run("-f", str(job), "--params", "400B")
    assert result.exit_code == NOTHING_FITS
    assert "no layout fits into 16 x H100-80GB" in " ".join(result.output.split())


def test_a_job_without_gpus_cannot_be_checked(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}))
    assert "requests no GPUs" in message(run("-f", str(file), "--params", "1B"))


def test_a_damaged_record_of_a_plan_is_named(job: Path) -> None:
    job.write_text(job.read_text().replace("layers", "storeys"))
    assert "gangline.dev/planned-training: is damaged" in message(run("-f", str(job)))
