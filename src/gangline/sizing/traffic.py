"""Bytes that ranks exchange in a step, and the time of collective operations.

Times use bus bandwidth as ``nccl-tests`` defines it: an all-reduce of V bytes among n ranks takes
2 (n - 1) / n x V / bandwidth; all-gather, reduce-scatter and all-to-all half of it.
"""

from dataclasses import dataclass

from gangline.sizing.flops import Recompute
from gangline.sizing.hardware import Device
from gangline.sizing.layout import Layout, Sharding
from gangline.sizing.memory import rank_parameters
from gangline.sizing.model import ModelShape
from gangline.sizing.precision import StateBytes

LATENCY_S = 20e-6
"""Start of a collective operation, for each hop between nodes."""


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """Bytes that a rank sends in a step, by the kind of parallelism that needs them."""

    data: float
    tensor: float
    pipeline: float
    expert: float

    @property
    def total(self) -> float:
        return self.data + self.tensor + self.pipeline + self.expert


def all_reduce_bytes(volume: float, ranks: int) -> float:
    """Bytes that a rank sends in an all-reduce of ``volume`` bytes."""
    return 2 * (ranks - 1) / ranks * volume


def all_gather_bytes(volume: float, ranks: int) -> float:
    """Bytes that a rank sends in an all-gather or reduce-scatter of ``volume`` bytes in all."""
    return (ranks - 1) / ranks * volume


def step_traffic(shape: ModelShape, layout: Layout, states: StateBytes) -> StepTraffic:
    """Predict what a rank sends in an optimizer step."""
    parameters = rank_parameters(shape, layout)
    ranks = layout.data * layout.context
    passes = max(layout.micro_batches, 1)
    tokens = layout.micro_batch * shape.sequence / layout.context
    message = tokens * shape.hidden * states.element
    layers = shape.layers / layout.pipeline
    if layout.sharding is Sharding.PARAMETERS:  # gathered forward and backward, then reduced
        wire = min(states.weights, states.element)
        data = 3 * passes * all_gather_bytes(parameters * wire, ranks)
    else:
        data = all_reduce_bytes(parameters * states.gradients, ranks)
    reductions = 6 if layout.recompute is Recompute.FULL else 4
    tensor = reductions * layers * passes * all_reduce_bytes(message, layout.tensor)
    pipeline = 2 * passes * message * layout.virtual if layout.pipeline > 1 else 0.0
    routed = message * max(shape.active_experts, 1)
    expert = 4 * layers * passes * all_gather_bytes(routed, layout.expert)
    return StepTraffic(data, tensor, pipeline, expert)


def group_bandwidth(device: Device, stride: int, ranks: int) -> float:
    """Bus bandwidth of a group of ``ranks`` devices that are ``stride`` devices apart.

    The groups of a node that reach to other nodes share its network.
    """
    if stride * ranks <= device.node_devices:
        return device.bus_bandwidth
    members = max(device.node_devices // stride, 1)
    return min(device.bus_bandwidth, device.node_bandwidth * members / device.node_devices)
