"""What DeepSpeed's own estimators would say, for comparison (``--as deepspeed``).

They count states only, without activations and buffers. Formulas of
``estimate_zero2_model_states_mem_needs`` and ``estimate_zero3_model_states_mem_needs``.
"""

from dataclasses import dataclass

from gangline.sizing.model import ModelShape


@dataclass(frozen=True, slots=True)
class StateEstimate:
    """Bytes of model states as DeepSpeed estimates them."""

    stage: int
    offload: str
    """What is kept in host memory: ``none``, ``optimizer`` or ``parameters and optimizer``."""
    device_bytes: float


def deepspeed_estimates(
    parameters: float, largest_layer: float, devices: int
) -> tuple[StateEstimate, ...]:
    """Estimate the memory of a device under ZeRO-2 and ZeRO-3, with and without offload.

    Args:
        parameters: of the model.
        largest_layer: parameters of the largest single module.
        devices: their number.
    """
    gathered = 4 * largest_layer
    return (
        StateEstimate(2, "none", 4 * parameters + 16 * parameters / devices),
        StateEstimate(2, "optimizer", 2 * parameters),
        StateEstimate(3, "none", gathered + 18 * parameters / devices),
        StateEstimate(3, "optimizer", gathered + 2 * parameters / devices),
        StateEstimate(3, "parameters and optimizer", gathered),
    )


def largest_module(shape: ModelShape) -> int:
    """Parameters of the largest single matrix."""
    return shape.hidden * max(shape.vocab, shape.mlp_width, shape.query_width)
