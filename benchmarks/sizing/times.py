"""Times of steps that a calibration predicts, beside those of real trainings.

    python -m benchmarks.sizing.times [--report FILE]

Each model is calibrated with one batch. The times of a step with two and four times of it are
predicted and written to the report, then measured in two processes on gloo, with DDP and FSDP.
Both use the fastest of their steps: on a shared machine the others tell more of its other load.
The range is as wide as that of a calibration with all of its steps.
With ``--processor-time`` both count that of the process, which other load hardly changes.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.sizing import models
from benchmarks.sizing.measured import RANKS, SHARDINGS, measure
from benchmarks.sizing.predictions import SHAPES, STATES, WITHOUT_TOKENS, Case, case_model
from gangline.cli.planning.programs import run_calibration
from gangline.sizing.calibration import read_calibration
from gangline.sizing.traced import TracedModel
from gangline.sizing.transformer import TransformerModel

CALIBRATED = ("mlp:64x784", "resnet18:4x3x64x64", "gpt_10m:2x128", "mixture:2x128", "lstm:4x32")
FACTORS = (2, 4)
STEPS = 15


def slice_of(
    case: Case, model: TransformerModel | TracedModel, *, processor_time: bool
) -> dict[str, Any]:
    """Describe what the calibration times: two layers, or the complete traced model."""
    shared = {
        "batch": case.batch,
        "element": 4,
        "cpu": True,
        "processor_time": processor_time,
    }
    if isinstance(model, TracedModel):
        return shared | {
            "trace": f"{models.__file__}:{case.name}",
            "input": [int(size) for size in case.shape.split("x")],
            "tokens": case.name not in WITHOUT_TOKENS,
            "sample_flops": model.sample_flops,
        }
    shape = SHAPES[case.name]
    return shared | {
        "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.heads,
        "ffn": shape.mlp_width, "gated": False, "sequence": shape.sequence, "vocab": shape.vocab,
        "parameters": shape.parameters,
    }  # fmt: skip


def fastest(measured: Any) -> Any:
    """Keep the fastest of each list of seconds."""
    if isinstance(measured, dict):
        return {
            name: [min(each)] if name == "seconds" else fastest(each)
            for name, each in measured.items()
        }
    return [fastest(each) for each in measured] if isinstance(measured, list) else measured


def predicted_rows(title: str, *, processor_time: bool) -> list[dict[str, Any]]:
    """Calibrate a model, and predict its steps with larger batches."""
    name, _, shape = title.partition(":")
    case = Case(name, shape, SHARDINGS[0], RANKS)
    model = case_model(case)
    found = run_calibration(
        sys.executable, slice_of(case, model, processor_time=processor_time), RANKS
    )
    calibration = read_calibration(fastest(found), title)
    middle, spread = calibration.efficiency.middle, read_calibration(found, title).efficiency
    efficiencies = [
        middle * each / spread.middle for each in (spread.high, spread.middle, spread.low)
    ]
    rows = []
    for factor in FACTORS:
        rest = shape.partition("x")[2]
        larger = f"{case.batch * factor}x{rest}"
        for sharding in SHARDINGS:
            layout = Case(name, larger, sharding, RANKS).layout
            p10, p50, p90 = (
                model.step(layout, STATES, calibration.device, each).total for each in efficiencies
            )
            rows.append(
                {
                    "calibrated": title, "case": f"{name}:{larger}", "sharding": sharding,
                    "predicted_s": p50, "p10_s": p10, "p90_s": p90,
                }
            )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path, default=Path("sizing-times.json"))
    parser.add_argument("--cases", nargs="+", default=CALIBRATED, metavar="MODEL:SHAPE")
    parser.add_argument("--processor-time", action="store_true")
    given = parser.parse_args(sys.argv[1:] if __name__ == "__main__" else [])
    rows: list[dict[str, Any]] = []
    print(
        f"{'calibrated':20} {'case':20} {'':5} "
        f"{'predicted':>11} {'range':>17} {'measured':>11} ratio"
    )
    for title in given.cases:
        new = predicted_rows(title, processor_time=given.processor_time)
        rows += new
        given.report.write_text(json.dumps(rows, indent=1))
        for sharding in SHARDINGS:
            cases = [row for row in new if row["sharding"] == sharding]
            found = measure(
                tuple(row["case"] for row in cases),
                sharding,
                steps=STEPS,
                processor_time=given.processor_time,
            )
            for row in cases:
                row["measured_s"] = found[row["case"]]["fastest_s"]
                ratio = row["predicted_s"] / row["measured_s"]
                print(
                    f"{row['calibrated']:20} {row['case']:20} {sharding:5} "
                    f"{row['predicted_s'] * 1e3:8.1f} ms "
                    f"{row['p10_s'] * 1e3:6.0f} to {row['p90_s'] * 1e3:4.0f} ms "
                    f"{row['measured_s'] * 1e3:8.1f} ms "
                    f"{ratio:.2f}",
                    flush=True,
                )
        given.report.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
