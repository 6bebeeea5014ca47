"""Start values of a job that does not run yet: how many workers, and memory where nothing is known.

Memory and CPU from the history are ``rightsize``'s, by the same similar runs. This adds the number
of workers, and for a job without any history a prior from the shape of its model. Without history
and without a shape there is no advice.

Workers: the throughput model is fitted to the segments of the similar runs. Counts between those
seen are possible, and from half the smallest to twice the largest once three were seen. The largest
is advised whose last workers still bring the floor of ``workers``: ``0.5 + price / 2`` of what the
average worker brings. Where one size only was seen, it is the median of the counts with which the
runs ended. Jobs without bounds (``workers_min``, ``workers_max``) keep their number.
"""

import math
from statistics import median
from typing import Any

from gangline.api.jobs.training_facts import ModelShapeFacts
from gangline.brain.advisers.advice import Advice, Choice, Confidence, Reason, Unit, What, because
from gangline.brain.advisers.memory import MIB, confidence_of, range_factor, role_size, round_up
from gangline.brain.advisers.view import AdviserView
from gangline.brain.advisers.workers import (
    configuration_at,
    floor_of,
    largest_micro_batch,
    largest_worthwhile,
    possible_sizes,
    present_segment,
)
from gangline.brain.facts.records import Run
from gangline.brain.models.throughput import fit_throughput, job_prior, observations
from gangline.sizing.model import ModelShape, ShapeError
from gangline.sizing.storage import CHECKPOINT_BYTES, MEMORY_COPIES

WORKER = "worker"
_PROCESS_BYTES = 4 << 30
"""Interpreter, libraries and buffers of a process that uses a GPU."""
_TRAINING_BYTES = 16.0
"""Weights, gradients and moments of a parameter, where the CPU trains."""
_ENOUGH_SIZES = 3


def advise(view: AdviserView) -> list[Advice]:
    """Return start values; nothing for a job that has started."""
    job = view.run.job
    if job.started_ms is not None:
        return []
    is_ranged = (job.workers_min or 0) < (job.workers_max or 0)
    workers = _by_goodput(view) or _by_kept_count(view) if view.similar.runs and is_ranged else []
    return [*workers, *_advise_from_shape(view)]


def _by_goodput(view: AdviserView) -> list[Advice]:
    """The largest count whose last workers are worth their price, by the fitted model."""
    job, level, runs = view.run.job, view.similar.level, view.similar.runs
    segments = [segment for run in runs for segment in run.segments]
    reference = next((s for run in runs if (s := present_segment(run)) is not None), None)
    prior = job_prior([view.run, *runs])
    model = fit_throughput(observations(segments, view.now_ms), prior)
    if model is None or reference is None or model.seen.procs[0] == model.seen.procs[1]:
        return []  # one size says nothing about others
    micro = max(largest_micro_batch(run) for run in runs)
    # Those seen, and a factor of 2 once three were.
    fewest, most = model.seen.procs
    factor = 2 if len(model.seen.configurations) >= _ENOUGH_SIZES else 1
    worlds = {
        count: at
        for count in possible_sizes(job)
        if (at := configuration_at(reference, count, micro)) is not None
        and fewest / factor <= at.procs <= most * factor
    }
    if len(worlds) < 2:
        return []
    batch = float(reference.global_batch or worlds[min(worlds)].global_batch)
    speeds = {count: batch / model.step_time(at) for count, at in worlds.items()}
    choices = [Choice(value=n, goodput=speed, low=speed, high=speed) for n, speed in speeds.items()]
    best, marginal = largest_worthwhile(choices, floor_of(view.cluster.price))
    count, asked, gain, gain_low = round(best.value), job.workers_asked, None, None
    if asked in worlds:
        gain, gain_low, _ = (model.speedups(worlds[asked], [worlds[count]])[0] - 1).tolist()
    near = [other for other in speeds if speeds[other] >= 0.95 * speeds[count]]
    wider = range_factor(level)
    return _worker_advice(
        view,
        count,
        max(min(near) // wider, job.workers_min or 1),
        min(math.ceil(max(near) * wider), job.workers_max or count),
        because(
            "BestGoodput",
            runs=len(runs),
            level=level,
            samples_per_second=round(speeds[count], 3),
            gain_percent=round(100 * (gain or 0.0)),
            marginal_percent=round(100 * marginal),
            price=view.cluster.price,
        ),
        gain=gain,
        gain_low=gain_low,
        extrapolated=model.extrapolated(worlds[count]),
    )


def _kept_count(run: Run) -> int | None:
    # A plan changes the world, and not what the user wrote.
    trained, size = present_segment(run), role_size(run.job, WORKER)
    if trained is not None:
        return trained.nodes
    return size.replicas if size else None


def _by_kept_count(view: AdviserView) -> list[Advice]:
    runs, level = view.similar.runs, view.similar.level
    counts = [count for run in runs if (count := _kept_count(run))]
    possible = possible_sizes(view.run.job)
    if not counts or not possible:
        return []
    middle, fewest, most = median(counts), min(counts), max(counts)
    value = min(possible, key=lambda count: (abs(count - middle), count))
    reason = because("KeptCount", runs=len(runs), level=level, fewest=fewest, most=most)
    return _worker_advice(view, value, min(fewest, value), max(most, value), reason)


def _worker_advice(
    view: AdviserView, value: int, low: float, high: float, reason: Reason, **more: Any
) -> list[Advice]:
    """Advice on the number of workers by similar runs; none if it is what the user asks for."""
    if value == view.run.job.workers_asked:
        return []
    return [
        Advice(
            what=What.WORKERS,
            role=WORKER,
            was=view.run.job.workers_asked,
            value=value,
            low=low,
            high=high,
            reason=reason,
            evidence=tuple(run.job.uid for run in view.similar.runs),
            confidence=confidence_of(view.similar),
            **more,
        )
    ]


def _advise_from_shape(view: AdviserView) -> list[Advice]:
    """Host memory of workers by the shape of the model, only if nothing similar ever ran."""
    similar, model = view.similar, view.run.job.model
    size = role_size(view.run.job, WORKER)
    if model is None or size is None or similar.runs or similar.bounds:
        return []
    parameters = model.params or _count_parameters(model)
    if not parameters:
        return []
    copies, state_bytes = (MEMORY_COPIES, CHECKPOINT_BYTES) if size.gpus else (1, _TRAINING_BYTES)
    states, fixed = copies * state_bytes * parameters, size.gpus * _PROCESS_BYTES
    if size.gpus:
        # The states are sharded among all workers, or they are not.
        low, value = states / max(size.replicas, 1) + fixed, states + fixed
    else:
        low, value = states, 2 * states + _PROCESS_BYTES
    low, value, was = round_up(int(low), MIB), round_up(int(value), MIB), size.memory_bytes
    if was is not None and was >= low:
        return []  # what the user wrote is possible; a prior is no reason to change it
    return [
        Advice(
            what=What.MEMORY,
            role=WORKER,
            unit=Unit.BYTES,
            was=was,
            value=value,
            low=low,
            high=2 * value,
            reason=because(
                "SizingPrior", parameters=parameters, copies=copies, bytes_per_parameter=state_bytes
            ),
            confidence=Confidence.LOW,
            extrapolated=True,
        )
    ]


def _count_parameters(model: ModelShapeFacts) -> int | None:
    try:
        return ModelShape(
            layers=model.layers or 0,
            hidden=model.hidden or 0,
            heads=model.heads or 0,
            sequence=model.sequence or 1,
            vocab=model.vocab or 0,
        ).parameters
    except ShapeError:
        return None
