"""Where shapes come from, and what is refused."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.sizing.model import ModelShape, ShapeError
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
