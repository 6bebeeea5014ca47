"""Checkpoints, host memory and the failures that checkpoints are for."""

import math
from dataclasses import dataclass

CHECKPOINT_BYTES = 14.0
"""Bytes for each parameter: 16-bit weights, 32-bit master copy and moments."""
FAILURE_GPU_HOURS = 30_000.0
"""GPU hours between failures. Llama 3 had 419 unexpected interruptions in 54 days of 16,384 GPUs,
one in 50,700 GPU hours; younger clusters have more.
"""
MEMORY_COPIES = 2
"""Copies of a rank's state that checkpoints in memory keep (docs/checkpoints.md)."""


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """What checkpoints of a training need."""

    size_bytes: float
    interval_s: float
    """Time between checkpoints at which lost work and saving cost least."""
    write_bytes_per_s: float
    """Bandwidth at which a checkpoint is written before the next one begins."""
    host_bytes_per_node: float
    """Shared memory for checkpoints in memory."""


def daly_interval(save_s: float, mean_time_between_failures_s: float) -> float:
    """The best time between checkpoints (Daly, 2006, first order).

    Args:
        save_s: seconds for which a checkpoint stops the training.
        mean_time_between_failures_s: of the complete job.
    """
    if save_s >= 2 * mean_time_between_failures_s:
        return mean_time_between_failures_s
    return max(math.sqrt(2 * save_s * mean_time_between_failures_s) - save_s, save_s)


def plan_checkpoints(
    parameters: float, devices: int, node_devices: int, *, save_s: float = 1.0
) -> CheckpointPlan:
    """Plan the checkpoints of a training on ``devices`` devices."""
    size = parameters * CHECKPOINT_BYTES
    failure_s = FAILURE_GPU_HOURS * 3600 / devices
    interval = daly_interval(save_s, failure_s)
    nodes = -(-devices // node_devices)
    return CheckpointPlan(size, interval, size / interval, MEMORY_COPIES * size / nodes)


def goodput_share(
    devices: int, interval_s: float, save_s: float = 1.0, restart_s: float = 60.0
) -> float:
    """The share of time that is useful work, with failures and checkpoints."""
    failure_s = FAILURE_GPU_HOURS * 3600 / devices
    lost = (interval_s / 2 + restart_s) / failure_s
    return 1 / (1 + lost + save_s / interval_s)
