"""Time of an optimizer step: computing, and the communication that computing does not hide."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from gangline.sizing.flops import hardware_per_token
from gangline.sizing.hardware import Device
from gangline.sizing.layout import Layout, Sharding
from gangline.sizing.memory import rank_parameters
from gangline.sizing.model import ModelShape
from gangline.sizing.precision import StateBytes
from gangline.sizing.traffic import LATENCY_S, group_bandwidth, step_traffic

BACKWARD_SHARE = 2 / 3
"""Part of the computing that is the backward pass, behind which gradients are reduced."""
LAST_BUCKET = 0.05
"""Part of the gradients whose reduction nothing hides: the last bucket, or the first block."""
BUCKET_BYTES = 25 * 2**20
"""Gradients that DDP reduces together (its default)."""
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
    """The optimizer, where a calibration has measured it; else a part of the efficiency."""
    copies: float = 0.0
    """Copies to and from the buffers of FSDP's exchanges, where a calibration has measured them."""

    @property
    def exposed(self) -> float:
        """Communication that computing does not hide."""
        return self.data + self.tensor + self.pipeline + self.expert + self.context

    @property
    def total(self) -> float:
        return self.compute + self.bubble + self.exposed + self.update + self.copies


def step_time(
    shape: ModelShape, layout: Layout, states: StateBytes, device: Device, efficiency: float
) -> StepTime:
    """Predict the time of a step at an efficiency (share of the device's peak)."""
    tokens = layout.global_batch * shape.sequence
    work = tokens * hardware_per_token(shape, layout.recompute) / layout.devices
    output = tokens * 6 * shape.vocab * shape.hidden / layout.devices
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
    own = rank_parameters(shape, layout) / (ranks if layout.sharding > Sharding.NONE else 1)
    return StepTime(
        compute,
        bubble,
        data,
        _time(sent.tensor, group_bandwidth(device, 1, inner), inner, device),
        _time(sent.pipeline, group_bandwidth(device, inner * ranks, layout.pipeline), 1, device),
        _time(sent.expert, group_bandwidth(device, inner, layout.expert), 1, device),
        _time(sent.context, group_bandwidth(device, inner, layout.context), 1, device),
        own * device.costs.update_s,
        sent.copied * device.costs.copy_s,
    )


def _slowest_stage(shape: ModelShape, layout: Layout, layers_s: float, output_s: float) -> float:
    """Seconds of computing of the pipeline stage for which all others wait.

    Args:
        shape: the model.
        layout: its pipeline.
        layers_s: what the layers would take if all stages had equally many.
        output_s: what the output layer would take if all stages shared it.
    """
    fullest = layout.stage_layers(shape.layers)
    one_layer = layers_s * layout.pipeline / shape.layers
    # The last stage has the output layer, and fewer layers where they do not divide.
    spare = layout.pipeline * fullest - shape.layers
    return fullest * one_layer + max(layout.pipeline * output_s - spare * one_layer, 0.0)


def compute_time(
    work: float, output: float, device: Device, states: StateBytes, efficiency: float
) -> float:
    """Seconds of computing.

    Args:
        work: operations of the layers.
        output: operations of the output layer.
        device: the device.
        states: the number format.
        efficiency: share of the device's peak.
    """
    reached = device.peak(states.element) * efficiency
    return work / reached + output / (reached * device.costs.output_efficiency)


def data_parallel_time(
    sent: float, compute: float, layout: Layout, device: Device, *, messages: float = 0.0
) -> float:
    """Seconds of gradient and weight traffic that computing does not hide.

    Args:
        sent: bytes that a rank sends.
        compute: seconds of computing.
        layout: how the training is spread.
        device: the device and its network.
        messages: number of collective operations.
    """
    ranks = layout.data * layout.context
    bandwidth = group_bandwidth(device, layout.tensor, ranks)
    taken = _time(sent, bandwidth, ranks, device)
    if sent:
        taken += messages * device.collective_s
    if not device.overlaps:
        return taken
    hidden = compute if layout.sharding is Sharding.PARAMETERS else compute * BACKWARD_SHARE
    return max(taken - hidden, LAST_BUCKET * taken)


def _time(sent: float, bandwidth: float, ranks: int, device: Device) -> float:
    nodes = -(-ranks // device.node_devices)
    return sent / bandwidth + LATENCY_S * (nodes - 1) if sent else 0.0


def bandwidth_needed(
    step: Callable[[Device], StepTime], device: Device, devices: int
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
