"""The trial of an action: is it kept, rolled back, or unclear; and the hour after it was kept.

An action is judged by segments alone, so that a Brain that was killed in between judges later. The
measure is goodput: records per second, times the statistical efficiency of a record. It is compared
as its natural logarithm, one observation for each good segment. Comparing again and again at a
fixed interval finds differences that do not exist; so the interval of the new mean is valid for all
numbers of segments at once (Robbins, "Statistical methods related to the law of the iterated
logarithm", Ann. Math. Stat. 41(5), 1970: the boundary of a normal mixture).
"""

import math
import operator
from collections.abc import Sequence
from statistics import fmean, median

import msgspec

from gangline.api.jobs.training_facts import GOOD, SegmentFacts
from gangline.brain.advisers.advice import (
    Arguments,
    Baseline,
    GuardAction,
    Reason,
    Verdict,
    What,
    because,
)
from gangline.brain.guard.policy import DEFAULTS, FACTS_DELAY_S, GuardSettings

PRIOR_SD = 0.05
"""Standard deviation of the logarithm of a segment's goodput, before a job shows its own."""
PRIOR_WEIGHT = 4
"""Observations that the prior counts for."""
_LEAST_SD = 0.01
ALPHA = 0.2
"""The intervals hold 80 %, as all ranges of the Brain."""
_Z = 1.2816
"""The 90th percentile of the standard normal distribution."""
_MIXTURE = 1.0
"""Segments at which the sequential interval is narrowest, relative to a fixed one."""


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """New goodput over old: the estimate and its range of 80 %, over all looks together."""

    low: float
    middle: float
    high: float


def moments(logs: Sequence[float]) -> Baseline | None:
    """Summarise logarithms of goodput; None if there are none.

    From three on, those farther from the median than two robust deviations count as at two: one
    segment with a slow rank must not decide a trial.
    """
    if not logs:
        return None
    if len(logs) >= 3:
        middle = median(logs)
        limit = 2 * max(1.4826 * median(abs(log - middle) for log in logs), _LEAST_SD)
        logs = [min(max(log, middle - limit), middle + limit) for log in logs]
    mean = fmean(logs)
    return Baseline(mean=mean, count=len(logs), m2=sum((log - mean) ** 2 for log in logs))


def compare(before: Baseline | None, after: Baseline | None) -> Ratio | None:
    """Compare goodput before and after; None if one of them is not known."""
    if before is None or after is None:
        return None
    deviation = _deviation(before, after)
    difference = after.mean - before.mean
    radius = deviation * math.hypot(_Z / math.sqrt(before.count), sequential_radius(after.count))
    return Ratio(
        low=math.exp(difference - radius),
        middle=math.exp(difference),
        high=math.exp(difference + radius),
    )


def sequential_radius(count: int) -> float:
    """Half the width of the interval of a mean of ``count`` observations with variance 1."""
    total = count + _MIXTURE
    return math.sqrt(total * math.log(total / (_MIXTURE * ALPHA**2))) / count


def _deviation(*parts: Baseline) -> float:
    squares = PRIOR_WEIGHT * PRIOR_SD**2 + sum(part.m2 for part in parts)
    freedom = PRIOR_WEIGHT + sum(part.count - 1 for part in parts)
    return math.sqrt(squares / freedom)


_CLOCK_MS = 60_000
_BASELINE = 12
"""Segments of the baseline at most: an hour."""


class TrialEvents(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the job since the action, beside its segments."""

    formed: bool | None = None
    """Whether the world of the new size has formed; None: only segments can show it."""
    oom: bool = False
    """A rank ran out of memory, of the host or of a device."""
    overtaken: bool = False
    """A person or another controller changed the same field."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    why: Reason
    surprise: float | None = None
    """log(measured / nearest end of the predicted range), 0 within it: by what errors grow."""


def baseline(
    segments: Sequence[SegmentFacts], at_ms: int, settings: GuardSettings = DEFAULTS
) -> Baseline | None:
    same = present_segments(segments, at_ms)[-_BASELINE:]
    if len(same) < settings.trial_segments:
        return None
    return moments([log_goodput(segment) for segment in same])


def present_segments(segments: Sequence[SegmentFacts], at_ms: int) -> list[SegmentFacts]:
    """The good segments before ``at_ms`` with the settings of the last of them."""
    past = [s for s in segments if s.quality == GOOD and s.until <= at_ms]
    if not past:
        return []
    present = _settings(past[-1])
    return [s for s in past if _settings(s) == present]


def log_goodput(segment: SegmentFacts) -> float:
    """Logarithm of records per second; of steps per second where no batch is reported."""
    records = segment.global_batch
    if records is None and segment.micro_batch is not None:
        records = segment.micro_batch * (segment.accumulation or 1) * segment.procs
    return math.log((records or 1) / segment.step_seconds.mean)


def judge(
    action: GuardAction,
    segments: Sequence[SegmentFacts],
    now_ms: int,
    events: TrialEvents = TrialEvents(),  # noqa: B008 - frozen
    settings: GuardSettings = DEFAULTS,
) -> Judgement:
    """Judge ``action``, also one that was kept less than an hour ago."""
    if action.verdict in (Verdict.ROLLED_BACK, Verdict.OVERTAKEN) or action.rollback_of:
        return _judgement(action, action.verdict, "TrialOver")
    if events.overtaken or action.at_ms > now_ms + _CLOCK_MS:
        # No segment can be told to be from after a time that a wrong clock has set.
        return _judgement(action, Verdict.OVERTAKEN, "TrialOvertaken")
    if events.oom:
        return _judgement(action, Verdict.ROLLED_BACK, "TrialOutOfMemory")
    new = _new_segments(action, segments)
    if not new and _unformed(action, now_ms, events, settings):
        return _judgement(action, Verdict.ROLLED_BACK, "TrialNoWorld")
    logs = [log_goodput(segment) for segment in new]
    if action.verdict is Verdict.PENDING:
        ratio = compare(action.baseline, moments(logs))
        return _judgement(action, *_judge_trial(action, new, ratio, now_ms, settings), ratio)
    # The latest segments alone: those of the trial were good, or it would not have been kept.
    ratio = compare(action.baseline, moments(logs[-settings.watch_segments :]))
    if _is_worse_later(action, ratio, now_ms, settings):
        return _judgement(action, Verdict.ROLLED_BACK, "TrialWorseLater", ratio)
    return _judgement(action, action.verdict, "TrialOver")


def _judge_trial(
    action: GuardAction,
    new: Sequence[SegmentFacts],
    ratio: Ratio | None,
    now_ms: int,
    settings: GuardSettings,
) -> tuple[Verdict, str]:
    started_ms = new[0].since if new else action.at_ms
    late = now_ms - started_ms >= settings.trial_s * 1000
    enough = (
        sum(segment.steps for segment in new) >= settings.trial_steps
        and len(new) >= settings.trial_segments
    )
    if ratio is None:
        return (Verdict.UNCLEAR, "TrialNotMeasured") if late else (Verdict.PENDING, "TrialPending")
    least, price = _least(action, settings), _price(action, settings)
    # Until its end a trial is decided by what is certain, then by the estimate.
    reached = ratio.middle if late or enough else ratio.high
    if reached < least:
        return Verdict.ROLLED_BACK, "TrialWorse"
    if reached < price:
        return Verdict.ROLLED_BACK, "TrialNotWorthPrice"
    predicted = max(action.predicted.low, least) if action.predicted else 1.0
    if ratio.low >= predicted and ratio.middle >= price:
        return Verdict.KEPT, "TrialAsPredicted"
    if not (late or enough):
        return Verdict.PENDING, "TrialPending"
    expected = action.predicted.low if action.predicted else math.inf
    if ratio.low >= least and ratio.middle >= expected:
        # Certainly not worse, and where it was predicted to be: more time would show no more.
        return Verdict.KEPT, "TrialAsPredicted"
    return Verdict.UNCLEAR, "TrialUnclear"


def _is_worse_later(
    action: GuardAction, ratio: Ratio | None, now_ms: int, settings: GuardSettings
) -> bool:
    """The hour after a trial: worse than the lower end of the baseline is taken back after all."""
    judged_ms = action.judged_ms or action.at_ms
    if ratio is None or action.baseline is None or now_ms - judged_ms > settings.watch_s * 1000:
        return False
    # The lower end of the range of the mean goodput, relative to that mean.
    before = action.baseline
    lower = math.exp(-_deviation(before) * _Z / math.sqrt(before.count))
    return ratio.high < _least(action, settings) / settings.tolerance * lower


def _least(action: GuardAction, settings: GuardSettings) -> float:
    """Goodput that is not worse: 97 % of the baseline, or of what fewer workers should reach."""
    fewer = action.what is What.WORKERS and action.direction < 0
    predicted = action.predicted.low if action.predicted and fewer else 1.0
    return settings.tolerance * min(1.0, predicted)


def _price(action: GuardAction, settings: GuardSettings) -> float:
    """Goodput at which the added GPUs are worth what others would do with them; 0 for fewer."""
    grows = action.what is What.WORKERS and action.direction > 0
    if not grows or not action.before or not action.floor:
        return 0.0
    growth = (action.after or action.before) / action.before - 1
    return 1 + settings.last_gpus * action.floor * growth


def _new_segments(action: GuardAction, segments: Sequence[SegmentFacts]) -> list[SegmentFacts]:
    """Good segments of the new setting, from the end of its warm-up on."""
    new = [s for s in segments if s.since >= action.at_ms and s.quality == GOOD]
    if action.what is What.WORKERS and action.after is not None:
        new = [segment for segment in new if segment.nodes == int(action.after)]
    return new


def _unformed(
    action: GuardAction, now_ms: int, events: TrialEvents, settings: GuardSettings
) -> bool:
    if events.formed or action.what is not What.WORKERS:
        return False
    delay_s = FACTS_DELAY_S if events.formed is None else 0
    return now_ms - action.at_ms > (2 * settings.form_s + delay_s) * 1000


_settings = operator.attrgetter("nodes", "procs", "micro_batch", "accumulation", "global_batch")


def _judgement(
    action: GuardAction, verdict: Verdict, code: str, ratio: Ratio | None = None
) -> Judgement:
    arguments: Arguments = {} if ratio is None else {"measured": ratio.middle - 1}
    surprise = None
    if ratio is not None and (predicted := action.predicted) is not None:
        arguments["predicted"] = predicted.goodput - 1
        inside = min(max(ratio.middle, predicted.low), predicted.high)
        surprise = math.log(ratio.middle / inside)
    return Judgement(verdict=verdict, why=because(code, **arguments), surprise=surprise)
