"""Option types of ``gangline plan``: amounts, durations and counts."""

from typing import Any

import click

_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_DURATIONS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


class _Amount(click.ParamType[float]):
    """A number such as 7e9, 7B or 300G."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip().lower()
        unit = _UNITS.get(text[-1:], 1.0)
        try:
            number = float(text[:-1] if text[-1:] in _UNITS else text) * unit
        except ValueError:
            self.fail(f"{value!r} is not a number such as 7e9 or 7B", param, ctx)
        if not 0 < number < float("inf"):
            self.fail(f"{value!r} must be greater than 0", param, ctx)
        return number


class _Duration(click.ParamType[float]):
    """A duration such as 36h or 7d, in seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip().lower()
        try:
            seconds = float(text[:-1]) * _DURATIONS[text[-1:]]
        except (KeyError, ValueError):
            self.fail(f"{value!r} is not a duration such as 36h or 7d", param, ctx)
        if not 0 < seconds < float("inf"):
            self.fail(f"{value!r} must be greater than 0", param, ctx)
        return seconds


class _Seconds(click.ParamType[float]):
    """A short time such as 5ms, in seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip().lower()
        unit = next((unit for unit in _SECONDS if text.endswith(unit)), "")
        try:
            seconds = float(text.removesuffix(unit)) * _SECONDS[unit]
        except (KeyError, ValueError):
            self.fail(f"{value!r} is not a time such as 5ms or 0.2s", param, ctx)
        if not 0 < seconds < float("inf"):
            self.fail(f"{value!r} must be greater than 0", param, ctx)
        return seconds


class _Shape(click.ParamType[str]):
    """The shape of a batch such as 8x3x224x224, as it is written."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip().lower()
        if not all(size.isascii() and size.isdigit() and int(size) for size in text.split("x")):
            self.fail(f"{value!r} is not a shape such as 8x3x224x224", param, ctx)
        return text


AMOUNT, DURATION, SECONDS, SHAPE = _Amount(), _Duration(), _Seconds(), _Shape()
COUNT = click.IntRange(min=1)
