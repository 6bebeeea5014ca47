"""Writes learned run times on pod groups, for estimates of start times only."""

import logging
from collections.abc import Iterable
from statistics import median

from gangline.api.brain.job_advice import RUN_TIME_ESTIMATE_ANNOTATION
from gangline.api.resources import POD_GROUPS
from gangline.api.volcano.scheduling import PodGroup
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import Run
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError

log = logging.getLogger(__name__)

LEAST_RUNS = 3
MAX_LEVEL = 2
"""The run time of jobs that only share an image says nothing."""
RELATIVE_CHANGE = 0.1


def run_time_estimate_s(similar: SimilarRuns | None) -> int | None:
    """Return the median run time of the family; None if too few runs are known."""
    if similar is None or similar.level > MAX_LEVEL:
        return None
    times = [seconds for run in similar.runs if (seconds := _run_time_s(run)) is not None]
    return round(median(times)) if len(times) >= LEAST_RUNS else None


def _run_time_s(run: Run) -> float | None:
    if run.job.finished_ms is None or run.job.started_ms is None:
        return None
    return max(0, run.job.finished_ms - run.job.started_ms) / 1000


async def write_estimate(client: ApiClient, group: PodGroup, seconds: int | None) -> bool:
    """Write the estimate on a group if it moved noticeably. Returns whether it was written."""
    written = group.metadata.annotations.get(RUN_TIME_ESTIMATE_ANNOTATION, "")
    if seconds is None or _is_close(written, seconds):
        return False
    patch = {"metadata": {"annotations": {RUN_TIME_ESTIMATE_ANNOTATION: str(seconds)}}}
    meta = group.metadata
    try:
        await client.patch(POD_GROUPS, meta.name, patch, meta.namespace)
    except ApiError as error:
        log.debug("cannot write an estimate: %s", error, extra={"podgroup": meta.name})
        return False
    return True


def _is_close(written: str, seconds: int) -> bool:
    if not (written.isascii() and written.isdecimal()):
        return False
    return abs(int(written) - seconds) <= RELATIVE_CHANGE * seconds


def remaining_s(similar: SimilarRuns | None, age_s: float) -> float | None:
    """Return the median rest of comparable runs that lasted longer than this; None if none did."""
    times: Iterable[float | None] = map(_run_time_s, similar.runs) if similar else ()
    rests = [seconds - age_s for seconds in times if seconds is not None and seconds > age_s]
    return median(rests) if rests else None
