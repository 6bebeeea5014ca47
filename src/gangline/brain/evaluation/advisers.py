"""All advisers, in turn. A mistake in one of them does not take the advice of the others."""

import logging
from collections.abc import Callable, Iterator

from gangline.brain.advisers import rightsize, start
from gangline.brain.advisers.advice import Advice
from gangline.brain.advisers.batch import advise_batch
from gangline.brain.advisers.checkpoints import advise_checkpoints
from gangline.brain.advisers.servers import advise_servers
from gangline.brain.advisers.stragglers import advise_stragglers
from gangline.brain.advisers.view import View
from gangline.brain.advisers.workers import advise_workers, fitted_segments
from gangline.brain.facts.records import Segment
from gangline.brain.models.throughput import ThroughputModel, observations
from gangline.brain.models.throughput_fit import fit_throughput

log = logging.getLogger(__name__)


def advise(view: View) -> list[Advice]:
    """Return all advice on one job, one piece for each subject."""
    found: dict[tuple[str, str, int, str], Advice] = {}
    for adviser in (*_plain(view), *_with_model(view)):
        for advice in _advice_of(adviser, view):
            found.setdefault(advice.key, advice)
    return list(found.values())


def _plain(view: View) -> Iterator[Callable[[], list[Advice]]]:
    yield lambda: start.advise(view)
    yield lambda: rightsize.advise(view)
    yield lambda: advise_checkpoints(view)
    yield lambda: advise_stragglers(view)
    yield lambda: advise_servers(view)


def _with_model(view: View) -> Iterator[Callable[[], list[Advice]]]:
    if not view.run.segments:
        return
    model = _fit(view)
    yield lambda: advise_workers(view, model)
    yield lambda: advise_batch(view, model)


def _advice_of(adviser: Callable[[], list[Advice]], view: View) -> list[Advice]:
    try:
        return adviser()
    except (ArithmeticError, ValueError, LookupError, TypeError):
        job = view.run.job
        log.exception("an adviser failed", extra={"job": f"{job.namespace}/{job.name}"})
        return []


def _fit(view: View) -> ThroughputModel | None:
    """Fit the throughput to the job and its family: the same program, up to the specification."""
    segments: list[Segment] = list(view.run.segments)
    if view.similar is not None and view.similar.level <= 1:
        for run in view.similar.runs:
            segments += run.segments
    try:
        return fit_throughput(observations(fitted_segments(segments), view.now_ms))
    except (ArithmeticError, ValueError):
        log.exception("the throughput could not be fitted")
        return None
