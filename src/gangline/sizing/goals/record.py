"""What was planned, as the annotation of the planned job, and back.

``gangline plan --like JOB`` and ``--check JOB`` know the model of a job from it.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gangline.sizing.model import ModelShape, ShapeError
from gangline.sizing.plan import Plan
from gangline.sizing.traced import TracedModel
from gangline.sizing.transformer import TransformerModel

ANNOTATION = "gangline.dev/planned-training"


@dataclass(frozen=True, slots=True)
class PlannedTraining:
    """The training that a job was planned for."""

    model: TransformerModel | TracedModel
    tokens: float
    global_batch: int
    precision: str
    optimizer: str
    gpu: str


def write_record(plan: Plan) -> str:
    """Return the annotation of the job of ``plan``."""
    request, model = plan.request, plan.request.model
    if isinstance(model, TracedModel):
        kind, given = "traced", _changed(model)
    else:
        kind, given = "shape", _changed(model.shape)
    record = {
        kind: given,
        "tokens": plan.tokens,
        "globalBatch": plan.global_batch,
        "precision": request.precision.value,
        "optimizer": request.optimizer.value,
        "gpu": request.device.name,
    }
    return json.dumps(record, separators=(",", ":"))


def read_record(annotations: Mapping[str, str]) -> PlannedTraining | None:
    """Read the annotation of a job; None if it has none.

    Raises:
        ShapeError: the annotation is damaged.
    """
    text = annotations.get(ANNOTATION)
    if text is None:
        return None
    try:
        record = json.loads(text)
        model: TransformerModel | TracedModel = (
            TracedModel(**record["traced"])
            if "traced" in record
            else TransformerModel(ModelShape(**record["shape"]))
        )
        return PlannedTraining(
            model,
            float(record["tokens"]),
            int(record["globalBatch"]),
            str(record["precision"]),
            str(record["optimizer"]),
            str(record["gpu"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ShapeError(ANNOTATION, f"is damaged: {error}") from error


def _changed(model: ModelShape | TracedModel) -> dict[str, Any]:
    """Return the fields that differ from their defaults."""
    return {
        field.name: value
        for field in dataclasses.fields(model)
        if (value := getattr(model, field.name)) != field.default
        and not (field.name == "uncounted" and not value)
    }
