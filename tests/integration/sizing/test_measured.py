"""Trainings in two processes on gloo need what was predicted before they started."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
CASES = ("mlp:64x784", "resnet18:4x3x64x64", "gpt_10m:2x128", "mixture:2x128", "lstm:2x32")
SHARDINGS = ("ddp", "fsdp")


@pytest.fixture(scope="module")
def report(
    tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> dict[tuple[str, str], dict[str, Any]]:
    """Predict and measure all cases once, for all workers of pytest-xdist."""
    folder = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        folder = folder.parent
    file = folder / "sizing.json"
    command = [sys.executable, "-m", "benchmarks.sizing.measured", "--report", str(file)]
    with (folder / "sizing.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            subprocess.run(
                [*command, "--cases", *CASES],
                cwd=ROOT,
                check=True,
                timeout=500,
                capture_output=True,
            )
    return {(row["case"], row["sharding"]): row for row in json.loads(file.read_text())}


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("sharding", SHARDINGS),
    pytest.mark.parametrize("case", CASES),
]


def test_states_are_exact(
    report: dict[tuple[str, str], dict[str, Any]], case: str, sharding: str
) -> None:
    row = report[case, sharding]
    assert row["predicted"]["state_bytes"] == row["measured"]["state_bytes"]


@pytest.mark.parametrize(
    ("quantity", "tolerance"),
    [("flops", 0.02), ("sent_bytes", 0.03), ("activation_bytes", 0.10)],
)
def test_operations_traffic_and_activations_are_as_predicted(
    report: dict[tuple[str, str], dict[str, Any]],
    case: str,
    sharding: str,
    quantity: str,
    tolerance: float,
) -> None:
    row = report[case, sharding]
    measured = row["measured"][quantity]
    assert row["predicted"][quantity] == pytest.approx(measured, rel=tolerance)
