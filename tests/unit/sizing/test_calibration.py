"""Calibrations: lines through measured times, and devices with measured figures."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.sizing.calibration import read_calibration
from gangline.sizing.hardware import Precision, find_device, state_bytes
from gangline.sizing.layout import Layout, Sharding
from gangline.sizing.model import ModelShape, Recompute, ShapeError
from gangline.sizing.plan import PlanRequest, make_plan
from gangline.sizing.steptime import step_time
from gangline.sizing.traced import TracedModel
from gangline.sizing.transformer import TransformerModel

PEAK, RATE, PASS_S, BUS, START_S, UPDATE_S, COPY_S = 1e11, 4e10, 2e-3, 5e8, 3e-4, 2e-8, 5e-10


def measured(**changes: Any) -> dict[str, Any]:
    """A calibration of a machine that behaves exactly as the constants say."""
    runs = [{"flops": flops, "seconds": [2 * PASS_S + flops / RATE] * 15} for flops in (1e9, 2e9)]
    sweep = [
        {"bytes": size, "seconds": [START_S + size / BUS] * 15} for size in (2**12, 2**20, 2**26)
    ]
    content = {
        "format": "gangline.dev/calibration", "version": 1, "device": "cpu", "devices": 2,
        "memory_bytes": 8e9, "element": 4, "product": {"flops": PEAK, "seconds": [1.0, 1.1]},
        "layers": {"count": 2, "runs": runs},
        "output": {"flops": RATE / 2, "seconds": [1.0] * 15},
        "update": {"parameters": 1000, "seconds": [1000 * UPDATE_S] * 15},
        "copy": {"bytes": 2**23, "seconds": [2**23 * COPY_S] * 15},
        "all_reduce": sweep,
    }  # fmt: skip
    return content | changes


def test_the_figures_of_an_exact_machine_are_found() -> None:
    calibration = read_calibration(measured())
    device = calibration.device
    assert device.peak(4) == pytest.approx(PEAK)
    assert calibration.efficiency.middle == pytest.approx(RATE / PEAK)
    assert device.costs.pass_s == pytest.approx(PASS_S)
    assert device.costs.output_efficiency == pytest.approx(0.5)
    assert device.costs.update_s == pytest.approx(UPDATE_S)
    assert device.costs.copy_s == pytest.approx(COPY_S)
    assert device.bus_bandwidth == pytest.approx(BUS, rel=1e-6)
    assert device.collective_s == pytest.approx(START_S, rel=1e-6)


def test_the_time_of_a_step_follows_from_the_figures() -> None:
    device = read_calibration(measured()).device
    shape = ModelShape(6, 256, 4, 128, 16384, positions=128)
    layout = Layout(data=2, recompute=Recompute.NONE, micro_batch=8, global_batch=16)
    step = step_time(shape, layout, state_bytes(Precision.FP32), device, RATE / PEAK)
    output = 8 * 128 * 6 * 16384 * 256
    layers = 8 * TransformerModel(shape).sample_flops - output
    assert step.compute == pytest.approx(6 * PASS_S + layers / RATE + output / (RATE / 2))
    assert step.update == pytest.approx(shape.parameters * UPDATE_S)
    assert step.copies == 0, "DDP's copies are measured with the optimizer"
    # Communication takes the processors that compute, so nothing hides it.
    sent = 4 * shape.parameters
    assert step.data == pytest.approx(sent / BUS + sent / 25 / 2**20 * START_S)


def test_fsdp_copies_what_it_gathers_and_reduces() -> None:
    device = read_calibration(measured()).device
    states = state_bytes(Precision.FP32)
    layout = Layout(
        data=2, sharding=Sharding.PARAMETERS, recompute=Recompute.NONE, micro_batch=8,
        global_batch=32,
    )  # fmt: skip
    traced = TracedModel(parameters=10**6, batch=1, flops=1e9, saved_bytes=0, largest_module=1)
    step = traced.step(layout, states, device, 0.4)
    # Of 4 MB, in each of two micro-batches: its half and all of them in both passes, all gradients.
    assert step.copies == pytest.approx(2 * (2 * (2e6 + 4e6) + 4e6) * COPY_S)
    shape = ModelShape(6, 256, 4, 128, 16384, positions=128)
    step = step_time(shape, layout, states, device, 0.4)
    # The tied embedding stays gathered between the passes.
    blocks, ends = 4 * shape.parameters - 4 * 16384 * 256, 4 * 16384 * 256
    copied = 2 * (1.5 * (2 * blocks + ends) + blocks + ends)
    assert step.copies == pytest.approx(copied * COPY_S, rel=0.01)
    assert step.total > replace(step, copies=0.0).total


def test_a_plan_uses_the_calibration_in_place_of_the_prior() -> None:
    calibration = read_calibration(measured(device="NVIDIA H100 80GB HBM3", element=2))
    device = find_device("H100")
    assert calibration.device.name == device.name
    model = TransformerModel(ModelShape(12, 768, 12, 1024, 50257))
    plan = make_plan(PlanRequest(model, device, 8, calibration=calibration))
    assert plan.efficiency == calibration.efficiency
    assert any("measured" in assumption for assumption in plan.assumptions)


def test_range_holds_where_the_samples_are_a_small_part_of_a_step() -> None:
    random = np.random.default_rng(5)
    flops, anyway_s = (1e9, 2e9), 0.2
    inside = 0
    for _ in range(400):
        runs = [
            {
                "flops": flop,
                "seconds": list((anyway_s + flop / RATE) * random.normal(1, 0.02, 15)),
            }
            for flop in flops
        ]
        calibration = read_calibration(measured(layers={"count": 2, "runs": runs}))
        inside += calibration.efficiency.contains(RATE / PEAK)
    assert 0.75 < inside / 400 < 0.95


@given(st.lists(st.floats(1e-4, 10), min_size=15, max_size=15), st.floats(0.2, 5))
def test_noisy_times_never_give_a_negative_cost(seconds: list[float], factor: float) -> None:
    runs = [
        {"flops": 1e9, "seconds": seconds},
        {"flops": 2e9, "seconds": [second * factor for second in seconds]},
    ]
    calibration = read_calibration(measured(layers={"count": 2, "runs": runs}))
    assert calibration.device.costs.pass_s >= 0
    assert (
        0
        < calibration.efficiency.low
        < calibration.efficiency.middle
        < calibration.efficiency.high
        < 1
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "other"}, "is not the output"),
        ({"version": 2}, "has version 2, known is 1"),
        ({"layers": {}}, "is damaged"),
        ({"element": "four"}, "is damaged"),
        ({"update": {"parameters": 0, "seconds": [1]}}, "is damaged"),
        ({"product": {"flops": 1, "seconds": []}}, "is damaged"),
        ({"copy": {"bytes": 0, "seconds": [1]}}, "is damaged"),
        ({"update": {"parameters": 1, "seconds": [float("nan")]}}, "is damaged"),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ShapeError, match=problem):
        read_calibration(measured(**change))
