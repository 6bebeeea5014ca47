"""Layouts that a plan proposes: possible, fitting, ordered; and what it says when none fits."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.sizing.efficiency import Efficiency
from gangline.sizing.hardware import (
    DEVICES,
    Optimizer,
    Precision,
    UnknownDeviceError,
    find_device,
    state_bytes,
)
from gangline.sizing.layout import FREE, Layout, Sharding
from gangline.sizing.memory import memory_use, rank_states
from gangline.sizing.model import ModelShape, Recompute, ShapeError
from gangline.sizing.plan import PlanRequest, make_plan
from gangline.sizing.search import CHOICES, search
from gangline.sizing.sources.guess import guess_shape
from gangline.sizing.steptime import bandwidth_needed, step_time, step_traffic
from gangline.sizing.storage import daly_interval
from gangline.sizing.traced import TracedModel
from gangline.sizing.transformer import LEAST_CONTEXT_TOKENS, TransformerModel

SHAPE = ModelShape(32, 4096, 32, 4096, 32000, ffn=11008, gated=True, tied=False, biases=False)
MODEL = TransformerModel(SHAPE)
MIXED = state_bytes(Precision.MIXED)
H100 = find_device("H100")


@settings(max_examples=25)
@given(
    st.sampled_from(DEVICES), st.integers(1, 48), st.sampled_from([1e8, 1e9, 7e9, 3e10]),
    st.integers(0, 6),
)  # fmt: skip
def test_every_proposed_layout_is_possible_and_fits(device, devices, parameters, power) -> None:  # type: ignore[no-untyped-def]
    shape = guess_shape(parameters, 2048, {}).shape
    batch = devices * 2**power
    result = search(TransformerModel(shape), device, devices, batch, MIXED, Efficiency())
    assert len(result.fitting) <= CHOICES
    for candidate in result.fitting:
        candidate.layout.check(shape)
        assert candidate.layout.devices == devices
        assert candidate.layout.data * candidate.layout.micro_batch <= batch
        assert candidate.memory.high <= 0.95 * device.memory_bytes
    assert bool(result.fitting) == (result.nearest is None)


@given(st.integers(1, 64), st.sampled_from([1, 2, 4, 8]), st.sampled_from([*Sharding]))
def test_memory_never_grows_when_more_is_shared(data: int, tensor: int, sharding: Sharding) -> None:
    layout = Layout(data=data, tensor=tensor, sharding=sharding, global_batch=data)
    used = memory_use(SHAPE, layout, MIXED)
    wider = memory_use(SHAPE, replace(layout, data=2 * data, global_batch=2 * data), MIXED)
    assert wider.states <= used.states
    fuller = memory_use(SHAPE, replace(layout, recompute=Recompute.FULL), MIXED)
    assert fuller.activations <= used.activations


@given(st.floats(0.1, 0.8), st.floats(1.01, 3))
def test_a_step_takes_less_time_at_a_higher_efficiency(efficiency: float, factor: float) -> None:
    layout = Layout(data=16, tensor=2, global_batch=64)
    slow = step_time(SHAPE, layout, MIXED, H100, efficiency)
    fast = step_time(SHAPE, layout, MIXED, H100, min(efficiency * factor, 0.99))
    assert fast.compute < slow.compute
    assert fast.total <= slow.total


def test_the_needed_bandwidth_is_the_least_that_hides_communication() -> None:
    layout = Layout(data=64, sharding=Sharding.PARAMETERS, micro_batch=2, global_batch=512)
    needed = bandwidth_needed(
        lambda device: step_time(SHAPE, layout, MIXED, device, 0.42), H100, layout.devices
    )
    assert needed is not None
    for factor, is_hidden in ((1.01, True), (0.9, False)):
        device = replace(H100, node_bandwidth=needed * factor)
        taken = step_time(SHAPE, layout, MIXED, device, 0.42)
        assert (taken.exposed / taken.total <= 0.05) is is_hidden


def test_a_model_that_does_not_fit_names_the_nearest_layout_and_enough_devices() -> None:
    request = PlanRequest(TransformerModel(guess_shape(70e9, 2048, {}).shape), H100, 8)
    plan = make_plan(request)
    assert not plan.fits
    assert plan.nearest is not None
    assert plan.nearest.memory.high > 0.95 * 80e9
    assert plan.fitting_devices is not None
    assert make_plan(replace(request, devices=plan.fitting_devices)).fits


def test_a_deadline_that_is_missed_names_devices_that_would_meet_it() -> None:
    request = PlanRequest(MODEL, H100, 8, tokens=300e9, deadline_s=14 * 86_400)
    (miss,) = make_plan(request).misses
    enough = int(miss.partition("; ")[2].split()[0])
    assert make_plan(replace(request, devices=enough)).misses == ()


def test_a_budget_that_is_exceeded_is_named() -> None:
    request = PlanRequest(MODEL, H100, 8, tokens=300e9, price_per_device_hour=2.5, budget=100)
    assert "budget of 100" in make_plan(request).misses[0]


def test_cost_is_unknown_without_a_price() -> None:
    assert make_plan(PlanRequest(MODEL, H100, 8)).cost is None


@pytest.mark.parametrize("name", ["A101", "", "H1000", "gpu"])
def test_an_unknown_device_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownDeviceError, match="Known: V100"):
        find_device(name)


@pytest.mark.parametrize("name", ["h100", "NVIDIA-H100-80GB", "H100 80GB", "a100-40gb", "910B"])
def test_devices_are_found_by_usual_spellings(name: str) -> None:
    assert find_device(name).peak_flops > 3e14


def test_a_batch_that_no_layout_divides_is_refused() -> None:
    with pytest.raises(ShapeError):
        make_plan(PlanRequest(TransformerModel(ModelShape(1, 64, 1, 128)), H100, 7, global_batch=5))


@pytest.mark.parametrize(
    ("precision", "optimizer", "total"),
    [
        (Precision.FP32, Optimizer.ADAM, 16),
        (Precision.AUTOCAST, Optimizer.ADAM, 16),
        (Precision.MIXED, Optimizer.ADAM, 16),
        (Precision.MIXED_FP32_GRADIENTS, Optimizer.ADAM, 18),
        (Precision.BF16, Optimizer.ADAM, 8),
        (Precision.MIXED, Optimizer.ADAM_8BIT, 10),
        (Precision.MIXED, Optimizer.ADAFACTOR, 8.5),
        (Precision.MIXED, Optimizer.MOMENTUM, 12),
        (Precision.MIXED, Optimizer.SGD, 8),
    ],
)
def test_bytes_of_states(precision: Precision, optimizer: Optimizer, total: float) -> None:
    assert state_bytes(precision, optimizer).total == total


@given(st.floats(0.1, 600), st.floats(60, 1e7))
def test_the_interval_of_checkpoints_costs_least(save_s: float, failure_s: float) -> None:
    best = daly_interval(save_s, failure_s)

    def cost(interval: float) -> float:
        return save_s / (interval + save_s) + (interval + save_s) / 2 / failure_s

    if save_s < failure_s / 8:
        assert cost(best) <= min(cost(best * 0.8), cost(best * 1.25)) + 1e-9


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([*Sharding]))
def test_all_ranks_together_hold_at_least_one_copy_of_all_states(
    expert: int, tensor: int, sharding: Sharding
) -> None:
    shape = ModelShape(4, 512, 8, 128, 1000, experts=8, active_experts=2, tied=False, biases=False)
    layout = Layout(data=8, tensor=tensor, expert=expert, sharding=sharding, global_batch=8)
    held = sum(rank_states(shape, layout, MIXED)) * layout.devices
    needed = MIXED.total * shape.parameters
    if sharding is Sharding.PARAMETERS:
        assert held == pytest.approx(needed)
    else:
        assert held >= needed * (1 - 1e-9)


def test_long_samples_are_shared_by_context_parallelism() -> None:
    long = ModelShape(32, 4096, 32, 131_072, 32000, gated=True, tied=False, biases=False)
    plan = make_plan(PlanRequest(TransformerModel(long), H100, 64, global_batch=8))
    assert plan.choices
    assert any(choice.candidate.layout.context > 1 for choice in plan.choices)
    for choice in plan.choices:
        layout = choice.candidate.layout
        assert long.sequence // layout.context >= LEAST_CONTEXT_TOKENS
        assert (choice.candidate.step.context > 0) is (layout.context > 1)


def test_context_parallelism_divides_activations_and_gathers_keys_and_values() -> None:
    layout = Layout(data=1, context=4, sharding=Sharding.PARAMETERS)
    alone = replace(layout, context=1)
    spread, whole = memory_use(SHAPE, layout, MIXED), memory_use(SHAPE, alone, MIXED)
    assert spread.activations == pytest.approx(whole.activations / 4)
    sent = step_traffic(SHAPE, layout, MIXED).context
    # Three times (forward, backward, gradients) the keys and values of the three other ranks.
    assert sent == 32 * 3 * 3 * (4096 / 4) * 2 * 4096 * 2
    assert step_traffic(SHAPE, alone, MIXED).context == 0


def test_context_parallelism_needs_two_equal_parts_of_a_sample_for_each_rank() -> None:
    shape = replace(SHAPE, sequence=4100)
    with pytest.raises(ShapeError, match="context: 2 x 4 does not divide the 4100 tokens"):
        Layout(context=4).check(shape)


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA-A100-SXM4-40GB", "A100-40GB"),
        ("Tesla-V100-SXM2-16GB", "V100-16GB"),
        ("NVIDIA-GeForce-RTX-4090", "RTX4090"),
        ("NVIDIA-L40S", "L40S"),
    ],
)
def test_product_names_of_drivers_and_node_labels_are_known(product: str, name: str) -> None:
    assert find_device(product).name == name


@pytest.mark.parametrize(
    ("pipeline", "virtual", "factor"),
    [
        pytest.param(4, 1, 1.0, id="32 layers in 4 stages"),
        pytest.param(5, 1, 7 * 5 / 32, id="32 layers in 5 stages of at most 7"),
        pytest.param(3, 1, 11 * 3 / 32, id="32 layers in 3 stages of at most 11"),
        pytest.param(4, 4, 1.0, id="interleaved, 16 parts of 2"),
        pytest.param(3, 2, 2 * 6 * 3 / 32, id="interleaved, 6 parts of at most 6"),
    ],
)
def test_all_pipeline_stages_wait_for_the_fullest(
    pipeline: int, virtual: int, factor: float
) -> None:
    shape = replace(SHAPE, vocab=0)
    layout = Layout(pipeline=pipeline, virtual=virtual, global_batch=60)
    uneven = step_time(shape, layout, MIXED, H100, 0.4)
    alone = step_time(shape, replace(layout, pipeline=1, virtual=1), MIXED, H100, 0.4)
    assert uneven.compute == pytest.approx(alone.compute / pipeline * factor)
    assert uneven.bubble == pytest.approx(uneven.compute * (pipeline - 1) / (virtual * 60))


def test_the_output_layer_delays_a_pipeline_unless_the_last_stage_has_fewer_layers() -> None:
    def compute(layers: int, vocab: int) -> float:
        shape = replace(SHAPE, layers=layers, vocab=vocab)
        layout = Layout(pipeline=4, global_batch=64)
        return step_time(shape, layout, MIXED, H100, 0.4).compute

    output = 64 * 4096 * 6 * 32000 * 4096 / (H100.peak_flops * 0.4)
    assert compute(32, 32000) - compute(32, 0) == pytest.approx(output)
    # 31 layers: the last of 4 stages has 7 and the output layer, which takes less than a layer.
    assert compute(31, 32000) == pytest.approx(compute(31, 0))
    assert compute(31, 0) == pytest.approx(compute(32, 0))


def test_the_layers_of_llama_3_405b_are_interleaved_although_no_number_of_stages_divides_them() -> (
    None
):
    """Dubey et al., 2024: 126 layers in 16 interleaved stages, 8 tensor and 128 data ranks."""
    shape = ModelShape(
        126, 16384, 128, 8192, 128256, kv_heads=8, ffn=53248, gated=True, tied=False, biases=False
    )
    proposed = [
        layout
        for layout in TransformerModel(shape).layouts(H100, 16_384, 2048, FREE)
        if (layout.tensor, layout.pipeline, layout.data) == (8, 16, 128)
    ]
    assert {layout.virtual for layout in proposed} == {1, 2, 4}
    assert {layout.stage_layers(126) for layout in proposed} == {8}


def test_utilisation_in_32_bits_is_a_share_of_the_peak_in_32_bits() -> None:
    request = PlanRequest(MODEL, H100, 8, tokens=1e9, precision=Precision.FP32, efficiency=0.4)
    (choice, *_) = make_plan(replace(request, optimizer=Optimizer.SGD)).choices
    work = choice.candidate.layout.global_batch * MODEL.sample_flops / 8
    assert choice.utilisation == pytest.approx(work / choice.step_s.middle / 67e12)
    assert 0.3 < choice.utilisation <= 0.4


def test_causal_attention_counts_half_of_the_pairs() -> None:
    causal = TransformerModel(replace(SHAPE, causal=True))
    saved = MODEL.sample_flops - causal.sample_flops
    assert saved == 4096 * 6 * 32 * 4096 * 4096
    layout = Layout(data=8, recompute=Recompute.NONE, global_batch=8)
    full, half = (model.step(layout, MIXED, H100, 0.4) for model in (MODEL, causal))
    assert full.compute - half.compute == pytest.approx(saved / (H100.peak_flops * 0.4))


@pytest.mark.parametrize(
    ("devices", "node_devices"),
    [(4, 4), (8, 8), (12, 6), (20, 5), (36, 6), (13, 1), (16, 8), (24, 8)],
)
def test_all_nodes_of_a_plan_have_equally_many_gpus(devices: int, node_devices: int) -> None:
    plan = make_plan(PlanRequest(MODEL, H100, devices, tokens=1e9))
    assert (plan.nodes, plan.node_devices) == (devices // node_devices, node_devices)
    assert plan.fits
    for choice in plan.choices:
        assert choice.candidate.layout.devices == devices
        assert node_devices % choice.candidate.layout.tensor == 0
    has_note = any("do not fill nodes of 8" in assumption for assumption in plan.assumptions)
    assert has_note is (devices > 8 and node_devices < 8)


def test_smaller_groups_of_a_node_are_tried_if_no_layout_fits_the_larger_ones() -> None:
    # Two ranks of a node of six cannot hold a layer of 13 billion parameters, four of a node can.
    wide = TransformerModel(ModelShape(2, 32_768, 256, 1024, 1000))
    request = PlanRequest(wide, replace(H100, memory_bytes=60e9), 12, tokens=1e9, global_batch=12)
    plan = make_plan(request)
    assert plan.fits
    assert (plan.nodes, plan.node_devices) == (3, 4)
    assert plan.choices[0].candidate.layout.tensor == 4


def test_processors_follow_from_the_cost_of_a_sample() -> None:
    model = TracedModel(25_557_032, 8, 1.94e11, 687e6, 2_359_296, input_bytes=8 * 602_112)
    plan = make_plan(PlanRequest(model, find_device("A100"), 16, tokens=1e8, sample_cpu_s=0.01))
    assert plan.host is not None
    samples_per_s = plan.choices[0].tokens_per_s.high / 16
    assert plan.host.loader_workers == math.ceil(samples_per_s * 0.01)
    assert plan.host.device_cpus == plan.host.loader_workers + 2
    assert plan.host.data_bytes_per_s == pytest.approx(16 * samples_per_s * 3 * 224 * 224 * 4)
    assert not any("--sample-cpu" in assumption for assumption in plan.assumptions)
    assumed = make_plan(PlanRequest(model, find_device("A100"), 16, tokens=1e8))
    assert any("--sample-cpu" in assumption for assumption in assumed.assumptions)


def test_tokens_need_one_process_that_loads_them() -> None:
    plan = make_plan(PlanRequest(MODEL, H100, 64, tokens=1e9))
    assert plan.host is not None
    assert plan.host.loader_workers == 1
    assert plan.host.data_bytes_per_s == pytest.approx(4 * plan.choices[0].tokens_per_s.high)
