"""A usual shape for a number of parameters, where nothing else is known of the model."""

from dataclasses import replace

from gangline.sizing.model import ModelShape, ShapeError

_ASPECT = 128
"""Width of a model for each layer, as in GPT-3 and Llama."""
_HEAD = 128
_STEPS = ((2048, 8 * _HEAD), (512, 2 * _HEAD), (0, _HEAD))
"""Widths are multiples of these from some width on, so that ranks can share heads and layers."""
_CLOSE = 0.15
"""Share by which given dimensions may differ from the given number of parameters."""


def shape_of_size(
    parameters: float,
    sequence: int,
    *,
    layers: int = 0,
    hidden: int = 0,
    heads: int = 0,
) -> ModelShape:
    """Return a shape with exactly this number of parameters.

    Args:
        parameters: of the complete model.
        sequence: tokens of a sample.
        layers: 0: usual for the size.
        hidden: 0: usual for the size.
        heads: 0: one for each 128 elements of ``hidden``.

    Raises:
        ShapeError: the dimensions contradict the number.
    """
    if parameters < 1:
        raise ShapeError("params", f"is {parameters:g}, must be at least 1")
    if not hidden:
        # parameters = 12 x layers x hidden^2, with hidden = 128 x layers
        exact = (
            (parameters / (12 * layers)) ** 0.5
            if layers
            else (parameters * _ASPECT / 12) ** (1 / 3)
        )
        step = next(step for least, step in _STEPS if exact >= least)
        hidden = max(round(exact / step), 1) * step
    if not layers:
        number = parameters / (12 * hidden * hidden)
        layers = 4 * round(number / 4) if number >= 8 else max(round(number), 1)
    elif hidden:
        computed = 12 * layers * hidden * hidden
        if not 1 - _CLOSE <= computed / parameters <= 1 + 4 * _CLOSE:
            raise ShapeError(
                "params",
                f"{parameters:.3g} contradict {layers} layers of width {hidden}, which have about "
                f"{computed:.3g}; omit one of them",
            )
    shape = ModelShape(layers, hidden, heads or max(hidden // _HEAD, 1), sequence)
    return replace(shape, exact_parameters=round(parameters))
