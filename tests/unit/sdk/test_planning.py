"""``gangline.sdk.plan``: plans from Python, without PyTorch and without a cluster."""

import subprocess
import sys

import pytest

from gangline import sdk


def test_a_plan_is_made_from_a_request() -> None:
    model = sdk.model_of_size(7e9, sequence=4096)
    planned = sdk.plan(sdk.PlanRequest(model, sdk.find_device("H100"), 64, tokens=300e9))
    assert isinstance(planned, sdk.Plan)
    assert planned.fits
    best = planned.choices[0]
    assert best.candidate.layout.devices == 64
    assert best.training_s.low < best.training_s.middle < best.training_s.high


def test_a_shape_is_planned_on_a_node_unless_goals_need_more() -> None:
    shape = sdk.ModelShape(12, 768, 12, 1024, 50257, positions=1024)
    request = sdk.PlanRequest(sdk.TransformerModel(shape), sdk.find_device("A100"))
    assert sdk.plan(request).request.devices == 8


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"devices": -1}, "gpus"),
        ({"tokens": -1.0}, "tokens"),
        ({"tokens": float("nan")}, "tokens"),
        ({"efficiency": 1.5}, "efficiency"),
        ({"price_per_device_hour": -2.0}, "price"),
        ({"deadline_s": float("inf")}, "deadline"),
        ({"budget": 100.0}, "budget"),
    ],
)
def test_impossible_figures_are_refused_by_name(change: dict[str, float], field: str) -> None:
    request = sdk.PlanRequest(sdk.model_of_size(1e9), sdk.find_device("A100"), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^{field}: "):
        sdk.plan(request)


def test_planning_imports_neither_torch_nor_a_client() -> None:
    program = (
        "import sys; from gangline import sdk;"
        "sdk.plan(sdk.PlanRequest(sdk.model_of_size(1e9), sdk.find_device('A100')));"
        "sys.exit(any(name in sys.modules for name in ('torch', 'aiohttp', 'gangline.kube')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
