"""Assembles what advisers see of one job. Pure."""

from collections.abc import Iterable

from gangline.brain.advisers.view import ClusterView, SimilarRuns, View
from gangline.brain.facts.records import MemorySample, Run
from gangline.brain.publication.estimates import remaining_s
from gangline.sizing.hardware import find_device


def build_view(
    run: Run,
    similar: SimilarRuns | None,
    cluster: ClusterView,
    now_ms: int,
    memory: Iterable[MemorySample] = (),
) -> View:
    """Return the view of a job; what is not known stays out."""
    began = run.job.started_ms
    age_s = (now_ms - began) / 1000 if began else 0.0
    return View(
        now_ms=now_ms,
        run=run,
        similar=similar,
        cluster=cluster,
        memory_samples=tuple(memory),
        device_memory_bytes=device_memory(run),
        remaining_s=remaining_s(similar, age_s),
    )


def device_memory(run: Run) -> int | None:
    """Return the memory of one device of the job; None if its model is not known."""
    models = {segment.gpu_model for segment in run.segments if segment.gpu_model}
    models |= {role.gpu_model for role in run.job.roles if role.gpu_model}
    if len(models) != 1:
        return None
    try:
        return int(find_device(next(iter(models))).memory_bytes)
    except (LookupError, ValueError):
        return None
