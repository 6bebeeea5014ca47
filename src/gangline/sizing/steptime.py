"""Time of an optimizer step: computing, and the communication that computing does not hide.

Times use bus bandwidth as ``nccl-tests`` defines it: an all-reduce of V bytes among n ranks takes
2 (n - 1) / n x V / bandwidth; all-gather, reduce-scatter and all-to-all half of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from gangline.sizing.hardware import DeviceModel, StateBytes
from gangline.sizing.layout import Layout, Sharding
from gangline.sizing.memory import (
    end_parameters,
    expert_parameters,
    rank_parameters,
    trained_share,
)
from gangline.sizing.model import ModelShape, Recompute, hardware_per_token

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
    regathered: float,
    gathered_once: float,
    ranks: int,
    *,
    trained: float = 1.0,
    full_reduce: bool = False,
) -> float:
    """Bytes that a rank of FSDP or ZeRO-3 sends for one forward and backward pass.

    Args:
        regathered: bytes of parameters that are gathered for each of the two passes.
        gathered_once: bytes of those that stay gathered between the passes.
        trained: share of the parameters that get gradients.
    """
    reduced = (regathered + gathered_once) * trained * (2 if full_reduce else 1)
    return all_gather_bytes(2 * regathered + gathered_once + reduced, ranks)


def copied_bytes(regathered: float, gathered_once: float, ranks: int) -> float:
    """Bytes that a rank of FSDP2 copies for one forward and backward pass.

    Each gathering copies the rank's own part into the buffer, and all parts from it into the
    parameters. All gradients are copied into the buffer of the reduce-scatter.
    """
    gathered = 2 * regathered + gathered_once
    return gathered * (1 + 1 / ranks) + regathered + gathered_once


def step_traffic(
    shape: ModelShape, layout: Layout, states: StateBytes, *, full_reduce: bool = False
) -> StepTraffic:
    """Predict what a rank sends in an optimizer step."""
    experts = expert_parameters(shape, layout)
    parameters = rank_parameters(shape, layout) - experts
    ranks = layout.data * layout.context
    passes = max(layout.micro_batches, 1)
    trained = trained_share(shape, states)
    tokens = layout.micro_batch * shape.sequence / layout.context
    message = tokens * shape.hidden * states.element
    layers = layout.stage_layers(shape.layers)
    copied = 0.0
    if layout.sharding is Sharding.PARAMETERS:  # gathered forward and backward, then reduced
        wire = states.frozen or min(states.weights, states.element)
        # With a pipeline the weights stay gathered, and gradients are reduced once.
        gathers = 1 if layout.pipeline > 1 else passes
        # A tied embedding is used by the first and the last module: FSDP2 leaves it gathered.
        ends = end_parameters(shape, layout) if shape.tied else 0.0
        groups = (
            ((parameters - ends) * wire, ends * wire, ranks),
            (experts * wire, 0.0, ranks // layout.expert),
        )
        data = gathers * sum(
            sharded_bytes(*group, trained=trained, full_reduce=full_reduce) for group in groups
        )
        copied = gathers * sum(copied_bytes(*group) for group in groups)
    else:
        gradients = states.gradients * trained
        data = all_reduce_bytes(parameters * gradients, ranks)
        data += all_reduce_bytes(experts * gradients, ranks // layout.expert)
    again = {Recompute.FULL: 2.0, Recompute.ALTERNATE: 2 / layout.recompute_every}
    reductions = 4 + again.get(layout.recompute, 0.0)
    tensor = reductions * layers * passes * all_reduce_bytes(message, layout.tensor)
    pipeline = 2 * passes * message * layout.virtual if layout.pipeline > 1 else 0.0
    dispatched = message * max(shape.active_experts, 1)
    expert = 4 * layers * passes * all_gather_bytes(dispatched, layout.expert)
    # Keys and values are gathered forward and backward, their gradients reduced (Llama 3, 2024).
    keys = tokens * 2 * shape.kv_width * states.element / layout.tensor
    context = 3 * layers * passes * (layout.context - 1) * keys
    return StepTraffic(data, tensor, pipeline, expert, context, copied)


def group_bandwidth(device: DeviceModel, stride: int, ranks: int) -> float:
    """Bus bandwidth of a group of ``ranks`` devices that are ``stride`` devices apart.

    The groups of a node that reach to other nodes share its network.
    """
    if stride * ranks <= device.node_devices:
        return device.bus_bandwidth
    members = max(device.node_devices // stride, 1)
    return min(device.bus_bandwidth, device.node_bandwidth * members / device.node_devices)


BACKWARD_SHARE = 2 / 3
"""Part of the computing that is the backward pass, behind which gradients are reduced."""
LAST_BUCKET = 0.05
"""Part of the gradients whose reduction nothing hides: the last bucket, or the first block."""
CONTENTION = 0.70
"""Part of FSDP's hidden traffic that computing is slower by: collectives take processors and
bandwidth of the memory from products, and layers wait for their block.
"""
BUCKET_BYTES = 25 * 2**20
"""Gradients that DDP reduces together (its default)."""
TENSOR_EXPOSED = 0.48
"""Part of the tensor parallelism's traffic that pipelined products do not hide."""
HOST_LINK_BYTES_PER_S = 20e9
"""Between a device and the memory of its host, in one direction."""
HOST_UPDATES_PER_S = 5e9
"""Parameters that Adam updates on the processors of a node (Ren et al., 2021: 10 B in 2 s)."""
EXPOSED_LIMIT = 0.05
"""Communication that is not hidden may take this share of a step, for ``bandwidth_needed``."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step."""

    compute: float
    bubble: float
    """Waiting for the first and the last pipeline stage."""
    data: float
    """Exposed communication, by the kind of parallelism that causes it."""
    tensor: float
    pipeline: float
    expert: float
    context: float = 0.0
    update: float = 0.0
    """The optimizer."""
    contention: float = 0.0
    """Slower computing behind FSDP's traffic."""
    copies: float = 0.0
    """Copies to and from the buffers of FSDP's exchanges, where a calibration has measured them."""

    @property
    def exposed(self) -> float:
        """Communication that computing does not hide."""
        return self.data + self.tensor + self.pipeline + self.expert + self.context

    @property
    def total(self) -> float:
        return (
            self.compute + self.bubble + self.exposed + self.update + self.contention + self.copies
        )


def step_time(
    shape: ModelShape, layout: Layout, states: StateBytes, device: DeviceModel, efficiency: float
) -> StepTime:
    """Predict the time of a step at an efficiency (share of the device's peak)."""
    tokens = layout.global_batch * shape.sequence
    frozen = bool(states.adapter_rank)
    work = (
        tokens
        / layout.devices
        * hardware_per_token(shape, layout.recompute, layout.recompute_every, frozen=frozen)
    )
    output = tokens * (4 if frozen else 6) * shape.vocab * shape.hidden / layout.devices
    layer_passes = layout.micro_batches * layout.stage_layers(shape.layers)
    compute = _slowest_stage(
        shape,
        layout,
        compute_time(work - output, 0.0, device, states, efficiency),
        compute_time(0.0, output, device, states, efficiency),
    )
    compute += layer_passes * device.costs.pass_s
    bubble = compute * (layout.pipeline - 1) / (layout.virtual * max(layout.micro_batches, 1))
    sent = step_traffic(shape, layout, states, full_reduce=device.full_reduce)
    inner = layout.tensor
    ranks = layout.data * layout.context
    sharded = layout.sharding is Sharding.PARAMETERS
    messages = 3 * layer_passes if sharded else sent.data / BUCKET_BYTES
    data = data_parallel_time(sent.data, compute, layout, device, messages=messages)
    own = rank_parameters(shape, layout) * trained_share(shape, states)
    own /= ranks if layout.sharding > Sharding.NONE else 1
    return StepTime(
        compute,
        bubble,
        data,
        _time(sent.tensor, group_bandwidth(device, 1, inner), inner, device) * TENSOR_EXPOSED,
        _time(sent.pipeline, group_bandwidth(device, inner * ranks, layout.pipeline), 1, device),
        _time(sent.expert, group_bandwidth(device, inner, layout.expert), 1, device),
        _time(sent.context, group_bandwidth(device, inner, layout.context), 1, device),
        own * update_s(states, layout, device),
        contention_s(sent.data, data, layout, device),
        sent.copied * device.costs.copy_s,
    )


def update_s(states: StateBytes, layout: Layout, device: DeviceModel) -> float:
    """Seconds of the optimizer for each parameter of a rank, on the device or in host memory."""
    if not states.offloaded:
        read_and_written = states.gradients + states.weights + 2 * states.optimizer
        return device.costs.update_s or read_and_written / device.memory_rate
    moved = states.gradients + states.weights
    ranks = min(layout.devices, device.node_devices)
    return moved / HOST_LINK_BYTES_PER_S + ranks / HOST_UPDATES_PER_S


def _slowest_stage(shape: ModelShape, layout: Layout, layers_s: float, output_s: float) -> float:
    """Seconds of computing of the pipeline stage for which all others wait.

    Args:
        output_s: what the output layer would take if all stages shared it.
    """
    fullest = layout.stage_layers(shape.layers)
    one_layer = layers_s * layout.pipeline / shape.layers
    # The last stage has the output layer, and fewer layers where they do not divide.
    spare = layout.pipeline * fullest - shape.layers
    return fullest * one_layer + max(layout.pipeline * output_s - spare * one_layer, 0.0)


def compute_time(
    work: float, output: float, device: DeviceModel, states: StateBytes, efficiency: float
) -> float:
    """Seconds of computing.

    Args:
        output: operations of the output layer.
    """
    reached = device.peak(states.element, fp8=states.fp8) * efficiency
    return work / reached + output / (reached * device.costs.output_efficiency)


def data_parallel_time(
    sent: float, compute: float, layout: Layout, device: DeviceModel, *, messages: float = 0.0
) -> float:
    """Seconds of gradient and weight traffic that computing does not hide."""
    ranks = layout.data * layout.context
    bandwidth = group_bandwidth(device, layout.tensor, ranks)
    taken = _time(sent, bandwidth, ranks, device)
    if sent:
        taken += messages * device.collective_s
    if not device.overlaps:
        return taken
    hidden = compute if layout.sharding is Sharding.PARAMETERS else compute * BACKWARD_SHARE
    return max(taken - hidden, LAST_BUCKET * taken)


def contention_s(sent: float, exposed_s: float, layout: Layout, device: DeviceModel) -> float:
    """Seconds that computing takes longer because FSDP's hidden traffic runs beside it."""
    if layout.sharding is not Sharding.PARAMETERS or not device.overlaps:
        return 0.0
    ranks = layout.data * layout.context
    taken = _time(sent, group_bandwidth(device, layout.tensor, ranks), ranks, device)
    return CONTENTION * max(taken - exposed_s, 0.0)


def _time(sent: float, bandwidth: float, ranks: int, device: DeviceModel) -> float:
    nodes = -(-ranks // device.node_devices)
    return sent / bandwidth + LATENCY_S * (nodes - 1) if sent else 0.0


def bandwidth_needed(
    step: Callable[[DeviceModel], StepTime], device: DeviceModel, devices: int
) -> float | None:
    """Bytes per second of a node's network at which 5 % of a step are exposed communication.

    Args:
        step: the time of a step on a device with some network.
        device: the device.
        devices: the number of devices.

    Returns:
        0 if no group leaves a node; None if no network is fast enough.
    """
    if devices <= device.node_devices:
        return 0.0

    def share(bandwidth: float) -> float:
        taken = step(replace(device, node_bandwidth=bandwidth))
        return taken.exposed / taken.total

    low, high = 1e6, 1e13
    if share(high) > EXPOSED_LIMIT:
        return None
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if share(middle) <= EXPOSED_LIMIT else (middle, high)
    return high
