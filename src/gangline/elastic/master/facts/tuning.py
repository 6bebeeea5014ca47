"""Checks a tuning and converts it from the ConfigMap's form to the message."""

import math

from gangline.api.jobs.training_facts import FACTS_VERSION, JobTuning, LoaderTuning
from gangline.elastic.protocol.messages import (
    CheckpointValues,
    LoaderValues,
    OptimizerValues,
    Tuning,
)

_MAX_BATCH = 1 << 20
_MAX_WORKERS = 1024
_MAX_SECONDS = 1e12


def convert_tuning(tuning: JobTuning) -> Tuning:
    """Return the message.

    Raises:
        ValueError: a value is impossible; the message names it.
    """
    if tuning.v != FACTS_VERSION:
        raise ValueError(f"v is {tuning.v}, expected {FACTS_VERSION}")
    if tuning.version < 1:
        raise ValueError(f"version is {tuning.version}, expected at least 1")
    optimizer, checkpoint = tuning.optimizer, tuning.checkpoint
    values = OptimizerValues()
    if optimizer is not None:
        _check("optimizer.learningRate", optimizer.learning_rate, 0.0, 1e6)
        _check("optimizer.weightDecay", optimizer.weight_decay, 0.0, 1e6)
        values = OptimizerValues(optimizer.learning_rate, optimizer.weight_decay)
    prior = None
    if checkpoint is not None:
        _check("checkpoint.failures", checkpoint.failures, 1e-9, 1e9)
        _check("checkpoint.seconds", checkpoint.seconds, 1e-3, _MAX_SECONDS)
        prior = CheckpointValues(checkpoint.failures, checkpoint.seconds)
    return Tuning(
        version=tuning.version,
        dataloader=_loader("dataloader", tuning.dataloader),
        devices={
            name: _loader(f"devices[{name}]", loader) for name, loader in tuning.devices.items()
        },
        optimizer=values,
        checkpoint=prior,
    )


def _loader(field: str, loader: LoaderTuning | None) -> LoaderValues:
    if loader is None:
        return LoaderValues()
    _check(f"{field}.batchSize", loader.batch_size, 1, _MAX_BATCH)
    _check(f"{field}.numWorkers", loader.num_workers, 0, _MAX_WORKERS)
    return LoaderValues(loader.batch_size, loader.num_workers, loader.pin_memory)


def _check(field: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{field} is {value:g}, expected {least:g} to {most:g}")
