"""What a training needs beside its devices: checkpoints, host memory and processors.

The interval of checkpoints follows from the failures that they are for.
"""

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


PROCESS_CPUS = 2
"""Cores of the process of a device: one runs Python and launches kernels, one the threads of
autograd, of the communication and of pinned memory.
"""
LOADED_BYTES_PER_S = 120e6
"""Bytes of samples that a core prepares in a second, an assumption: 200 images of 224 x 224 pixels
in 32 bits, decoded from JPEG and augmented, or 30 million tokens.
"""

_SAVE_S, _RESTART_S = 1.0, 60.0
"""Seconds for which a checkpoint stops the training, and that a restart takes."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """What the processes of a training need of the processors of their nodes."""

    data_bytes_per_s: float | None
    """Samples that all processes read; None: their size is unknown."""
    sample_cpu_s: float
    """Seconds that a core takes to load and prepare a sample."""
    loader_workers: int
    """Processes that prepare samples, for each device."""

    @property
    def device_cpus(self) -> int:
        """Cores for each device."""
        return PROCESS_CPUS + self.loader_workers


def plan_host(
    samples_per_s: float, sample_bytes: float, loaders: int, *, sample_cpu_s: float = 0.0
) -> HostPlan:
    """Plan the loading of samples.

    Args:
        loaders: ranks that load different samples.
        sample_cpu_s: seconds that a core takes for a sample; 0: by ``LOADED_BYTES_PER_S``.
    """
    taken = sample_cpu_s or sample_bytes / LOADED_BYTES_PER_S
    workers = max(math.ceil(samples_per_s / loaders * taken), 1)
    return HostPlan(samples_per_s * sample_bytes if sample_bytes else None, taken, workers)


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
    """The best time between checkpoints (Daly, 2006, first order)."""
    if save_s >= 2 * mean_time_between_failures_s:
        return mean_time_between_failures_s
    return max(math.sqrt(2 * save_s * mean_time_between_failures_s) - save_s, save_s)


def plan_checkpoints(parameters: float, devices: int, node_devices: int) -> CheckpointPlan:
    """Plan the checkpoints of a training on ``devices`` devices."""
    size = parameters * CHECKPOINT_BYTES
    failure_s = FAILURE_GPU_HOURS * 3600 / devices
    interval = daly_interval(_SAVE_S, failure_s)
    nodes = -(-devices // node_devices)
    return CheckpointPlan(size, interval, size / interval, MEMORY_COPIES * size / nodes)


def goodput_share(devices: int, interval_s: float) -> float:
    """The share of time that is useful work, with failures and checkpoints."""
    failure_s = FAILURE_GPU_HOURS * 3600 / devices
    lost = (interval_s / 2 + _RESTART_S) / failure_s
    return 1 / (1 + lost + _SAVE_S / interval_s)
