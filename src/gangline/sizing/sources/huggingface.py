"""Shapes from the ``config.json`` of Hugging Face models.

Each architecture has its own key names and its own choice of biases and tied embeddings; those
listed here yield the exact number of parameters. Others are refused by name: a wrong guess would
look like knowledge.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gangline.sizing.model import ModelShape, ShapeError

ENCODER_DECODERS = ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "whisper")
"""Architectures that are known not to be of one stack of layers."""
_WITH_IMAGES = ("gemma3", "llama4")
"""Models with a part for images, which is not counted: the text's part is planned."""
_TIED = "tie_word_embeddings"
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "max_position_embeddings": 131_072,
    }
}  # fmt: skip
"""What published files leave out because it is the default of the library."""
LONGEST_DEFAULT = 8192
"""Tokens of a sample without ``sequence``, where the model would take more."""


def shape_from_config(config: Mapping[str, Any], sequence: int = 0) -> ModelShape:
    """Read the shape of a model.

    Args:
        config: the content of ``config.json``.
        sequence: tokens of a sample; 0: what the model was made for, at most 8,192.

    Raises:
        ShapeError: the architecture is unknown, or a key is missing or wrong.
    """
    kind = config.get("model_type")
    text = config.get("text_config")
    if kind in _WITH_IMAGES and isinstance(text, Mapping):
        tied = {"tie_word_embeddings": config[_TIED]} if _TIED in config else {}
        kind = f"{kind}_text"
        return shape_from_config(
            {**tied, **_DEFAULTS.get(kind, {}), **text, "model_type": kind}, sequence
        )
    reader = _READERS.get(str(kind))
    if kind in ENCODER_DECODERS or config.get("is_encoder_decoder") is True:
        raise ShapeError(
            "model_type",
            f"{kind!r} is an encoder-decoder, whose two stacks of layers are not planned by their "
            "dimensions. Trace it with --trace instead",
        )
    if reader is None:
        problem = "is missing" if kind is None else f"{kind!r} is not a known architecture"
        raise ShapeError(
            "model_type",
            f"{problem}; known: {', '.join(sorted(_READERS))}. "
            "Give --layers, --hidden, --heads and so on instead",
        )
    return reader(_Keys(config), sequence)


class _Keys:
    """The keys of a configuration, checked when they are read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def number(self, name: str, default: int | None = None) -> int:
        value = self._config.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise ShapeError(name, "is missing in config.json")
        least = 0 if default == 0 else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ShapeError(name, f"is {value!r}, must be a whole number of at least {least}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._config.get(name, default)
        if not isinstance(value, bool):
            raise ShapeError(name, f"is {value!r}, must be true or false")
        return value

    def refuse(self, name: str, expected: object) -> None:
        """Refuse a variant whose parameters are not counted here."""
        if (value := self._config.get(name, expected)) != expected:
            raise ShapeError(name, f"is {value!r}; only {expected!r} is supported")


def _length(most: int, sequence: int) -> int:
    return sequence or min(most, LONGEST_DEFAULT)


def _llama_like(keys: _Keys, sequence: int, **more: Any) -> ModelShape:
    heads, hidden = keys.number("num_attention_heads"), keys.number("hidden_size")
    fields: dict[str, Any] = {
        "layers": keys.number("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "sequence": _length(keys.number("max_position_embeddings"), sequence),
        "vocab": keys.number("vocab_size"),
        "kv_heads": keys.number("num_key_value_heads", heads),
        "head_size": keys.number("head_dim", 0),
        "ffn": keys.number("intermediate_size"),
        "gated": True,
        "tied": keys.flag("tie_word_embeddings"),
        "biases": False,
    }
    return ModelShape(**fields | more)


def _llama(keys: _Keys, sequence: int) -> ModelShape:
    keys.refuse("attention_bias", False)
    keys.refuse("mlp_bias", False)
    return _llama_like(keys, sequence)


def _mixtral(keys: _Keys, sequence: int) -> ModelShape:
    experts = keys.number("num_local_experts")
    active = keys.number("num_experts_per_tok")
    return _llama_like(keys, sequence, experts=experts, active_experts=active)


def _qwen2(keys: _Keys, sequence: int) -> ModelShape:
    return _llama_like(keys, sequence, qkv_biases=True)


def _qwen3(keys: _Keys, sequence: int) -> ModelShape:
    keys.refuse("attention_bias", False)
    return _llama_like(keys, sequence, qk_norms=True, head_size=keys.number("head_dim", 128))


def _qwen3_moe(keys: _Keys, sequence: int) -> ModelShape:
    keys.refuse("decoder_sparse_step", 1)
    keys.refuse("mlp_only_layers", [])
    return _llama_like(
        keys,
        sequence,
        qk_norms=True,
        head_size=keys.number("head_dim", 0),
        ffn=keys.number("moe_intermediate_size"),
        experts=keys.number("num_experts", keys.number("num_local_experts", 0)),
        active_experts=keys.number("num_experts_per_tok"),
    )


def _vectors(keys: _Keys, norms: int, *, biases: bool = False) -> int:
    """Count elements of ``norms`` more normalisations, and of biases of q, k and v if asked for."""
    hidden, heads = keys.number("hidden_size"), keys.number("num_attention_heads")
    head = keys.number("head_dim", hidden // max(heads, 1))
    qkv = head * (heads + 2 * keys.number("num_key_value_heads", heads))
    return norms * hidden + (qkv if biases else 0)


def _gemma2(keys: _Keys, sequence: int, **more: Any) -> ModelShape:
    tied = keys.flag("tie_word_embeddings", default=True)
    layers, window = keys.number("num_hidden_layers"), keys.number("sliding_window", 4096)
    fields = {"layer_vectors": _vectors(keys, 2), "windowed_layers": -(-layers // 2)} | more
    return _llama_like(
        keys, sequence, tied=tied, head_size=keys.number("head_dim", 256), window=window, **fields
    )


def _gemma3(keys: _Keys, sequence: int) -> ModelShape:
    """Six normalisations in a layer; one of ``sliding_window_pattern`` layers is not windowed."""
    layers, pattern = keys.number("num_hidden_layers"), keys.number("sliding_window_pattern", 6)
    windowed = layers - layers // max(pattern, 1)
    return _gemma2(keys, sequence, qk_norms=True, windowed_layers=windowed)


def _olmo2(keys: _Keys, sequence: int) -> ModelShape:
    """Queries and keys are normalised over all heads."""
    keys.refuse("attention_bias", False)
    hidden, heads = keys.number("hidden_size"), keys.number("num_attention_heads")
    head = hidden // max(heads, 1)
    norms = head * (heads + keys.number("num_key_value_heads", heads))
    return _llama_like(keys, sequence, layer_vectors=norms)


def _glm4(keys: _Keys, sequence: int) -> ModelShape:
    biases = keys.flag("attention_bias")
    return _llama_like(keys, sequence, layer_vectors=_vectors(keys, 2, biases=biases))


def _gpt_oss(keys: _Keys, sequence: int) -> ModelShape:
    """Everything has biases but the normalisations, and each head a sink."""
    hidden, ffn = keys.number("hidden_size"), keys.number("intermediate_size")
    experts, layers = keys.number("num_local_experts"), keys.number("num_hidden_layers")
    vectors = _vectors(keys, 1, biases=True) + keys.number("num_attention_heads")
    return _llama_like(
        keys,
        sequence,
        experts=experts,
        active_experts=keys.number("num_experts_per_tok"),
        layer_vectors=vectors + experts * (1 + 2 * ffn + hidden),
        window=keys.number("sliding_window", 128),
        windowed_layers=-(-layers // 2),
    )


def _routed(keys: _Keys, **more: Any) -> dict[str, Any]:
    """Read routed experts beside shared ones, after some dense layers."""
    width = keys.number("moe_intermediate_size")
    return {
        "ffn": width,
        "experts": keys.number("n_routed_experts"),
        "active_experts": keys.number("num_experts_per_tok"),
        "shared_ffn": width * keys.number("n_shared_experts", 0),
        "dense_layers": keys.number("first_k_dense_replace", 0),
        "dense_ffn": keys.number("intermediate_size"),
    } | more


def _glm4_moe(keys: _Keys, sequence: int) -> ModelShape:
    biases, norms = keys.flag("attention_bias"), keys.flag("use_qk_norm")
    vectors = _vectors(keys, 0, biases=biases)
    return _llama_like(keys, sequence, **_routed(keys, layer_vectors=vectors, qk_norms=norms))


def _deepseek_v3(keys: _Keys, sequence: int) -> ModelShape:
    """Multi-head latent attention; layers of multi-token prediction are not counted."""
    keys.refuse("attention_bias", False)
    keys.refuse("moe_layer_freq", 1)
    rope, kv_rank = keys.number("qk_rope_head_dim"), keys.number("kv_lora_rank")
    query_rank = keys.number("q_lora_rank", 0)
    return _llama_like(
        keys,
        sequence,
        **_routed(keys),
        kv_heads=0,
        head_size=keys.number("qk_nope_head_dim") + rope,
        query_rank=query_rank,
        kv_rank=kv_rank,
        rope_size=rope,
        value_size=keys.number("v_head_dim"),
        layer_vectors=query_rank + kv_rank,
    )


def _llama4(keys: _Keys, sequence: int) -> ModelShape:
    """One of ``interleave_moe_layer_step`` layers has experts, one of which sees all tokens."""
    keys.refuse("attention_bias", False)
    layers, step = keys.number("num_hidden_layers"), keys.number("interleave_moe_layer_step", 1)
    width = keys.number("intermediate_size")
    return _llama_like(
        keys,
        sequence,
        experts=keys.number("num_local_experts"),
        active_experts=keys.number("num_experts_per_tok"),
        shared_ffn=width,
        dense_layers=layers - layers // max(step, 1),
        dense_ffn=keys.number("intermediate_size_mlp"),
        window=keys.number("attention_chunk_size", 8192),
        windowed_layers=layers - layers // 4,
    )


def _gemma(keys: _Keys, sequence: int) -> ModelShape:
    tied = keys.flag("tie_word_embeddings", default=True)
    return _llama_like(keys, sequence, tied=tied, head_size=keys.number("head_dim", 256))


def _gpt2(keys: _Keys, sequence: int) -> ModelShape:
    positions = keys.number("n_positions", 1024)
    return ModelShape(
        layers=keys.number("n_layer"),
        hidden=keys.number("n_embd"),
        heads=keys.number("n_head"),
        sequence=_length(positions, sequence),
        vocab=keys.number("vocab_size"),
        ffn=keys.number("n_inner", 0),
        tied=keys.flag("tie_word_embeddings", default=True),
        positions=positions,
    )


def _gpt_neox(keys: _Keys, sequence: int) -> ModelShape:
    return ModelShape(
        layers=keys.number("num_hidden_layers"),
        hidden=keys.number("hidden_size"),
        heads=keys.number("num_attention_heads"),
        sequence=_length(keys.number("max_position_embeddings", 2048), sequence),
        vocab=keys.number("vocab_size"),
        ffn=keys.number("intermediate_size"),
        tied=keys.flag("tie_word_embeddings"),
    )


def _bloom(keys: _Keys, sequence: int) -> ModelShape:
    hidden = keys.number("hidden_size", keys.number("n_embed", 0))
    return ModelShape(
        layers=keys.number("n_layer"),
        hidden=hidden,
        heads=keys.number("n_head", keys.number("num_attention_heads", 0)),
        sequence=_length(keys.number("seq_length", 2048), sequence),
        vocab=keys.number("vocab_size"),
        tied=keys.flag("tie_word_embeddings", default=True),
        embedding_norm=True,
    )


def _opt(keys: _Keys, sequence: int) -> ModelShape:
    hidden = keys.number("hidden_size")
    keys.refuse("word_embed_proj_dim", hidden)
    keys.refuse("do_layer_norm_before", True)
    positions = keys.number("max_position_embeddings", 2048)
    return ModelShape(
        layers=keys.number("num_hidden_layers"),
        hidden=hidden,
        heads=keys.number("num_attention_heads"),
        sequence=_length(positions, sequence),
        vocab=keys.number("vocab_size"),
        ffn=keys.number("ffn_dim"),
        tied=keys.flag("tie_word_embeddings", default=True),
        positions=positions + 2,  # the first two are for padding
    )


_READERS: Mapping[str, Callable[[_Keys, int], ModelShape]] = {
    "llama": _llama,
    "mistral": _llama_like,
    "mixtral": _mixtral,
    "phi3": _llama_like,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "olmo2": _olmo2,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek_v3,
    "llama4_text": _llama4,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "bloom": _bloom,
    "opt": _opt,
}
