"""What is expected of sizes that were never run, from the devices and the model of a job."""

from collections.abc import Iterable

from gangline.brain.facts.records import Run
from gangline.brain.models.throughput import NO_PRIOR, Prior
from gangline.sizing.hardware import UnknownDeviceError, find_device
from gangline.sizing.traffic import group_bandwidth

_GRADIENT_BYTES = 4
"""Of a parameter: gradients in 32 bits, the larger of both usual sizes."""


def job_prior(runs: Iterable[Run]) -> Prior:
    """Return the prior of a job, from what the first of its runs that knows them reports."""
    gpu_model, parameters = "", None
    for run in runs:
        named = [each.gpu_model for each in run.segments] + [r.gpu_model for r in run.job.roles]
        gpu_model = gpu_model or next(filter(None, named), "")
        parameters = parameters or (run.job.model.parameters if run.job.model else None)
    return throughput_prior(gpu_model, parameters)


def throughput_prior(gpu_model: str, parameters: int | None) -> Prior:
    """Return the prior of the exchange between devices.

    Args:
        gpu_model: as nodes report it, such as ``NVIDIA-H100-80GB-HBM3``.
        parameters: of the model; None if they are not known.

    Returns:
        ``NO_PRIOR`` for devices that ``sizing`` does not know.
    """
    try:
        device = find_device(gpu_model)
    except UnknownDeviceError:
        return NO_PRIOR
    within = device.bus_bandwidth
    between = group_bandwidth(device, 1, 2 * device.node_devices)
    exchange_s = None if parameters is None else 2 * _GRADIENT_BYTES * parameters / within
    return Prior(between_nodes=max(within / between, 1.0), exchange_s=exchange_s)
