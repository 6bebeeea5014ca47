"""How many workers: the largest size whose last GPUs are worth it.

The goodput of each possible size is predicted by the throughput model, with the global batch held:
more workers take smaller shares of it. On the upper concave envelope of these goodputs the gain of
the last GPUs, relative to the average GPU, falls with the size. The advised size is the largest
where that is at least the *floor*: 0.5 on an idle cluster, up to 1 when the price of GPUs is 1. A
job above it keeps its size until its last GPUs are below 0.8 of the floor, so that sizes do not
swing.

Ranges come from the draws of the model: the same draw for both sizes, so errors that they have in
common cancel.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from msgspec.structs import replace

from gangline.api.jobs.training_facts import GOOD, SegmentFacts
from gangline.brain.advisers.advice import (
    Advice,
    Arguments,
    Choice,
    Confidence,
    Reason,
    What,
    because,
)
from gangline.brain.advisers.view import AdviserView
from gangline.brain.facts.records import RecordedJob, Run
from gangline.brain.models.throughput import Configuration, ThroughputModel

IDLE_FLOOR = 0.5
KEEP_SHARE = 0.8
"""The last GPUs are given up below this share of the floor."""
PROBE_GAIN = 0.25
CERTAIN_GAIN = 0.03
"""Gain at the lower end of a range from which no probe is needed."""
_PROBE_AGE_MS = 3600 * 1000
_Z = 1.2816
MOST_PER_WORKER = 1.25
"""Goodput for each worker, relative to now, that no growth exceeds: caches explain no more."""
WIDEST = 4.0
"""Ratio of the ends of a range beyond which a prediction is no reason for a number."""
MEASURED = 3
"""Good segments of a configuration from which a job has measured it."""
_RECENT = 6
"""Segments that say where the job stands."""


def floor_of(price: float) -> float:
    """The least gain of an added GPU, relative to the average GPU of the job."""
    return IDLE_FLOOR + (1 - IDLE_FLOOR) * min(max(price, 0.0), 1.0)


def advise_workers(
    view: AdviserView, model: ThroughputModel | None, choices: Sequence[Choice] | None = None
) -> list[Advice]:
    """Advise the number of workers; nothing where sizes or the batch are not known.

    ``choices`` are those of ``size_choices``, if they are known already.
    """
    present = present_segment(view.run)
    if model is None or present is None or view.run.job.strategy == "ps":
        return []
    if choices is None:
        choices = size_choices(view, model)
    now = next((choice for choice in choices if choice.value == present.nodes), None)
    if now is None or len(choices) < 2:
        return []
    sizes = _Sizes(view, model, choices, present, floor_of(view.cluster.price))
    best = best_size(choices, present.nodes, sizes.floor)
    changes = best.value != present.nodes
    if changes and _is_known(choices, best, present.nodes):
        return [_advice(sizes, best)]
    probe = _probe(sizes)
    if probe is not None:
        return [_advice(sizes, probe, probe=True)]
    return [_advice(sizes, best)] if changes and best.high <= WIDEST * best.low else []


class _Sizes(NamedTuple):
    """What advice on the number of workers rests on."""

    view: AdviserView
    model: ThroughputModel
    choices: Sequence[Choice]
    present: SegmentFacts
    floor: float

    def at_end(self, end: Callable[[Choice], float]) -> float:
        """The advised size if goodput scales as badly, or as well, as the range allows."""
        choices = [replace(choice, goodput=end(choice)) for choice in self.choices]
        return best_size(choices, self.present.nodes, self.floor).value


def present_segment(run: Run) -> SegmentFacts | None:
    """The last good segment with what a prediction needs; None if there is none."""
    good = (segment for segment in reversed(run.segments) if segment.quality == GOOD)
    last = next(good, None)
    return last if last is not None and last.micro_batch else None


def possible_sizes(job: RecordedJob) -> list[int]:
    """The numbers of workers within the bounds of a job, in whole node units; empty without."""
    if job.workers_min is None or job.workers_max is None:
        return []
    unit = max(job.unit, 1)
    least = max(-(-job.workers_min // unit), 1) * unit
    return list(range(least, job.workers_max + 1, unit))


def size_choices(view: AdviserView, model: ThroughputModel) -> list[Choice]:
    """Goodput of each size from the least to the largest, relative to the present size."""
    present = present_segment(view.run)
    here = configuration_at(present, present.nodes) if present is not None else None
    sizes = possible_sizes(view.run.job)
    if present is None or here is None or not sizes:
        return []
    most = largest_micro_batch(view.run)
    places = {
        size: at
        for size in sorted({*sizes, present.nodes})
        if (at := configuration_at(present, size, most)) is not None
    }
    speedups = model.speedups(here, list(places.values())).tolist()
    choices = []
    for size, (goodput, low, high) in zip(places, speedups, strict=True):
        wider = math.exp(_Z * view.prediction_error) if size != present.nodes else 1.0
        highest = max(goodput, 1.0, MOST_PER_WORKER * size / present.nodes)
        choices.append(
            Choice(value=size, goodput=goodput, low=low / wider, high=min(high * wider, highest))
        )
    return choices


def fitted_segments(
    own: Iterable[SegmentFacts], family: Iterable[SegmentFacts] = (), most: int = 20
) -> list[SegmentFacts]:
    """The last good segments of each configuration: what a fit needs of a long history.

    Sizes that were left long ago stay known; a size that the job keeps does not outweigh them. Of a
    configuration that the job has measured itself, the runs of its family say nothing more.
    """
    mine, others = _by_configuration(own), _by_configuration(family)
    kept = [segment for group in mine.values() for segment in group[-most:]]
    for configuration, group in others.items():
        missing = most - len(mine.get(configuration, ()))
        if missing > most - MEASURED:
            kept += group[-missing:]
    return sorted(kept, key=lambda segment: segment.since)


def _by_configuration(
    segments: Iterable[SegmentFacts],
) -> dict[tuple[object, ...], list[SegmentFacts]]:
    groups: dict[tuple[object, ...], list[SegmentFacts]] = defaultdict(list)
    for one in segments:
        if one.quality == GOOD:
            groups[one.nodes, one.procs, one.micro_batch, one.accumulation].append(one)
    return groups


def largest_micro_batch(run: Run) -> int:
    """The largest micro-batch that ran well with the job; 1 if none is known."""
    good = (segment for segment in run.segments if segment.quality == GOOD)
    return max((segment.micro_batch or 1 for segment in good), default=1)


def configuration_at(
    present: SegmentFacts, nodes: int, most_micro_batch: int = 0
) -> Configuration | None:
    """The configuration of the same global batch on ``nodes``; None if it cannot be split so.

    Shares are as the trainer makes them: nearly equal micro-batches of at most
    ``most_micro_batch``, or of the present size if that is larger.
    """
    if present.micro_batch is None:
        return None
    node_procs = present.procs // present.nodes
    accumulation = present.accumulation or 1
    batch = present.global_batch or present.micro_batch * accumulation * present.procs
    procs = node_procs * nodes
    if procs < 1 or batch < procs:
        return None
    if nodes == present.nodes:
        return Configuration(nodes, procs, float(present.micro_batch), accumulation)
    share = math.ceil(batch / procs)
    count = math.ceil(share / max(present.micro_batch, most_micro_batch))
    return Configuration(nodes, procs, share / count, count)


def worker_advice(
    was: int, best: Choice, choices: Sequence[Choice], reason: Reason, /, **more: Any
) -> Advice:
    """Return advice on the number of workers, with the choices up to the advised one.

    Fewer workers are judged by goodput per worker, more by goodput.
    """
    low, high = sorted((was, best.value))
    size = min(best.value / was, 1.0)
    values: dict[str, Any] = {
        "gain": best.goodput / size - 1,
        "gain_low": best.low / size - 1,
        "choices": tuple(choice for choice in choices if low <= choice.value <= high),
    }
    return Advice(
        what=What.WORKERS,
        role="worker",
        was=was,
        value=best.value,
        reason=reason,
        **(values | more),
    )


def best_size(choices: Sequence[Choice], now: float, floor: float) -> Choice:
    """The largest size whose last GPUs gain at least ``floor``; the present one within the band."""
    best, _ = largest_worthwhile(choices, floor)
    present = next(choice for choice in choices if choice.value == now)
    if best.value < now:
        # GPUs are given up only if they gain too little even where less is known of the smaller
        # size than its most likely goodput.
        doubtful = Choice(value=best.value, goodput=best.low, low=best.low, high=best.high)
        if marginal_gain(doubtful, present) >= KEEP_SHARE * floor:
            return present
    return best


def largest_worthwhile(choices: Sequence[Choice], floor: float) -> tuple[Choice, float]:
    """The largest size whose last workers gain at least ``floor``, and what they gain."""
    hull = concave_envelope(choices)
    best, gained = hull[0], 1.0
    for choice in hull[1:]:
        gain = marginal_gain(best, choice)
        if gain < floor:
            break
        best, gained = choice, gain
    return best, gained


def concave_envelope(choices: Sequence[Choice]) -> list[Choice]:
    """The choices on the upper concave envelope of goodput over size, by size."""
    hull: list[Choice] = []
    for choice in choices:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], choice):
            hull.pop()
        hull.append(choice)
    return hull


def marginal_gain(last: Choice, choice: Choice) -> float:
    """Goodput of each added worker from ``last`` to ``choice``, relative to those of ``last``."""
    return _slope(last, choice) / (last.goodput / last.value)


def _is_known(choices: Sequence[Choice], best: Choice, now: float) -> bool:
    """Whether the first step towards ``best`` gains even at the lower end of its range."""
    if best.value < now:
        return best.low / (best.value / now) - 1 >= CERTAIN_GAIN
    step = [choice for choice in choices if now < choice.value <= min(best.value, 2 * now)]
    return bool(step) and step[-1].low - 1 >= CERTAIN_GAIN


def _slope(first: Choice, second: Choice) -> float:
    return (second.goodput - first.goodput) / (second.value - first.value)


def _probe(sizes: _Sizes) -> Choice | None:
    """One size that was never run, at most twice the present, where the range leaves much open."""
    view, now, started = sizes.view, sizes.present.nodes, sizes.view.run.job.started_ms
    if view.probes > 0 or started is None or view.now_ms - started > _PROBE_AGE_MS:
        return None
    tried = {segment.nodes for segment in view.run.segments}
    worth = [
        choice
        for choice in sizes.choices
        if now < choice.value <= 2 * now
        and choice.value not in tried
        and choice.high - 1 >= max(PROBE_GAIN, sizes.floor * (choice.value / now - 1))
    ]
    return max(worth, key=lambda choice: choice.high, default=None)


def _advice(sizes: _Sizes, best: Choice, *, probe: bool = False) -> Advice:
    view, model, choices = sizes.view, sizes.model, sizes.choices
    was, floor = sizes.present.nodes, sizes.floor
    at = configuration_at(sizes.present, int(best.value), largest_micro_batch(view.run))
    extrapolated = at is None or model.extrapolated(at)
    same = (one for one in view.run.segments if one.quality == GOOD and one.nodes == was)
    recent = [segment.step_seconds.mean for segment in same][-_RECENT:]
    arguments: Arguments = {
        "step": fmean(recent),
        "segments": len(recent),
        "goodput": best.goodput - 1,
        "goodput_low": best.low - 1,
        "goodput_high": best.high - 1,
        "floor": floor,
    }
    larger = [choice for choice in concave_envelope(choices) if choice.value > best.value]
    if larger and not probe:
        arguments["next"] = int(larger[0].value)
        arguments["next_gain"] = marginal_gain(best, larger[0])
    code = "MoreWorkersExtrapolated" if extrapolated else "MoreWorkersGain"
    if best.value < was:
        code = "LastWorkersGainLittle"
    more: dict[str, Any] = {}
    if probe:
        # A probe is made for what is possible, not for what is likely.
        code, more = "NeverTried", {"probe": True, "gain": best.high - 1, "choices": (best,)}
    known = Confidence.HIGH if len(model.seen.configurations) >= 3 else Confidence.MEDIUM
    return worker_advice(
        was,
        best,
        choices,
        because(code, **arguments),
        low=min(sizes.at_end(lambda choice: choice.low), best.value),
        high=max(sizes.at_end(lambda choice: choice.high), best.value),
        evidence=(view.run.job.uid, *(run.job.uid for run in view.similar.runs)),
        confidence=Confidence.LOW if extrapolated else known,
        extrapolated=extrapolated,
        floor=floor,
        **more,
    )
