"""All advisers, in turn. A mistake in one of them does not take the advice of the others.

Advice as published: its numbers as its sentence shows them, and the sentence.
"""

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gangline.brain.advisers import rightsize, start
from gangline.brain.advisers.advice import Advice, Choice, Reason
from gangline.brain.advisers.batch import advise_batch
from gangline.brain.advisers.checkpoints import advise_checkpoints
from gangline.brain.advisers.explain import displayed, displayed_reason, reason_sentence, sentence
from gangline.brain.advisers.servers import advise_servers
from gangline.brain.advisers.stragglers import advise_stragglers
from gangline.brain.advisers.view import SimilarRuns, View
from gangline.brain.advisers.workers import advise_workers, fitted_segments, size_choices
from gangline.brain.facts.records import Run, Segment
from gangline.brain.models.throughput import ThroughputModel, observations
from gangline.brain.models.throughput_fit import fit_throughput, job_prior
from gangline.brain.publication.items import format_amount

log = logging.getLogger(__name__)


class PublishedAdvice(NamedTuple):
    """Advice with rounded numbers, so that JSON and sentence are equal."""

    advice: Advice
    sentence: str


def published(advice: Advice) -> PublishedAdvice:
    """Return advice as users see it. A reason without a sentence does not suppress the number."""
    try:
        shown = displayed(advice)
        return PublishedAdvice(shown, sentence(shown))
    except (KeyError, ValueError, TypeError):
        log.exception("a reason has no sentence", extra={"reason": advice.reason.code})
    subject = f"{advice.what} of {advice.role}" if advice.role else str(advice.what)
    value = format_amount(advice.value, advice.unit) or advice.target
    return PublishedAdvice(advice, f"{subject}: {value} ({advice.reason.code})")


def hold_sentence(reason: Reason | None) -> str:
    """Return a reason to hold; empty if there is none."""
    if reason is None:
        return ""
    try:
        return reason_sentence(displayed_reason(reason))
    except (KeyError, ValueError, TypeError):
        log.exception("a reason has no sentence", extra={"reason": reason.code})
        return reason.code


class Fitted(NamedTuple):
    """The throughput of a job, and all that it rests on: while that stays, it stays."""

    run: Run
    similar: SimilarRuns | None
    prediction_error: float
    model: ThroughputModel | None
    choices: tuple[Choice, ...]
    """Predicted goodput by number of workers; empty where it is not known."""

    def is_of(self, view: View) -> bool:
        """Whether a fit for ``view`` would be this one."""
        return (
            self.run.job == view.run.job
            and self.run.segments == view.run.segments
            and self.similar == view.similar
            and self.prediction_error == view.prediction_error
        )


class Advised(NamedTuple):
    """All advice on one job, one piece for each subject, and the sizes that it may have."""

    advice: list[Advice]
    fitted: Fitted

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.fitted.choices


def advise(view: View, known: Fitted | None = None) -> Advised:
    """Return all advice on one job.

    Args:
        view: the job.
        known: its fit in an earlier evaluation; segments close every five minutes only.
    """
    found: dict[tuple[str, str, int, str], Advice] = {}
    fitted = known if known is not None and known.is_of(view) else _fitted(view)
    model, choices = fitted.model, fitted.choices
    for adviser in (*_plain(view), *_with_model(view, model, choices)):
        for advice in _advice_of(adviser, view):
            found.setdefault(advice.key, advice)
    return Advised(list(found.values()), fitted)


def _fitted(view: View) -> Fitted:
    model = _fit(view) if view.run.segments else None
    choices = _choices(view, model)
    return Fitted(view.run, view.similar, view.prediction_error, model, choices)


def _choices(view: View, model: ThroughputModel | None) -> tuple[Choice, ...]:
    if model is None or view.run.job.kind != "ElasticJob":
        return ()
    try:
        return tuple(size_choices(view, model))
    except (ArithmeticError, ValueError):
        log.exception("sizes could not be predicted", extra={"job": view.run.job.name})
        return ()


def _plain(view: View) -> Iterator[Callable[[], list[Advice]]]:
    yield lambda: start.advise(view)
    yield lambda: rightsize.advise(view)
    yield lambda: advise_checkpoints(view)
    yield lambda: advise_stragglers(view)
    yield lambda: advise_servers(view)


def _with_model(
    view: View, model: ThroughputModel | None, choices: tuple[Choice, ...]
) -> Iterator[Callable[[], list[Advice]]]:
    if not view.run.segments:
        return
    yield lambda: advise_workers(view, model, choices or None)
    yield lambda: advise_batch(view, model)


def _advice_of(adviser: Callable[[], list[Advice]], view: View) -> list[Advice]:
    try:
        return adviser()
    except (ArithmeticError, ValueError, LookupError, TypeError):
        job = view.run.job
        log.exception("an adviser failed", extra={"job": f"{job.namespace}/{job.name}"})
        return []


def _fit(view: View) -> ThroughputModel | None:
    """Fit the throughput to the job and its family: the same program, up to the specification.

    Ages are counted from the newest segment on. The weights of all segments shrink alike with time,
    so the present time has no effect.
    """
    family = view.similar.runs if view.similar is not None and view.similar.level <= 1 else ()
    segments: list[Segment] = list(view.run.segments)
    for run in family:
        segments += run.segments
    try:
        now_ms = max(segment.until_ms for segment in segments)
        data = observations(fitted_segments(segments), now_ms)
        return fit_throughput(data, job_prior([view.run, *family]))
    except (ArithmeticError, ValueError):
        log.exception("the throughput could not be fitted")
        return None
