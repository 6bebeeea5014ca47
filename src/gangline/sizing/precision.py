"""Bytes that training keeps for each parameter: weights, gradients and optimizer states."""

from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """The number formats of a training."""

    FP32 = "fp32"
    AUTOCAST = "autocast"
    """Weights in 32 bits, products in 16: ``torch.autocast``. Casts of the weights are cached."""
    MIXED = "mixed"
    """Weights and gradients in 16 bits, with a master copy in 32: DeepSpeed, Megatron."""
    MIXED_FP32_GRADIENTS = "mixed-fp32-gradients"
    BF16 = "bf16"
    """Everything in 16 bits, the moments too."""


class Optimizer(StrEnum):
    """The optimizer, by the state that it keeps."""

    ADAM = "adam"
    ADAM_8BIT = "adam-8bit"
    ADAFACTOR = "adafactor"
    MOMENTUM = "momentum"
    SGD = "sgd"


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes for each parameter."""

    weights: float
    gradients: float
    optimizer: float
    """Master copy and moments."""
    casts: float = 0.0
    """Copies of the weights in another format, which are not sharded."""
    element: int = 2
    """Bytes of an activation's element."""

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


_WEIGHTS_GRADIENTS_MASTER = {
    Precision.FP32: (4, 4, 0),
    Precision.AUTOCAST: (4, 4, 0),
    Precision.MIXED: (2, 2, 4),
    Precision.MIXED_FP32_GRADIENTS: (2, 4, 4),
    Precision.BF16: (2, 2, 0),
}
_MOMENTS = {
    Optimizer.ADAM: 8.0,
    Optimizer.ADAM_8BIT: 2.0,
    Optimizer.ADAFACTOR: 0.5,
    Optimizer.MOMENTUM: 4.0,
    Optimizer.SGD: 0.0,
}
"""Bytes with moments in 32 bits."""


def state_bytes(precision: Precision, optimizer: Optimizer = Optimizer.ADAM) -> StateBytes:
    """Return the bytes for each parameter."""
    weights, gradients, master = _WEIGHTS_GRADIENTS_MASTER[precision]
    moments = _MOMENTS[optimizer]
    if precision is Precision.BF16 and optimizer in (Optimizer.ADAM, Optimizer.MOMENTUM):
        moments /= 2
    return StateBytes(
        weights,
        gradients,
        master + moments,
        casts=2.0 if precision is Precision.AUTOCAST else 0.0,
        element=4 if precision is Precision.FP32 else 2,
    )
