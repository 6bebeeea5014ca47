"""Options of ``gangline plan`` that describe a model, their types, and the model that they give."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.command import section

if TYPE_CHECKING:
    from gangline.sizing.sources.guess import GuessedShape
    from gangline.sizing.traced import TracedModel
    from gangline.sizing.transformer import TransformerModel


class _Quantity(click.ParamType[float]):
    """A number above 0 with a unit; ``units`` has that of a number without one under ``""``."""

    def __init__(self, name: str, examples: str, units: Mapping[str, float]) -> None:
        self.name = name
        self._examples, self._units = examples, units

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip().lower()
        unit = next((unit for unit in self._units if text.endswith(unit)), "")
        try:
            number = float(text.removesuffix(unit)) * self._units[unit]
        except (KeyError, ValueError):
            self.fail(f"{value!r} is not a {self.name} such as {self._examples}", param, ctx)
        if not 0 < number < float("inf"):
            self.fail(f"{value!r} must be greater than 0, and finite", param, ctx)
        return number


class _Shape(click.ParamType[str]):
    """The shape of a batch such as 8x3x224x224, as it is written."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip().lower()
        if not all(size.isascii() and size.isdigit() and int(size) for size in text.split("x")):
            self.fail(f"{value!r} is not a shape such as 8x3x224x224", param, ctx)
        return text


AMOUNT = _Quantity(
    "number", "7e9 or 7B", {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "": 1.0}
)
_SPANS = {"minute": 60.0, "hour": 3600.0, "day": 86_400.0, "week": 604_800.0}
DURATION = _Quantity(
    "duration",
    "36h or 7d",
    {f"{name}s": seconds for name, seconds in _SPANS.items()}
    | _SPANS
    | {name[0]: seconds for name, seconds in _SPANS.items()},
)
SECONDS = _Quantity("time", "5ms or 0.2s", {"us": 1e-6, "ms": 1e-3, "s": 1.0})
SHAPE = _Shape()
COUNT = click.IntRange(min=1)

F = TypeVar("F", bound=Callable[..., Any])

DIMENSIONS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "active_experts")
SWITCHES = ("gated", "untied")
COMPLETE = ("layers", "hidden", "heads")
"""Dimensions that describe a model without ``--params``."""
NEEDS = {
    "kv_heads": ("heads",),
    "ffn": ("layers", "hidden"),
    "experts": COMPLETE,
    "active_experts": ("experts",),
}
"""Dimensions that mean nothing with ``--params`` unless others are given, too."""
WITH_TRACE = ("input_shape", "token_ids", "measure")
"""Options that have no effect without ``--trace``."""
OPTION_NAMES = {"input_shape": "--input", "sequence": "--seq"}
DEFAULT_SEQUENCE = 2048


class ModelFlags(TypedDict):
    """Values of the options."""

    config: Path | None
    trace: str | None
    input_shape: str | None
    token_ids: bool
    measure: bool
    python: str | None
    params: float | None
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    gated: bool
    vocab: int | None
    untied: bool
    experts: int | None
    active_experts: int | None
    sequence: int | None


_OPTIONS = section(
    "Model",
    click.option(
        "--model",
        "--config",
        "config",
        metavar="CONFIG",
        type=click.Path(path_type=Path, exists=True),
        help="The model's config.json of Hugging Face, or its folder.",
    ),
    click.option(
        "--trace",
        metavar="FILE:FUNCTION",
        help="Trace the model that FUNCTION returns, on PyTorch's meta device.",
    ),
    click.option(
        "--input",
        "input_shape",
        type=SHAPE,
        metavar="SHAPE",
        help="With --trace: the shape of a batch, such as 8x3x224x224.",
    ),
    click.option("--token-ids", is_flag=True, help="With --trace: the input is token ids."),
    click.option(
        "--measure",
        is_flag=True,
        help="With --trace: take two real steps on the GPU, else on the processor.",
    ),
    click.option(
        "--python",
        help="The interpreter with torch.  [default: this one]",
    ),
    click.option("--params", type=AMOUNT, help="Number of parameters, such as 7B."),
    click.option("--layers", type=COUNT, help="Number of layers."),
    click.option("--hidden", type=COUNT, help="Width of the model."),
    click.option("--heads", type=COUNT, help="Attention heads."),
    click.option("--kv-heads", type=COUNT, help="Heads of keys and values; default: as many."),
    click.option("--ffn", type=COUNT, help="Width of the MLP; default: 4 x hidden."),
    click.option("--gated", is_flag=True, help="The MLP is gated, as in Llama; without biases."),
    click.option("--vocab", type=COUNT, help="Tokens of the vocabulary; default: usual."),
    click.option("--untied", is_flag=True, help="The output layer has a matrix of its own."),
    click.option("--experts", type=COUNT, help="Experts of each layer."),
    click.option("--active-experts", type=COUNT, help="Experts that process a token."),
    click.option(
        "--seq", "sequence", type=COUNT, help=f"Tokens of a sample.  [default: {DEFAULT_SEQUENCE}]"
    ),
)


def model_options(command: F) -> F:
    """Add the options of ``ModelFlags``."""
    return _OPTIONS(command)


def option_names(flags: ModelFlags, names: tuple[str, ...]) -> list[str]:
    """Return those of the options that are given, as they are written."""
    return [_written(name) for name in names if flags[name]]  # type: ignore[literal-required]


def _written(name: str) -> str:
    return OPTION_NAMES.get(name, f"--{name.replace('_', '-')}")


def _listed(names: Sequence[str]) -> str:
    *most, last = (_written(name) for name in names)
    return f"{', '.join(most)} and {last}" if most else last


def names_model(flags: ModelFlags) -> bool:
    """Whether the options describe a model."""
    given = ("config", "trace", "params", *DIMENSIONS, *SWITCHES)
    return bool(option_names(flags, given))


def check_model_flags(flags: ModelFlags) -> None:
    """Check that the options do not contradict each other.

    Raises:
        UsageError: they do; the message names them.
    """
    dimensions = option_names(flags, (*DIMENSIONS, *SWITCHES))
    sources = option_names(flags, ("config", "trace"))
    if len(sources) > 1:
        raise click.UsageError(f"{' and '.join(sources)} describe two models; give one of them")
    if flags["trace"] or flags["config"]:
        extra = option_names(flags, ("params",)) + dimensions
        if flags["trace"]:
            extra += option_names(flags, ("sequence",))
        if extra:
            raise click.UsageError(f"{sources[0]} contradicts {', '.join(extra)}: omit one side")
    if not flags["trace"] and (lost := option_names(flags, WITH_TRACE)):
        raise click.UsageError(f"{', '.join(lost)} has no effect without --trace")
    for name, needed in NEEDS.items():
        missing = [flag for flag in needed if not flags[flag]]  # type: ignore[literal-required]
        if flags[name] and missing:  # type: ignore[literal-required]
            raise click.UsageError(
                f"{_written(name)} needs {_listed(missing)}: a usual value may contradict it"
            )


def read_model(flags: ModelFlags) -> "TransformerModel | TracedModel":
    """Return the model, which may be traced for it.

    Raises:
        ShapeError: the model cannot exist.
        CommandError: a file cannot be read, or the model cannot be traced.
        UsageError: no model is given.
    """
    from gangline.sizing.transformer import TransformerModel

    if flags["trace"]:
        return _traced(flags)
    guessed = read_shape(flags)
    return TransformerModel(guessed.shape, guessed.assumed)


def _traced(flags: ModelFlags) -> "TracedModel":
    from gangline.cli.planning.programs import run_trace
    from gangline.sizing.traced import read_trace

    if not flags["input_shape"]:
        raise click.UsageError("--trace needs --input SHAPE, such as 8x3x224x224")
    return read_trace(
        run_trace(
            flags["python"] or sys.executable,
            str(flags["trace"]),
            flags["input_shape"],
            token_ids=flags["token_ids"],
            measure=flags["measure"],
        )
    )


def read_shape(flags: ModelFlags) -> "GuessedShape":
    """Return the shape of a transformer, and what of it is assumed.

    Raises:
        ShapeError, CommandError, UsageError: as ``read_model``.
    """
    from gangline.sizing.model import ShapeError
    from gangline.sizing.sources.guess import (
        GuessedShape,
        described_shape,
        guess_shape,
    )
    from gangline.sizing.sources.huggingface import shape_from_config

    if flags["config"]:
        config = _read_config(flags["config"])
        try:
            return GuessedShape(shape_from_config(config, flags["sequence"] or 0), ())
        except ShapeError as error:
            raise CommandError(f"config.json: {error}", code=ExitCode.USAGE) from error
    sequence = flags["sequence"] or DEFAULT_SEQUENCE
    dimensions = {name: flags[name] or 0 for name in DIMENSIONS}  # type: ignore[literal-required]
    dimensions |= {"gated": flags["gated"], "tied": not flags["untied"]}
    if flags["params"]:
        return guess_shape(flags["params"], sequence, dimensions)
    if missing := [name for name in COMPLETE if not dimensions[name]]:
        given = option_names(flags, (*DIMENSIONS, *SWITCHES))
        beside = f" beside {', '.join(given)}" if given else ""
        raise click.UsageError(
            f"the model is missing: give --model CONFIG, --params NUMBER, or {_listed(missing)}"
            f"{beside}"
        )
    return described_shape(sequence, dimensions)


def _read_config(path: Path) -> dict[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", code=ExitCode.USAGE) from error
    except ValueError as error:
        raise CommandError(f"{path}: not a JSON file: {error}", code=ExitCode.USAGE) from error
    if not isinstance(config, dict):
        raise CommandError(f"{path}: must be a JSON object", code=ExitCode.USAGE)
    return config
