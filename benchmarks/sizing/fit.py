"""Fit the roofline of ``gangline.sizing.efficiency`` to the published trainings again.

    python -m benchmarks sizing_fit

Prints the constants of the fit, and how well each source is predicted by a fit without it. Needs
scipy. The constants of the source tree are these, rounded.
"""

import importlib
import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.sizing.published import DATA, predict, request_of
from gangline.sizing import steptime
from gangline.sizing.efficiency import RooflineConstants, Runs, roofline
from gangline.sizing.layout import Layout
from gangline.sizing.plan import PlanRequest
from gangline.sizing.transformer import TransformerModel

PRIORS = {
    "ampere": (0.75, 0.07), "hopper": (0.70, 0.07), "products_8bit": (0.8, 0.07),
    "few_tokens": (400, 0.4), "narrow": (500, 0.4), "passes": (6, 0.2), "eager": (2.5, 0.2),
    "TENSOR_EXPOSED": (0.5, 0.3), "CONTENTION": (0.4, 0.4),
}  # fmt: skip
"""Centre and relative width of what is fitted."""
NOISE = 0.12
"""Relative difference between runs that no constant explains."""
Point = tuple[str, PlanRequest, Layout, float]


def read_points() -> list[Point]:
    """Return the source, the request, the layout and the speed of each tuned training."""
    data = json.loads(DATA.read_text())
    points = []
    for point in data["trainings"]:
        prediction = predict(point, data["shapes"], Runs.TUNED)
        request = request_of(point, data["shapes"], Runs.TUNED)
        points.append((point["source"], request, prediction.layout, prediction.tokens))
    return points


def error(values: Sequence[float], point: Point) -> float:
    """Return the logarithm of the predicted over the published speed."""
    named = dict(zip(PRIORS, (math.exp(value) for value in values), strict=True))
    _, request, layout, tokens = point
    model, states = request.model, request.states
    assert isinstance(model, TransformerModel)
    family = "ampere" if request.device.name.startswith("A") else "hopper"
    device = replace(request.device, efficiency=named[family])
    fields = RooflineConstants.__dataclass_fields__
    constants = RooflineConstants(**{name: named[name] for name in fields})
    traffic: dict[str, Any] = {name: named[name] for name in ("TENSOR_EXPOSED", "CONTENTION")}
    with patch.multiple(steptime, **traffic):
        share = roofline(model.shape, layout, states, device, constants)
        step = model.step(layout, states, device, share).total
    return math.log(request.global_batch * model.shape.sequence / step / request.devices / tokens)


def fit(points: list[Point]) -> np.ndarray:
    centres = np.log([centre for centre, _ in PRIORS.values()])
    widths = np.array([width for _, width in PRIORS.values()])

    def residuals(values: np.ndarray) -> list[float]:
        errors = [error(values, point) / NOISE for point in points]
        return [*errors, *((values - centres) / widths)]

    optimize = importlib.import_module("scipy.optimize")
    return np.asarray(optimize.least_squares(residuals, centres, loss="soft_l1").x)


def main() -> None:
    if importlib.util.find_spec("scipy") is None:
        print("left out: scipy is not installed")
        return
    points = read_points()
    values = fit(points)
    for name, value in zip(PRIORS, np.exp(values), strict=True):
        print(f"{name:16} {value:.3g}")
    print(f"standard deviation {np.std([error(values, point) for point in points]):.3f}")
    left_out = []
    for source in sorted({point[0] for point in points}):
        others = fit([point for point in points if point[0] != source])
        errors = [error(others, point) for point in points if point[0] == source]
        left_out += errors
        print(f"without {source:16} {len(errors):3} runs, median {np.exp(np.median(errors)):.2f}")
    low, middle, high = np.exp(np.quantile(left_out, [0.1, 0.5, 0.9]))
    print(f"left out: {np.std(left_out):.3f}, {low:.2f} - {middle:.2f} - {high:.2f}")


if __name__ == "__main__":
    main()
