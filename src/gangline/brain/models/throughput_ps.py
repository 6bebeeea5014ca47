"""Throughput with parameter servers: three forms of the time of an iteration, the best is used.

For w workers, p servers, micro-batch m and the cores that a worker and a server really use::

    resources     T = g m/c_w + u w/(p c_p) + y w/p + e m/p + b
    asynchronous  T = t0 + t1 w/p + t2 w + t3 p
    synchronous   T = t0 M/w + t1 + t2 w/p + t3 w + t4 p,  M = w m

The first has the terms of DLRover-RM (arXiv 2304.01468): computing, update, synchronisation, lookup
of embeddings and a constant; sizes that are constant in a job (bytes of the model, width of an
embedding) are part of its coefficients. The others are those of Optimus (EuroSys 2018). All are
fitted by non-negative least squares; the one with the lowest error at left-out configurations
serves.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gangline.brain.models.nnls import Array, nnls

ASSUMED_ERROR = 0.1


@dataclass(frozen=True, slots=True)
class ServerConfiguration:
    """Workers and parameter servers of a job."""

    workers: int
    servers: int
    micro_batch: float
    worker_cores: float
    """Cores that a worker uses."""
    server_cores: float


@dataclass(frozen=True, slots=True)
class ServerObservation:
    """Iterations of one configuration."""

    configuration: ServerConfiguration
    steps: int
    step_s: float


def _resources(at: ServerConfiguration) -> list[float]:
    per_server = at.workers / at.servers
    return [
        at.micro_batch / at.worker_cores,
        per_server / at.server_cores,
        per_server,
        at.micro_batch / at.servers,
        1.0,
    ]


def _asynchronous(at: ServerConfiguration) -> list[float]:
    return [1.0, at.workers / at.servers, float(at.workers), float(at.servers)]


def _synchronous(at: ServerConfiguration) -> list[float]:
    return [at.micro_batch, *_asynchronous(at)]


FORMS: dict[str, Callable[[ServerConfiguration], list[float]]] = {
    "resources": _resources,
    "asynchronous": _asynchronous,
    "synchronous": _synchronous,
}


@dataclass(frozen=True, slots=True)
class ServerThroughputModel:
    """A fitted model."""

    form: str
    coefficients: Array
    error: float
    """Median logarithmic error at configurations left out."""
    workers: tuple[int, int]
    servers: tuple[int, int]

    def step_time(self, at: ServerConfiguration) -> float:
        """Return the seconds of an iteration of one worker."""
        return float(np.array(FORMS[self.form](at)) @ self.coefficients)

    def samples_per_second(self, at: ServerConfiguration) -> float:
        """Return the throughput of all workers together."""
        return at.workers * at.micro_batch / self.step_time(at)

    def extrapolated(self, at: ServerConfiguration) -> bool:
        """Whether a configuration is outside of what was observed."""
        inside = self.workers[0] <= at.workers <= self.workers[1]
        return not (inside and self.servers[0] <= at.servers <= self.servers[1])


def fit_server_throughput(data: Sequence[ServerObservation]) -> ServerThroughputModel | None:
    """Fit all forms and return the best.

    Returns:
        None without an observation that can be used: counts, cores and times above 0.
    """
    usable = [each for each in data if _possible(each)]
    if not usable:
        return None
    fitted = {form: _left_out(form, usable) for form in FORMS}
    form = min(fitted, key=lambda name: fitted[name])
    at = [each.configuration for each in usable]
    return ServerThroughputModel(
        form,
        _fit(form, usable),
        fitted[form],
        (min(c.workers for c in at), max(c.workers for c in at)),
        (min(c.servers for c in at), max(c.servers for c in at)),
    )


def _possible(each: ServerObservation) -> bool:
    at = each.configuration
    amounts = (at.workers, at.servers, at.micro_batch, at.worker_cores, at.server_cores)
    return all(math.isfinite(v) and v > 0 for v in (*amounts, each.steps, each.step_s))


def _fit(form: str, data: Sequence[ServerObservation]) -> Array:
    rows = np.array([FORMS[form](each.configuration) for each in data])
    root = np.sqrt([each.steps / each.step_s**2 for each in data])
    steps = np.array([each.step_s for each in data])
    return nnls(rows * root[:, None], steps * root).x


def _left_out(form: str, data: Sequence[ServerObservation]) -> float:
    groups = {each.configuration for each in data}
    if len(groups) < 3:
        return ASSUMED_ERROR
    errors = []
    for left in groups:
        coefficients = _fit(form, [each for each in data if each.configuration != left])
        predicted = max(float(np.array(FORMS[form](left)) @ coefficients), 1e-12)
        errors += [
            abs(math.log(predicted / each.step_s)) for each in data if each.configuration == left
        ]
    return float(np.median(errors))
