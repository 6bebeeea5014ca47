"""Segments of jobs whose master reports none: from the step numbers that the program writes. Pure.

Plain workers of parameter servers have no agent. Their steps come from the report of the training
(``status.trainerStatus``), from TensorFlow's event files, or from a progress file. A segment closes
as those of a master do: after some minutes, at the end of a warm-up, and when the number of workers
changes. A step number that falls begins again: the program has gone back to a checkpoint. So does
a time that falls by minutes: a clock was ahead.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gangline.api.jobs.progress import TrainerStatus
from gangline.api.jobs.training_facts import GOOD, WARM_UP, SegmentFacts, StepSeconds
from gangline.brain.facts.belief import FUTURE_MS

WARM_UP_STEPS: Final = 20
WARM_UP_MS: Final = 60_000
SEGMENT_S: Final = 300.0
STEP_METRICS: Final = ("step", "global_step", "steps", "iteration")
"""Names under which a training reports its step number."""


class ReportedStep(NamedTuple):
    """The last step at one time."""

    at_ms: int
    step: int


def reported_step(status: TrainerStatus | None) -> ReportedStep | None:
    """Return the step number in the report of a training; None if it has none."""
    if status is None or status.last_updated_time is None:
        return None
    metrics = {metric.name: metric.value for metric in status.metrics}
    for name in STEP_METRICS:
        with contextlib.suppress(ValueError):
            number = float(metrics.get(name, "nan"))
            if 0 <= number < 2**53:
                return ReportedStep(round(status.last_updated_time.timestamp() * 1000), int(number))
    return None


def written_steps(scalars: Iterable[tuple[int, int, str, float]]) -> Iterator[ReportedStep]:
    """Yield the step numbers of scalars of TensorBoard: time, step, name and value.

    Keras writes means of epochs under the number of the epoch, which is no step.
    """
    for at_ms, step, name, _ in scalars:
        if step > 0 and not name.rpartition("/")[2].startswith(("epoch_", "evaluation_")):
            yield ReportedStep(at_ms, step)


@dataclass(slots=True)
class StepProgress:
    segment_ms: int = round(1000 * SEGMENT_S)
    _since: ReportedStep | None = None
    _last: ReportedStep | None = None
    _workers: int = 0
    _warm_from: ReportedStep | None = None
    """Begin of the warm-up; None once it is over."""
    _round: int = field(default=0)

    def add(
        self, reported: Iterable[ReportedStep], workers_at: Callable[[int], int]
    ) -> list[SegmentFacts]:
        """Take step numbers, and return the segments that they close.

        ``workers_at`` returns how many workers ran at a time in milliseconds.
        """
        closed = (self._take(step, workers_at(step.at_ms)) for step in sorted(reported))
        return [segment for segment in closed if segment is not None]

    def _take(self, now: ReportedStep, workers: int) -> SegmentFacts | None:
        since, last = self._since, self._last
        if last is not None and 0 <= last.at_ms - now.at_ms <= FUTURE_MS:
            return None
        is_other = last is not None and (now.at_ms < last.at_ms or now.step < last.step)
        if since is None or last is None or workers != self._workers or is_other:
            self._round += since is not None
            self._workers = workers
            self._since = self._last = self._warm_from = now
            return None
        self._last = now
        if not workers or now.step == since.step:
            return None
        warm_from = self._warm_from
        if warm_from is None:
            is_over = now.at_ms - since.at_ms >= self.segment_ms
        else:
            steps, lasted_ms = now.step - warm_from.step, now.at_ms - warm_from.at_ms
            is_over = steps >= WARM_UP_STEPS or lasted_ms >= min(WARM_UP_MS, self.segment_ms)
        if not is_over:
            return None
        self._since, self._warm_from = now, None
        steps = now.step - since.step
        step_s = (now.at_ms - since.at_ms) / 1000 / steps
        return SegmentFacts(
            round=self._round,
            since=since.at_ms,
            until=now.at_ms,
            nodes=workers,
            procs=workers,
            steps=steps,
            step_seconds=StepSeconds(1, step_s),
            quality=GOOD if warm_from is None else WARM_UP,
            step_first=since.step,
            step_last=now.step,
        )
