"""Bytes that ranks exchange in a step, and the time of collective operations.

Times use bus bandwidth as ``nccl-tests`` defines it: an all-reduce of V bytes among n ranks takes
2 (n - 1) / n x V / bandwidth; all-gather, reduce-scatter and all-to-all half of it.
"""

from dataclasses import dataclass

from gangline.sizing.flops import Recompute
from gangline.sizing.hardware import Device
from gangline.sizing.layout import Layout, Sharding
from gangline.sizing.memory import end_parameters, expert_parameters, rank_parameters
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
    context: float = 0.0
    copied: float = 0.0
    """Bytes that the rank copies to and from the buffers of FSDP's exchanges; they are not sent."""

    @property
    def total(self) -> float:
        return self.data + self.tensor + self.pipeline + self.expert + self.context


def all_reduce_bytes(volume: float, ranks: int) -> float:
    """Bytes that a rank sends in an all-reduce of ``volume`` bytes."""
    return 2 * (ranks - 1) / ranks * volume


def all_gather_bytes(volume: float, ranks: int) -> float:
    """Bytes that a rank sends in an all-gather or reduce-scatter of ``volume`` bytes in all."""
    return (ranks - 1) / ranks * volume


def sharded_bytes(
    regathered: float, gathered_once: float, ranks: int, *, full_reduce: bool = False
) -> float:
    """Bytes that a rank of FSDP or ZeRO-3 sends for one forward and backward pass.

    Args:
        regathered: bytes of parameters that are gathered for each of the two passes.
        gathered_once: bytes of those that stay gathered between the passes.
        ranks: their number.
        full_reduce: whether a reduce-scatter sends as much as an all-reduce.
    """
    reduced = (regathered + gathered_once) * (2 if full_reduce else 1)
    return all_gather_bytes(2 * regathered + gathered_once + reduced, ranks)


def copied_bytes(regathered: float, gathered_once: float, ranks: int) -> float:
    """Bytes that a rank of FSDP2 copies for one forward and backward pass.

    Each gathering copies the rank's own part into the buffer, and all parts from it into the
    parameters. All gradients are copied into the buffer of the reduce-scatter.

    Args:
        regathered: bytes of parameters that are gathered for each of the two passes.
        gathered_once: bytes of those that stay gathered between the passes.
        ranks: their number.
    """
    gathered = 2 * regathered + gathered_once
    return gathered * (1 + 1 / ranks) + regathered + gathered_once


def step_traffic(
    shape: ModelShape, layout: Layout, states: StateBytes, *, full_reduce: bool = False
) -> StepTraffic:
    """Predict what a rank sends in an optimizer step.

    Args:
        shape: the model.
        layout: how it is spread.
        states: bytes for each parameter.
        full_reduce: whether a reduce-scatter sends as much as an all-reduce.
    """
    experts = expert_parameters(shape, layout)
    parameters = rank_parameters(shape, layout) - experts
    ranks = layout.data * layout.context
    passes = max(layout.micro_batches, 1)
    tokens = layout.micro_batch * shape.sequence / layout.context
    message = tokens * shape.hidden * states.element
    layers = layout.stage_layers(shape.layers)
    copied = 0.0
    if layout.sharding is Sharding.PARAMETERS:  # gathered forward and backward, then reduced
        wire = min(states.weights, states.element)
        # A tied embedding is used by the first and the last module: FSDP2 leaves it gathered.
        ends = end_parameters(shape, layout) if shape.tied else 0.0
        groups = (
            ((parameters - ends) * wire, ends * wire, ranks),
            (experts * wire, 0.0, ranks // layout.expert),
        )
        data = passes * sum(sharded_bytes(*each, full_reduce=full_reduce) for each in groups)
        copied = passes * sum(copied_bytes(*each) for each in groups)
    else:
        data = all_reduce_bytes(parameters * states.gradients, ranks)
        data += all_reduce_bytes(experts * states.gradients, ranks // layout.expert)
    reductions = 6 if layout.recompute is Recompute.FULL else 4
    tensor = reductions * layers * passes * all_reduce_bytes(message, layout.tensor)
    pipeline = 2 * passes * message * layout.virtual if layout.pipeline > 1 else 0.0
    dispatched = message * max(shape.active_experts, 1)
    expert = 4 * layers * passes * all_gather_bytes(dispatched, layout.expert)
    # Keys and values are gathered forward and backward, their gradients reduced (Llama 3, 2024).
    keys = tokens * 2 * shape.kv_width * states.element / layout.tensor
    context = 3 * layers * passes * (layout.context - 1) * keys
    return StepTraffic(data, tensor, pipeline, expert, context, copied)


def group_bandwidth(device: Device, stride: int, ranks: int) -> float:
    """Bus bandwidth of a group of ``ranks`` devices that are ``stride`` devices apart.

    The groups of a node that reach to other nodes share its network.
    """
    if stride * ranks <= device.node_devices:
        return device.bus_bandwidth
    members = max(device.node_devices // stride, 1)
    return min(device.bus_bandwidth, device.node_bandwidth * members / device.node_devices)
