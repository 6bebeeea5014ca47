"""What an adviser sees: one job, similar runs, the cluster, the time."""

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import Self

import msgspec

from gangline.api.jobs.training_facts import SegmentFacts
from gangline.brain.facts.records import MemorySample, NodeCapacity, NodeSpeed, RankSpeed, Run


class SimilarRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that are comparable with the job, best first; the job itself is never among them."""

    level: int = 0
    """0: same specification, 1: same family, 2: family without the command, 3: same image and
    strategy, 4: nearest model of any namespace."""
    runs: tuple[Run, ...] = ()
    """Complete successful runs."""
    bounds: tuple[Run, ...] = ()
    """Running, failed or partly watched runs: they count as lower bounds only."""


class DevicePeak(msgspec.Struct, frozen=True, kw_only=True):
    """The device memory of one micro-batch on one device model, of its largest rank."""

    gpu_model: str
    micro_batch: int
    peak_bytes: int
    memory_bytes: int
    """Memory of one device."""
    oom: bool = False
    """True if a rank ran out of device memory with this micro-batch, now or in the family."""
    at_ms: int | None = None
    """When a rank of this job last did so; None if it is not known."""


class ServerUse(msgspec.Struct, frozen=True, kw_only=True):
    """CPU and memory of one parameter server, means of one minute, oldest first."""

    rank: int
    node: str
    cpu_limit_millis: int | None
    memory_limit_bytes: int | None
    cpu_millis: tuple[int, ...] = ()
    memory_bytes: tuple[int, ...] = ()


class NodeCheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a node check between a suspected node and good peers found."""

    node: str
    at_ms: int
    slow: bool


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """Failures that no user's code caused, and the GPU hours in which they happened."""

    failures: float = 0.0
    gpu_hours: float = 0.0

    @classmethod
    def total(cls, exposures: Iterable[Self]) -> Self:
        pairs = [(one.failures, one.gpu_hours) for one in exposures]
        failures, gpu_hours = map(sum, zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
        return cls(failures=failures, gpu_hours=gpu_hours)


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeCapacity, ...] = ()
    price: float = 0.0
    """Loss per GPU of the best refused use: 0 when devices are idle, up to 1."""
    node_speeds: tuple[NodeSpeed, ...] = ()
    exposure: Exposure = Exposure()
    """Of all jobs of the cluster, the last 30 days."""

    def most_free(self, memory_bytes: int) -> tuple[str, int] | None:
        """Return the node with the most free CPU, in millicores, of those with so much free memory.

        Without such a node its name is empty, and the CPU 0; None if no node is known.
        """
        fitting = [node for node in self.nodes if node.free[1] >= memory_bytes]
        most = max(fitting, key=lambda node: (node.free[0], node.name), default=None)
        if most is None:
            return ("", 0) if self.nodes else None
        return most.name, most.free[0]

    def most_free_for(self, pods: int, memory_bytes: int, most_millis: int) -> int | None:
        """Return the most millicores that each of several pods can have beside its memory.

        At most ``most_millis``, 0 if no pods fit; None if no node is known.
        """
        free = [node.free for node in self.nodes]

        def fit(each: int) -> bool:
            return pods <= sum(
                min(cpu // each, memory // memory_bytes if memory_bytes else pods)
                for cpu, memory in free
            )

        # What fits with more CPU fits with less.
        sizes = range(1, most_millis + 1)
        return bisect_right(sizes, False, key=lambda n: not fit(n)) if free else None


class AdviserView(msgspec.Struct, frozen=True, kw_only=True):
    now_ms: int
    run: Run
    """The job that is advised, running or waiting, with what is known of it so far."""
    similar: SimilarRuns = SimilarRuns()
    cluster: ClusterView = ClusterView()
    rank_speeds: tuple[RankSpeed, ...] = ()
    memory_samples: tuple[MemorySample, ...] = ()
    """Memory of the ranks that run now, oldest first; one sample a minute is enough."""
    remaining_s: float | None = None
    """Median rest of similar runs that lasted longer than this one; None if none did."""
    device_peaks: tuple[DevicePeak, ...] = ()
    exposure: Exposure = Exposure()
    """Of the job and its family."""
    node_exposure: Exposure = Exposure()
    """Of the nodes that the job runs on, in all jobs."""
    node_checks: tuple[NodeCheckResult, ...] = ()
    servers: tuple[ServerUse, ...] = ()
    """Parameter servers; empty for jobs without."""
    probes: int = 0
    """Changes that were made to this job to learn; at most one is made."""
    prediction_error: float = 0.0
    """Standard deviation of log goodput beyond the predicted ranges in trials of the family."""

    @property
    def last_segment(self) -> SegmentFacts | None:
        """The last segment, of whatever quality."""
        return self.run.segments[-1] if self.run.segments else None


def expected_rest_s(view: AdviserView) -> float | None:
    """Return the seconds that the job will probably run; None if it does not run.

    ``remaining_s``; else the age so far, the best guess for a duration of unknown scale.
    """
    if view.remaining_s is not None and math.isfinite(view.remaining_s):
        return view.remaining_s
    job = view.run.job
    if job.started_ms is None or job.finished_ms is not None:
        return None
    return max(view.now_ms - job.started_ms, 0) / 1000
