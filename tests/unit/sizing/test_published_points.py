"""Predictions against published figures: papers, model cards, estimators.

An efficiency is published with each of them, so that the prediction is exact.
"""

import pytest

from gangline.sizing.hardware import Precision, state_bytes
from gangline.sizing.layout import Layout, Sharding
from gangline.sizing.memory import deepspeed_estimates, layer_activations, memory_use, zero_states
from gangline.sizing.model import ModelShape, Recompute, hardware_per_token, model_per_token
from gangline.sizing.search import TIGHT
from gangline.sizing.steptime import all_reduce_bytes
from gangline.sizing.storage import CHECKPOINT_BYTES

MIXED = state_bytes(Precision.MIXED)
A100_FLOPS = 312e12
DAY_S = 86_400


def gpt(layers: int, hidden: int, heads: int, vocab: int = 51200, **more: object) -> ModelShape:
    shape = {"sequence": 2048, "vocab": vocab, "positions": 2048, **more}
    return ModelShape(layers, hidden, heads, **shape)  # type: ignore[arg-type]


def llama(
    layers: int, hidden: int, heads: int, ffn: int, *, vocab: int = 32000, kv: int = 0,
    sequence: int = 2048,
) -> ModelShape:  # fmt: skip
    return ModelShape(
        layers, hidden, heads, sequence, vocab, kv_heads=kv, ffn=ffn, gated=True, tied=False,
        biases=False,
    )  # fmt: skip


GPT_3 = gpt(96, 12288, 96, 50257)
BLOOM = ModelShape(70, 14336, 112, 2048, 250880, embedding_norm=True)
NEOX = ModelShape(44, 6144, 64, 2048, 50432, tied=False)
LLAMA_3_405 = llama(126, 16384, 128, 53248, vocab=128256, kv=8, sequence=8192)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        (GPT_3, 174_604_259_328),
        (BLOOM, 176_247_271_424),
        (NEOX, 20_554_567_680),
        (llama(32, 4096, 32, 11008), 6_738_415_616),
        (llama(40, 5120, 40, 13824), 13_015_864_320),
        (llama(60, 6656, 52, 17920), 32_528_943_616),
        (llama(32, 4096, 32, 14336, vocab=128256, kv=8), 8_030_261_248),
        (llama(80, 8192, 64, 28672, vocab=128256, kv=8), 70_553_706_496),
        (LLAMA_3_405, 405_853_388_800),
    ],
)
def test_parameters_equal_those_of_the_checkpoints(shape: ModelShape, parameters: int) -> None:
    assert shape.parameters == parameters


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "batch", "gpus", "teraflops", "billions", "seconds"),
    [
        (24, 2304, 24, 512, 32, 137, 1.65, 3.53),
        (30, 3072, 32, 512, 64, 138, 3.56, 3.70),
        (36, 4096, 32, 512, 128, 142, 7.47, 3.70),
        (40, 6144, 48, 1024, 256, 135, 18.4, 9.40),
        (48, 8192, 64, 1536, 512, 138, 39.1, 14.45),
        (60, 10240, 80, 1792, 1024, 140, 76.1, 16.06),
        (80, 12288, 96, 2304, 1536, 148, 145.6, 24.82),
        (96, 16384, 128, 2160, 1920, 155, 310.1, 37.61),
        (128, 25600, 160, 3072, 3072, 163, 1008.0, 102.6),
    ],
)
def test_s2_to_s4_megatron(
    layers: int, hidden: int, heads: int, batch: int, gpus: int, teraflops: float,
    billions: float, seconds: float,
) -> None:  # fmt: skip
    """Narayanan et al., 2021, table 1, with full recomputation."""
    shape = gpt(layers, hidden, heads)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    work = batch * 2048 * hardware_per_token(shape, Recompute.FULL)
    assert work / (gpus * teraflops * 1e12) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "batch", "gpus", "pipeline"),
    [(gpt(40, 6144, 48), 1024, 256, 1), (gpt(48, 8192, 64), 1536, 512, 2),
     (gpt(60, 10240, 80), 1792, 1024, 4)],
)  # fmt: skip
def test_s3_megatron_fits_into_80_gb(
    shape: ModelShape, batch: int, gpus: int, pipeline: int
) -> None:
    layout = Layout(
        data=gpus // 8 // pipeline, tensor=8, pipeline=pipeline, recompute=Recompute.FULL,
        global_batch=batch,
    )  # fmt: skip
    assert memory_use(shape, layout, MIXED).high < TIGHT * 80e9


@pytest.mark.parametrize(
    ("shape", "tokens", "gpus", "teraflops", "days"),
    [(gpt(96, 12288, 96), 300e9, 1024, 140, 34), (gpt(128, 25600, 160), 450e9, 3072, 163, 84)],
)
def test_s5_megatron_end_to_end(
    shape: ModelShape, tokens: float, gpus: int, teraflops: float, days: float
) -> None:
    work = hardware_per_token(shape, Recompute.FULL) * tokens
    assert work / (gpus * teraflops * 1e12) / DAY_S == pytest.approx(days, rel=0.03)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "batch", "gpus", "seconds", "mfu"),
    [
        (48, 6144, 64, 4, 8, 1.10, 0.415),
        (96, 12288, 96, 64, 64, 13.75, 0.514),
        (105, 20480, 128, 280, 280, 37.83, 0.560),
    ],
)
def test_s6_korthikanti_utilisation(
    layers: int, hidden: int, heads: int, batch: int, gpus: int, seconds: float, mfu: float
) -> None:
    """Korthikanti et al., 2022, table 5."""
    work = batch * 2048 * model_per_token(gpt(layers, hidden, heads))
    assert work / (gpus * A100_FLOPS * seconds) == pytest.approx(mfu, abs=0.01)


@pytest.mark.parametrize(
    ("recompute", "megabytes"),
    [(Recompute.SELECTIVE, 107), (Recompute.NONE, 359), (Recompute.FULL, 50 / 8)],
)
def test_s6_korthikanti_activations(recompute: Recompute, megabytes: float) -> None:
    """A layer of the 175 B model with 8 tensor ranks and sequence parallelism.

    With full recomputation the paper stores the inputs of layers undivided, sequence parallelism
    divides them, too.
    """
    shape = gpt(96, 12288, 96, dropout=True)
    size = layer_activations(shape, Layout(tensor=8, recompute=recompute))
    assert size / 1e6 == pytest.approx(megabytes, rel=0.01)


@pytest.mark.parametrize(
    ("billions", "ranks", "stages"),
    [
        (7.5, 1, (120, 120, 120)),
        (7.5, 4, (52.5, 41.3, 30)),
        (7.5, 64, (31.4, 16.6, 1.88)),
        (7.5, 1024, (30.1, 15.1, 0.117)),
        (1000, 64, (4187, 2218, 250)),
        (1000, 1024, (4011, 2013, 15.6)),
    ],
)
def test_s7_and_s8_zero(billions: float, ranks: int, stages: tuple[float, ...]) -> None:
    """Rajbhandari et al., 2020, table 1."""
    for sharding, gigabytes in zip((1, 2, 3), stages, strict=True):
        states = zero_states(billions * 1e9, MIXED, Sharding(sharding), ranks)
        assert sum(states) / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_s9_estimators_of_deepspeed() -> None:
    """DeepSpeed's documentation: t5-3b on 8 GPUs."""
    estimates = {
        (estimate.stage, estimate.offload): estimate.device_bytes / 2**30
        for estimate in deepspeed_estimates(2851e6, 32e6, 8)
    }
    assert estimates[2, "none"] == pytest.approx(15.93, rel=0.01)
    assert estimates[2, "optimizer"] == pytest.approx(5.31, rel=0.01)
    assert estimates[3, "none"] == pytest.approx(6.10, rel=0.01)


def test_s9_t5_small() -> None:
    """DeepSpeed's estimator: 60 M parameters, the largest layer 16 M: 1.08 GB on one GPU."""
    vocab, hidden, ffn, layers = 32_128, 512, 2048, 6
    attention, mlp = 4 * hidden * hidden, 2 * hidden * ffn
    encoder = layers * (attention + mlp + 2 * hidden) + hidden + 32 * 8
    decoder = layers * (2 * attention + mlp + 3 * hidden) + hidden + 32 * 8
    parameters = vocab * hidden + encoder + decoder
    assert parameters == 60_506_624
    estimates = {
        (e.stage, e.offload): e for e in deepspeed_estimates(parameters, vocab * hidden, 1)
    }
    assert round(estimates[3, "none"].device_bytes / 2**30, 2) == 1.08
    assert round(estimates[3, "optimizer"].device_bytes / 2**30, 2) == 0.17
    assert round(estimates[3, "parameters and optimizer"].device_bytes / 2**30, 2) == 0.06


def test_s10_bloom() -> None:
    """BigScience: 329 GiB of weights, a checkpoint of 2.3 TiB, 60 GB on each GPU, 3.5 months."""
    assert BLOOM.parameters * 2 / 2**30 == pytest.approx(329, rel=0.01)
    assert BLOOM.parameters * CHECKPOINT_BYTES / 2**40 == pytest.approx(2.3, rel=0.05)
    layout = Layout(
        data=8, tensor=4, pipeline=12, sharding=Sharding.OPTIMIZER, recompute=Recompute.FULL,
        micro_batch=2, global_batch=2048,
    )  # fmt: skip
    used = memory_use(BLOOM, layout, state_bytes(Precision.MIXED_FP32_GRADIENTS))
    # What was measured includes the allocator's cache.
    assert 0.65 * 60e9 < used.total < 1.05 * 60e9
    work = hardware_per_token(BLOOM, Recompute.FULL) * 366e9
    assert work / (384 * 150e12) / DAY_S == pytest.approx(106, rel=0.10)


def test_s11_opt() -> None:
    """Zhang et al., 2022: 992 A100-80GB at 147 teraflops each."""
    shape = gpt(96, 12288, 96, 50272)
    work = hardware_per_token(shape, Recompute.FULL)
    assert 992 * 147e12 / work == pytest.approx(101_700, rel=0.02)
    for recompute, fits in ((Recompute.FULL, True), (Recompute.SELECTIVE, False)):
        layout = Layout(
            data=124, tensor=8, sharding=Sharding.PARAMETERS, recompute=recompute,
            micro_batch=8, global_batch=992,
        )  # fmt: skip
        high = memory_use(shape, layout, MIXED).high
        assert (high < TIGHT * 80e9) is fits


def test_s15_llama_3_405b() -> None:
    """Dubey et al., 2024: 400 teraflops, 16 M tokens a step."""
    step_s = 16e6 * model_per_token(LLAMA_3_405) / (16_384 * 400e12)
    assert 6.2 < step_s < 6.7


def test_s17_gpt_neox() -> None:
    """Black et al., 2022: 96 A100-40GB at 117 teraflops; 1,830 hours."""
    hours = [
        hardware_per_token(NEOX, recompute) * 472e9 / (96 * 117e12) / 3600
        for recompute in (Recompute.NONE, Recompute.FULL)
    ]
    assert hours == pytest.approx([1497, 1988], rel=0.01)


def test_s20_all_reduce_of_nccl() -> None:
    """nccl-tests: 1 GB among 8 GPUs at a bus bandwidth of 230 GB/s."""
    assert all_reduce_bytes(1e9, 8) / 230e9 == pytest.approx(7.6e-3, rel=0.01)
