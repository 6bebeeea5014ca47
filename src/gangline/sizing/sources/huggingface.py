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
    reader = _READERS.get(str(kind))
    if kind in ENCODER_DECODERS or config.get("is_encoder_decoder") is True:
        raise ShapeError(
            "model_type",
            f"{kind!r} is an encoder-decoder, whose two stacks of layers are not planned by their "
            "dimensions. Trace it with --trace instead",
        )
    if reader is None:
        raise ShapeError(
            "model_type",
            f"{kind!r} is not a known architecture; known: {', '.join(sorted(_READERS))}. "
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
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ShapeError(name, f"is {value!r}, must be a whole number")
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
        experts=keys.number("num_experts"),
        active_experts=keys.number("num_experts_per_tok"),
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
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "bloom": _bloom,
    "opt": _opt,
}
