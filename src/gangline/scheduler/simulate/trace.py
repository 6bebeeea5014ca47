"""Job traces, as CSV or JSON.

Columns (or keys) of a job: ``arrival`` (seconds), ``duration`` (seconds), ``size`` (pods).
Optional: ``name``, ``minimum`` (default: the size), ``cpu`` (1), ``memory`` (0) and ``gpu`` (0) of
each pod, ``queue`` (default), ``priority`` (0), ``fails_after`` (seconds of running after which it
fails once and restarts), ``checkpoint_every`` (seconds of running between checkpoints; 0: none).
"""

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline.api.quantity import QuantityError
from gangline.api.resource_list import CPU, GPU, MEMORY, PODS, parse_resource
from gangline.api.volcano.scheduling import DEFAULT_QUEUE
from gangline.scheduler.types.types import Request

_KNOWN = frozenset(
    ("name", "arrival", "duration", "size", "minimum", "cpu", "memory", "gpu", "queue", "priority")
) | {"fails_after", "checkpoint_every"}


class TraceError(ValueError):
    """A trace or cluster description cannot be read. The message says where and why."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A gang that arrives, runs, and ends."""

    name: str
    arrival: float
    """Seconds since the start of the trace."""
    duration: float
    """Seconds of running that it needs in total."""
    size: int
    request: Request
    """Request of each pod."""
    minimum: int
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    fails_after: float = 0.0
    """Seconds of running after which it fails once and restarts; 0: it does not fail."""
    checkpoint_every: float = 0.0
    """Seconds of running between checkpoints; 0: none."""

    def checkpointed_work(self, seconds: float) -> float:
        """Return how many of these seconds of running a checkpoint has saved."""
        every = self.checkpoint_every
        return seconds - math.fmod(seconds, every) if every else 0.0


def read_trace(path: Path) -> list[TraceJob]:
    """Read a trace, in the order of arrival.

    Raises:
        TraceError: the file cannot be parsed.
    """
    try:
        text = path.read_text(encoding="utf-8")
        rows = json.loads(text) if path.suffix == ".json" else csv.DictReader(text.splitlines())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    if isinstance(rows, dict):
        rows = rows.get("jobs", [])
    if not isinstance(rows, Iterable) or isinstance(rows, str):
        raise TraceError(f"{path}: not a list of jobs")
    jobs = [_job(row, f"{path}, job {number}", number) for number, row in enumerate(rows, 1)]
    names = {job.name for job in jobs}
    if len(names) != len(jobs):
        raise TraceError(f"{path}: names of jobs are not unique")
    return sorted(jobs, key=lambda job: (job.arrival, job.name))


def _job(row: object, where: str, number: int) -> TraceJob:
    if not isinstance(row, Mapping):
        raise TraceError(f"{where}: not a job")
    if unknown := sorted(str(key) for key in row if key not in _KNOWN):
        raise TraceError(f"{where}: unknown {', '.join(unknown)}")
    given = {key: value for key, value in row.items() if value not in (None, "")}
    try:
        size = int(given.get("size", 1))
        job = TraceJob(
            name=str(given.get("name", f"job-{number}")),
            arrival=float(given["arrival"]),
            duration=float(given["duration"]),
            size=size,
            request=pod_request(given.get("cpu", 1), given.get("memory", 0), given.get("gpu", 0)),
            minimum=int(given.get("minimum", size)),
            queue=str(given.get("queue", DEFAULT_QUEUE)),
            priority=int(given.get("priority", 0)),
            fails_after=float(given.get("fails_after", 0)),
            checkpoint_every=float(given.get("checkpoint_every", 0)),
        )
    except KeyError as error:
        raise TraceError(f"{where}: no {error.args[0]}") from error
    except (TypeError, ValueError) as error:
        raise TraceError(f"{where}: {error}") from error
    if job.arrival < 0 or job.duration < 0 or not 0 <= job.minimum <= job.size or job.size < 1:
        raise TraceError(f"{where}: invalid arrival, duration, size or minimum")
    if not 0 <= job.checkpoint_every < math.inf:
        raise TraceError(f"{where}: invalid checkpoint_every")
    return job


def pod_request(cpu: object, memory: object, gpu: object) -> Request:
    """Return the request of a pod from Kubernetes quantities.

    Raises:
        ValueError: one of them is not a quantity.
    """
    counts = {PODS: 1}
    for name, written in ((CPU, cpu), (MEMORY, memory), (GPU, gpu)):
        if not isinstance(written, str | int | float):
            raise QuantityError(written, "is not a quantity", "write a number such as 2 or 500m")
        counts[name] = parse_resource(name, written)
    if any(count < 0 for count in counts.values()):
        raise ValueError("amounts must not be negative")
    return tuple(sorted((name, count) for name, count in counts.items() if count))
