"""Published trainings beside what ``gangline plan`` predicts for them, as a table of Markdown.

    python -m benchmarks sizing_published

``published.json`` has the trainings with their sources. A layout that is not published is assumed.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.sizing.calibration import Range
from gangline.sizing.efficiency import Efficiency, Runs
from gangline.sizing.hardware import Precision, find_device
from gangline.sizing.layout import Layout, LayoutPins, parse_pins
from gangline.sizing.memory import COLLECTIVES_BYTES, CONTEXT_BYTES
from gangline.sizing.model import ModelShape, Recompute, model_per_token
from gangline.sizing.plan import PlanRequest
from gangline.sizing.search import search
from gangline.sizing.transformer import TransformerModel

DATA = Path(__file__).with_name("published.json")


@dataclass(frozen=True, slots=True)
class Prediction:
    """A published training and the plan of it."""

    point: dict[str, Any]
    tokens: float
    """Published tokens per second of a GPU."""
    predicted: Range
    layout: Layout
    predicted_gib: float
    """Of the allocator, as torchtitan reports it; 0: no memory is published."""

    @property
    def ratio(self) -> float:
        return self.predicted.middle / self.tokens


def request_of(point: dict[str, Any], shapes: dict[str, Any], runs: Runs) -> PlanRequest:
    """Return what to plan for a point of the file."""
    pins = parse_pins(point["layout"])
    # What a source does not name is not there.
    alone = dict.fromkeys(("tensor", "pipeline", "virtual", "context", "expert"), 1)
    recompute = pins.recompute or (None if "assumed" in point else Recompute.SELECTIVE)
    pins = LayoutPins(alone | dict(pins.degrees), pins.sharding, recompute)
    shape = ModelShape(sequence=point["sequence"], **shapes[point["shape"]])
    return PlanRequest(
        TransformerModel(shape),
        find_device(point["gpu"]),
        point["gpus"],
        global_batch=point["batch"],
        precision=Precision(point.get("precision", "mixed")),
        adapter=point.get("adapter", ""),
        adapter_rank=32,
        compiled=point.get("compile", True),
        fused_loss=point.get("fused_loss", False),
        pins=pins,
        runs=runs,
    )


def predict(point: dict[str, Any], shapes: dict[str, Any], runs: Runs) -> Prediction:
    """Plan a published training."""
    request = request_of(point, shapes, runs)
    model, states, device = request.model, request.states, request.device
    assert isinstance(model, TransformerModel)
    shape, gpus = model.shape, point["gpus"]
    found = search(model, device, gpus, point["batch"], states, Efficiency(runs=runs), request.pins)
    candidate = found.fitting[0] if found.fitting else found.nearest
    assert candidate is not None, found.problem
    if "tokens" in point:
        tokens = point["tokens"]
    elif "teraflops" in point:
        tokens = point["teraflops"] * 1e12 / model_per_token(shape)
    else:
        tokens = point["batch"] * shape.sequence / point["step_s"] / gpus
    reached = candidate.efficiency
    speeds = (
        point["batch"] * shape.sequence / gpus
        / model.step(candidate.layout, states, device, share).total
        for share in (reached.low, reached.middle, reached.high)
    )  # fmt: skip
    memory = candidate.memory.total - CONTEXT_BYTES - COLLECTIVES_BYTES
    return Prediction(
        point,
        tokens,
        Range(*speeds),
        candidate.layout,
        memory / 2**30 if "memory_gib" in point else 0.0,
    )


def predict_all(runs: Runs) -> list[Prediction]:
    """Plan the tuned, or the typical, trainings of the file."""
    data = json.loads(DATA.read_text())
    points = data["trainings" if runs is Runs.TUNED else "typical"]
    return [predict(point, data["shapes"], runs) for point in points]


def _row(prediction: Prediction) -> str:
    point, speed = prediction.point, prediction.predicted
    parts = [point.get("precision", "bf16"), point.get("adapter", "")]
    parts += ["" if point.get("compile", True) else "eager", point["layout"]]
    parts += ["assumed layout" if "assumed" in point else ""]
    memory = ""
    if prediction.predicted_gib:
        memory = f"{point['memory_gib']:.0f} / {prediction.predicted_gib:.0f}"
    cells = (
        f"[{point['source']}]",
        f"{point['shape']}, {point['sequence']:,} tokens",
        f"{point['gpus']} x {point['gpu']}",
        ", ".join(filter(None, parts)),
        f"{prediction.tokens:,.0f}",
        f"{speed.low:,.0f} - {speed.middle:,.0f} - {speed.high:,.0f}",
        memory,
    )
    return f"| {' | '.join(cells)} |"


def table(predictions: list[Prediction]) -> str:
    """Return the table of the documentation."""
    head = "| source | model, sample | GPUs | layout | published | predicted | GiB |"
    rule = "|---|---|---|---|---:|---:|---:|"
    return "\n".join([head, rule, *map(_row, predictions)])


def source_links() -> str:
    """Return the definitions of the links of the tables."""
    sources = json.loads(DATA.read_text())["sources"]
    return "\n".join(f"[{name}]: {address}" for name, address in sources.items())


def main() -> None:
    """Print both tables."""
    for runs in Runs:
        predictions = predict_all(runs)
        inside = sum(point.predicted.contains(point.tokens) for point in predictions)
        print(f"{runs.label}: {inside} of {len(predictions)} inside their range\n")
        print(f"{table(predictions)}\n")
    print(source_links())


if __name__ == "__main__":
    main()
