"""What ``gangline plan`` predicts for the trainings that are measured."""

from dataclasses import dataclass
from typing import Any

from benchmarks.sizing import models
from gangline.sizing.hardware import Precision, state_bytes
from gangline.sizing.layout import Layout, Sharding
from gangline.sizing.model import ModelShape, Recompute
from gangline.sizing.sources.trace import trace
from gangline.sizing.steptime import step_traffic
from gangline.sizing.traced import TracedModel, read_trace
from gangline.sizing.transformer import TransformerModel

STATES = state_bytes(Precision.FP32)
SHAPES = {
    "gpt_10m": ModelShape(6, 256, 4, 128, 16384, positions=128),
    "gpt_124m": ModelShape(12, 768, 12, 128, 50257, positions=128),
}
"""Models that are predicted by their shape; the others by a trace on the meta device."""
WITHOUT_TOKENS = ("mlp", "resnet18")
_LOGITS_LEFT = 1 / 3
"""Of logits, their logarithms and gradients only the logarithms exist after the forward pass."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training to measure."""

    name: str
    shape: str
    """Of the batch of each rank, such as ``4x128``."""
    sharding: str
    """``ddp`` or ``fsdp``."""
    ranks: int = 2

    @property
    def title(self) -> str:
        return f"{self.name}:{self.shape}"

    @property
    def batch(self) -> int:
        return int(self.shape.partition("x")[0])

    @property
    def layout(self) -> Layout:
        return Layout(
            data=self.ranks,
            sharding=Sharding.PARAMETERS if self.sharding == "fsdp" else Sharding.NONE,
            recompute=Recompute.SELECTIVE,
            micro_batch=self.batch,
            global_batch=self.batch * self.ranks,
        )


def case_model(case: Case) -> TransformerModel | TracedModel:
    """Return the model as ``gangline plan`` sees it."""
    if case.name in SHAPES:
        return TransformerModel(SHAPES[case.name])
    shape = [int(size) for size in case.shape.split("x")]
    tokens = case.name not in WITHOUT_TOKENS
    return read_trace(trace(f"{models.__file__}:{case.name}", shape, tokens=tokens))


def predict(case: Case, model: TransformerModel | TracedModel) -> dict[str, Any]:
    """Predict what a rank of the training needs."""
    layout = case.layout
    memory = model.memory(layout, STATES)
    if isinstance(model, TracedModel):
        activations = model.saved_bytes
        sent = model.traffic(layout, STATES, full_reduce=True)
    else:
        activations = memory.activations + memory.logits * _LOGITS_LEFT
        sent = step_traffic(model.shape, layout, STATES, full_reduce=True).total
    return {
        "state_bytes": {
            "weights": memory.weights,
            "gradients": memory.gradients,
            "optimizer": memory.optimizer,
        },
        "sent_bytes": sent,
        "flops": model.sample_flops * case.batch,
        "activation_bytes": activations,
    }
