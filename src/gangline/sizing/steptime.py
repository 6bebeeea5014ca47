"""Time of an optimizer step: computing, and the communication that computing does not hide."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from gangline.sizing.flops import hardware_per_token
from gangline.sizing.hardware import Device
from gangline.sizing.layout import Layout, Sharding
from gangline.sizing.model import ModelShape
from gangline.sizing.precision import StateBytes
from gangline.sizing.traffic import LATENCY_S, group_bandwidth, step_traffic

BACKWARD_SHARE = 2 / 3
"""Part of the computing that is the backward pass, behind which gradients are reduced."""
LAST_BUCKET = 0.05
"""Part of the gradients whose reduction nothing hides: the last bucket, or the first block."""
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

    @property
    def exposed(self) -> float:
        """Communication that computing does not hide."""
        return self.data + self.tensor + self.pipeline + self.expert

    @property
    def total(self) -> float:
        return self.compute + self.bubble + self.exposed


def step_time(
    shape: ModelShape, layout: Layout, states: StateBytes, device: Device, efficiency: float
) -> StepTime:
    """Predict the time of a step at an efficiency (share of the device's peak)."""
    tokens = layout.global_batch * shape.sequence
    work = tokens * hardware_per_token(shape, layout.recompute) / layout.devices
    compute = work / (device.peak(states.element) * efficiency)
    bubble = compute * (layout.pipeline - 1) / (layout.virtual * max(layout.micro_batches, 1))
    sent = step_traffic(shape, layout, states)
    inner = layout.tensor
    ranks = layout.data * layout.context
    data = data_parallel_time(sent.data, compute, layout, device)
    return StepTime(
        compute,
        bubble,
        data,
        _time(sent.tensor, group_bandwidth(device, 1, inner), inner, device),
        _time(sent.pipeline, group_bandwidth(device, inner * ranks, layout.pipeline), 1, device),
        _time(sent.expert, group_bandwidth(device, inner, layout.expert), 1, device),
    )


def data_parallel_time(sent: float, compute: float, layout: Layout, device: Device) -> float:
    """Seconds of gradient and weight traffic that computing does not hide."""
    ranks = layout.data * layout.context
    bandwidth = group_bandwidth(device, layout.tensor, ranks)
    taken = _time(sent, bandwidth, ranks, device)
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
