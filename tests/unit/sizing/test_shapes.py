"""Where shapes come from, and what is refused."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.sizing.model import ModelShape, ShapeError, attention_per_token
from gangline.sizing.sources.guess import guess_shape
from gangline.sizing.sources.huggingface import shape_from_config

LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
MIXTRAL = LLAMA_3_8B | {
    "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
QWEN_2_5_7B = LLAMA_3_8B | {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "vocab_size": 152064,
}  # fmt: skip
GPT_2 = {
    "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "vocab_size": 50257,
}  # fmt: skip


def of(kind: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int,
       **more: object) -> dict[str, Any]:  # fmt: skip
    return {
        "model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": ffn,
        "vocab_size": vocab, "max_position_embeddings": 4096, **more,
    }  # fmt: skip


DEEPSEEK = of(
    "deepseek_v3", 61, 7168, 128, 128, 18432, 129280, q_lora_rank=1536, kv_lora_rank=512,
    qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, n_routed_experts=256,
    n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048,
    first_k_dense_replace=3, attention_bias=False,
)  # fmt: skip
GPT_OSS = of(
    "gpt_oss", 36, 2880, 64, 8, 2880, 201088, head_dim=64, num_local_experts=128,
    num_experts_per_tok=4, sliding_window=128,
)  # fmt: skip
SCOUT = of(
    "llama4_text", 48, 5120, 40, 8, 8192, 202048, head_dim=128, num_local_experts=16,
    num_experts_per_tok=1, interleave_moe_layer_step=1, intermediate_size_mlp=16384,
)  # fmt: skip
GLM_45_AIR = of(
    "glm4_moe", 46, 4096, 96, 8, 10944, 151552, head_dim=128, moe_intermediate_size=1408,
    n_routed_experts=128, n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=1,
    attention_bias=True, use_qk_norm=False,
)  # fmt: skip
QWEN_3_30B = of(
    "qwen3_moe", 48, 2048, 32, 4, 6144, 151936, head_dim=128, moe_intermediate_size=768,
    num_experts=128, num_experts_per_tok=8,
)  # fmt: skip
GEMMA_3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32,
        "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (DEEPSEEK, 671_026_404_352),
        (GPT_OSS, 116_829_156_672),
        (GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32}, 20_914_757_184),
        (of("gemma2", 26, 2304, 8, 4, 9216, 256000, head_dim=256), 2_614_341_888),
        (of("gemma3_text", 26, 1152, 4, 1, 6912, 262144, head_dim=256), 999_885_952),
        (GEMMA_3_27B, 27_009_346_304),
        (of("olmo2", 32, 4096, 32, 32, 11008, 100352), 7_298_617_344),
        (of("olmo2", 64, 5120, 40, 8, 27648, 100352), 32_234_279_936),
        ({"model_type": "llama4", "text_config": SCOUT}, 107_769_861_120),
        (SCOUT | {"num_local_experts": 128, "interleave_moe_layer_step": 2}, 400_711_848_960),
        (of("glm4", 40, 4096, 32, 2, 13696, 151552, attention_bias=True), 9_400_279_040),
        (GLM_45_AIR, 106_852_245_504),
        (QWEN_3_30B, 30_532_122_624),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else "",
)
def test_current_architectures_have_the_parameters_of_their_library(
    config: dict[str, Any], parameters: int
) -> None:
    """Counted in the models of ``transformers`` 5 that these configurations make."""
    assert shape_from_config(config).parameters == parameters


def test_experts_and_windows_count_as_operations_where_a_token_meets_them() -> None:
    deepseek = shape_from_config(DEEPSEEK)
    # 37 billion parameters are active (DeepSeek-AI, 2024); the input embeddings do not multiply.
    assert deepseek.active_matrix == pytest.approx(37.55e9 - 129280 * 7168, rel=0.005)
    gemma = shape_from_config(of("gemma2", 26, 2304, 8, 4, 9216, 256000, head_dim=256), 8192)
    windowed = attention_per_token(gemma) / attention_per_token(replace(gemma, windowed_layers=0))
    assert windowed == (13 + 13 * 4096 / 8192) / 26


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA_3_8B, 8_030_261_248),
        (MIXTRAL, 46_702_792_704),
        (QWEN_2_5_7B, 7_615_616_512),
        (GPT_2, 124_439_808),
    ],
    ids=["llama", "mixtral", "qwen2", "gpt2"],
)
def test_configurations_yield_the_parameters_of_the_model_cards(
    config: dict[str, Any], parameters: int
) -> None:
    assert shape_from_config(config).parameters == parameters


def test_a_sample_has_at_most_8192_tokens_unless_more_are_asked_for() -> None:
    assert shape_from_config(LLAMA_3_8B).sequence == 8192
    assert shape_from_config(LLAMA_3_8B, 32768).sequence == 32768


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"attention_bias": True}, "attention_bias"),
        ({"num_attention_heads": 33, "num_key_value_heads": 33}, "heads"),
        ({"num_key_value_heads": 5}, "kv-heads"),
    ],
)
def test_a_wrong_configuration_is_refused_by_its_key(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ShapeError) as raised:
        shape_from_config(LLAMA_3_8B | change)
    assert raised.value.field == field


@pytest.mark.parametrize(
    "config",
    [{"model_type": "t5", "d_model": 512}, LLAMA_3_8B | {"is_encoder_decoder": True}],
    ids=["t5", "by its key"],
)
def test_an_encoder_decoder_is_refused_by_name_with_what_would_do(config: dict[str, Any]) -> None:
    with pytest.raises(ShapeError, match=r"is an encoder-decoder.*--trace") as raised:
        shape_from_config(config)
    assert config["model_type"] in str(raised.value)


@given(st.dictionaries(st.sampled_from([*LLAMA_3_8B]), st.none() | st.integers() | st.text()))
def test_no_configuration_causes_another_error(change: dict[str, Any]) -> None:
    with contextlib.suppress(ShapeError):
        shape_from_config(LLAMA_3_8B | change)


@given(st.floats(1e6, 2e12), st.integers(1, 65536))
def test_a_guessed_shape_has_exactly_the_parameters(parameters: float, sequence: int) -> None:
    shape = guess_shape(parameters, sequence, {}).shape
    assert shape.parameters == round(parameters)
    matrices = 12 * shape.layers * shape.hidden**2
    assert 0.5 < matrices / parameters < 2 or parameters < 1e8


@pytest.mark.parametrize("name", ["vocab_size", "intermediate_size", "num_key_value_heads"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "8", True])
def test_a_size_that_is_none_is_refused_by_its_key(name: str, value: object) -> None:
    with pytest.raises(ShapeError, match="must be a whole number of at least 1") as raised:
        shape_from_config(LLAMA_3_8B | {name: value})
    assert raised.value.field == name


def test_contradicting_dimensions_are_refused() -> None:
    with pytest.raises(ShapeError) as raised:
        guess_shape(7e9, 2048, {"layers": 2, "hidden": 128})
    assert raised.value.field == "params"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"heads": 7}, "heads"),
        ({"layers": 0}, "layers"),
        ({"experts": 8, "active_experts": 9}, "active-experts"),
        ({"experts": 8}, "active-experts"),
    ],
)
def test_an_impossible_model_is_refused(fields: dict[str, int], field: str) -> None:
    possible = {"layers": 4, "hidden": 512, "heads": 8, "sequence": 128}
    with pytest.raises(ShapeError) as raised:
        ModelShape(**possible | fields)
    assert raised.value.field == field


def test_a_configuration_is_read_by_the_command(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from gangline.cli.commands.plan import plan_command

    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA_3_8B))
    result = CliRunner().invoke(plan_command, ["--config", str(file), "--gpus", "8", "-o", "json"])
    assert result.exit_code == 0
    assert json.loads(result.output)["model"]["parameters"] == 8_030_261_248
