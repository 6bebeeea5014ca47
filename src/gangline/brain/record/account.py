"""What the pods of a job reserved over time, and curves of its ranks. Pure."""

from collections.abc import Iterable, Mapping
from statistics import median

from gangline.brain.facts.job_record import Curves
from gangline.brain.facts.records import PodRun, RankSpeed, RecordedJob
from gangline.sdk.event_files import Scalar


def reserved_seconds(job: RecordedJob, runs: Iterable[PodRun], until_ms: int) -> tuple[int, int]:
    """Return GPU seconds and core seconds that the container runs of a job had reserved.

    Args:
        job: has what each role requests.
        runs: runs of containers.
        until_ms: the end of runs that go on.
    """
    gpus = {size.role: size.gpus for size in job.roles}
    millis = {size.role: size.cpu_millis or 0 for size in job.roles}
    gpu_ms = core_ms = 0.0
    for run in runs:
        end = until_ms if run.ended_ms is None else min(run.ended_ms, until_ms)
        lasted = max(0, end - run.started_ms)
        gpu_ms += lasted * gpus.get(run.role, 0)
        core_ms += lasted * millis.get(run.role, 0) / 1000
    return round(gpu_ms / 1000), round(core_ms / 1000)


def with_scalars(curves: Curves, scalars: Iterable[Scalar]) -> Curves:
    """Add what event files of TensorBoard have; ``scalars`` are in order of time."""
    for scalar in scalars:
        point = {scalar.name: scalar.value, "step": float(scalar.step)}
        curves = curves.with_point(scalar.at_ms, point)
    return curves


def with_ranks(curves: Mapping[str, Curves], windows: Iterable[RankSpeed]) -> dict[str, Curves]:
    """Add the step times of the ranks by the minute: lowest, median and highest, in seconds."""
    table = curves.get("ranks", Curves())
    last = table.at_ms[-1] if table.at_ms else 0
    by_minute: dict[int, list[float]] = {}
    for window in windows:
        if window.window_ms > last:
            seconds = window.compute_s + (window.wait_s or 0)
            by_minute.setdefault(window.window_ms, []).append(seconds)
    for at_ms, steps in sorted(by_minute.items()):
        band = {"lowest": min(steps), "median": median(steps), "highest": max(steps)}
        table = table.with_point(at_ms, band)
    return {**curves, "ranks": table} if table.at_ms else dict(curves)
