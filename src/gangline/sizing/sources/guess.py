"""A usual shape for a number of parameters, and what is assumed of a model that is not described.

Everything that is assumed is listed beside the shape, so that a plan can print it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gangline.api.figures import format_count, plain_number
from gangline.sizing.model import ModelShape, ShapeError, nearest_divisor

_ASPECT = 128
"""Width of a model for each layer, as in GPT-3 and Llama."""
_HEAD = 128
_STEPS = ((2048, 8 * _HEAD), (512, 2 * _HEAD), (0, _HEAD))
"""Widths are multiples of these from some width on, so that ranks can share heads and layers."""
_VOCABULARIES = (128_256, 50_257, 32_000, 8_192, 256)
"""Tokens of the vocabularies of Llama 3, GPT-2, Llama 2, a small model, and of bytes."""
_MOST_EMBEDDINGS = 1 / 3
"""Share of the parameters that the embeddings of an assumed vocabulary may have (GPT-2: 0.31)."""
_CLOSE = 0.10
"""Share by which a number of parameters may differ from what complete dimensions give: names such
as 7B are rounded (Llama 2 7B has 6.74 billion).
"""
_ACTIVE_EXPERTS = 2
"""Experts that process a token, as in Mixtral."""
_MLP_WIDTHS = (1.0, 8.0)
"""Widths of an MLP of two matrices, in widths of the model, that a dense model may have."""
_EXPERT_WIDTHS = (1 / 16, 16.0)
"""As ``_MLP_WIDTHS``, of an expert."""


@dataclass(frozen=True, slots=True)
class GuessedShape:
    """A shape, and what of it was assumed."""

    shape: ModelShape
    assumed: tuple[str, ...]
    """One line for each assumption of a plan."""


def guess_shape(parameters: float, sequence: int, fields: Mapping[str, int]) -> GuessedShape:
    """Return a shape with this number of parameters.

    Args:
        fields: fields of ``ModelShape`` that are given; 0: not given, except for ``tied``.

    Raises:
        ShapeError: the fields contradict the number.
    """
    if parameters < 1:
        raise ShapeError("params", f"is {plain_number(parameters)}, must be at least 1")
    given, notes = _given(fields)
    hidden = given.get("hidden") or _usual_width(parameters, given.get("layers", 0))
    matrices = 1 if given.get("tied", 1) else 2
    vocab = given.get("vocab") or usual_vocabulary(parameters, matrices * hidden)
    rest = parameters - matrices * vocab * hidden
    if rest <= 0:
        raise ShapeError(
            "params",
            f"{format_count(parameters)} contradict a vocabulary of {vocab:,} tokens: with a width "
            f"of {hidden} its embeddings alone have {format_count(parameters - rest)}",
        )
    shape = ModelShape(
        **{
            "layers": given.get("layers") or _usual_layers(rest, hidden),
            "hidden": hidden,
            "heads": nearest_divisor(hidden, max(hidden // _HEAD, 1)),
            "sequence": sequence,
            "biases": not given.get("gated"),
            **given,
            "tied": matrices == 1,
            "vocab": vocab,
        }  # type: ignore[arg-type]
    )
    if "ffn" in given:
        notes += _assumptions(shape, given)
        return GuessedShape(shape, (*notes, *_differences(shape, parameters)))
    fitted = _with_fitting_mlp(shape, parameters, is_checked=bool({"layers", "hidden"} & {*given}))
    return GuessedShape(fitted, (*notes, *_assumptions(fitted, given)))


def described_shape(sequence: int, fields: Mapping[str, int]) -> GuessedShape:
    """Return the shape of the given fields, with a usual vocabulary if none is given.

    Fields are those of ``ModelShape``, at least ``layers``, ``hidden`` and ``heads``; 0: not given,
    except for ``tied``.

    Raises:
        ShapeError: the model cannot exist.
    """
    given, notes = _given(fields)
    shape = ModelShape(sequence=sequence, biases=not given.get("gated"), **given)  # type: ignore[arg-type]
    if shape.vocab:
        return GuessedShape(shape, tuple(notes))
    matrices = 1 if shape.tied else 2
    # The share of embeddings counts in the complete model, of which the layers are the rest.
    layers = shape.layers * shape.layer_parameters / (1 - _MOST_EMBEDDINGS)
    shape = replace(shape, vocab=usual_vocabulary(layers, matrices * shape.hidden))
    return GuessedShape(shape, (*notes, _vocabulary_note(shape)))


def usual_vocabulary(parameters: float, token_parameters: int) -> int:
    """Return a usual number of tokens; 0 for models so small that none is usual."""
    most = parameters * _MOST_EMBEDDINGS
    return next((size for size in _VOCABULARIES if size * token_parameters <= most), 0)


def _given(fields: Mapping[str, int]) -> tuple[dict[str, int], list[str]]:
    """Return the fields that are given, with the active experts, and what was assumed of them."""
    given = {name: value for name, value in fields.items() if value or name == "tied"}
    if "experts" not in given or "active_experts" in given:
        return given, []
    given["active_experts"] = min(_ACTIVE_EXPERTS, given["experts"])
    return given, [f"{given['active_experts']} of {given['experts']} experts process a token"]


def _usual_width(parameters: float, layers: int) -> int:
    # parameters = 12 x layers x hidden^2, with hidden = 128 x layers
    exact: float = (parameters * _ASPECT / 12) ** (1 / 3)
    if layers:
        exact = (parameters / (12 * layers)) ** 0.5
    step = next(step for least, step in _STEPS if exact >= least)
    return max(round(exact / step), 1) * step


def _usual_layers(parameters: float, hidden: int) -> int:
    number = parameters / (12 * hidden * hidden)
    return 4 * round(number / 4) if number >= 8 else max(round(number), 1)


def _with_fitting_mlp(shape: ModelShape, parameters: float, *, is_checked: bool) -> ModelShape:
    """Return the shape with the width of the MLP at which it has this number of parameters.

    Args:
        is_checked: whether dimensions are given, which the number may contradict.
    """
    exact = round(parameters)
    per_layer = (parameters - shape.embedding_parameters) / shape.layers
    narrow, wider = (replace(shape, ffn=width).layer_parameters for width in (1, 2))
    width = 1 + (per_layer - narrow) / (wider - narrow)
    relative = width * (1.5 if shape.gated else 1) / shape.hidden
    least, most = _EXPERT_WIDTHS if shape.experts else _MLP_WIDTHS
    if is_checked and not least <= relative <= most:
        raise ShapeError(
            "params",
            f"{format_count(parameters)} contradict {shape.layers} layers of width {shape.hidden}, "
            f"which have about {format_count(shape.parameters)}; omit one of them",
        )
    if relative < least / 2:  # too small a model for a vocabulary: its parts are unknown
        return replace(shape, vocab=0, exact_parameters=exact)
    return replace(shape, ffn=round(width), exact_parameters=exact)


def _differences(shape: ModelShape, parameters: float) -> list[str]:
    """Compare a completely described shape with the number of parameters that is given for it."""
    counted = shape.parameters
    if abs(parameters / counted - 1) > _CLOSE:
        raise ShapeError(
            "params",
            f"{format_count(parameters)} contradict the given dimensions, which have "
            f"{format_count(counted)}; omit --params, or change the dimensions",
        )
    if format_count(counted) == format_count(parameters):
        return []
    return [
        f"{format_count(counted)} parameters, as the dimensions give, not "
        f"{format_count(parameters)}"
    ]


def _assumptions(shape: ModelShape, given: Mapping[str, int]) -> list[str]:
    parts = {
        "layers": f"{shape.layers} layer{'s' if shape.layers > 1 else ''}",
        "hidden": f"a width of {shape.hidden}",
        "heads": f"{shape.heads} head{'s' if shape.heads > 1 else ''}",
        "ffn": f"MLPs of width {shape.mlp_width}",
    }
    guessed = [text for name, text in parts.items() if name not in given]
    if shape.exact_parameters and not shape.vocab:
        guessed = guessed[:-1]  # the MLP is unknown, too
    notes = []
    if guessed:
        notes.append(f"{', '.join(guessed)}: usual for {format_count(shape.parameters)} parameters")
    if "vocab" not in given:
        notes.append(_vocabulary_note(shape))
    return notes


def _vocabulary_note(shape: ModelShape) -> str:
    if not shape.vocab:
        return "no vocabulary: embeddings and logits are not counted (--vocab)"
    kind = "one matrix for embeddings and output layer" if shape.tied else "an output layer"
    return f"a vocabulary of {shape.vocab:,} tokens, with {kind} (--vocab, --untied)"
