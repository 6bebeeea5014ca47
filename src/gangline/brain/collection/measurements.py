"""What is measured without a master: use of pods, servers by the minute, segments from steps.

CPU and memory of pods come from the metrics API.

Plain workers of parameter servers have no agent. Their steps come from the report of the training
(``status.trainerStatus``), from TensorFlow's event files, or from a progress file. A segment closes
as those of a master do: after some minutes, at the end of a warm-up, and when the number of workers
changes. A step number that falls begins again: the program has gone back to a checkpoint. So does
a time that falls by minutes: a clock was ahead.
"""

import asyncio
import contextlib
from bisect import insort
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from gangline.api.jobs.progress import TrainerStatus
from gangline.api.jobs.training_facts import GOOD, WARM_UP, SegmentFacts, StepSeconds
from gangline.brain.advisers.view import ServerUse
from gangline.brain.facts.belief import FUTURE_MS
from gangline.kube.client.client import ApiClient
from gangline.sdk.usage import pod_usage

POLL_S = 30.0
MAX_SAMPLES = 512


class PodSample(NamedTuple):
    memory_bytes: int
    cpu_millis: int


class SampleBuffer:
    """The samples of one run: the peak of memory, and a sorted sample of CPU.

    Beyond ``MAX_SAMPLES`` every second reading is kept, so that the sample spans all of the run.
    """

    def __init__(self) -> None:
        self.peak_memory_bytes = 0
        self.count = 0
        self.cpu_millis: list[int] = []
        self._stride = 1

    def add(self, sample: PodSample) -> None:
        self.peak_memory_bytes = max(self.peak_memory_bytes, sample.memory_bytes)
        if self.count % self._stride == 0:
            insort(self.cpu_millis, sample.cpu_millis)
        self.count += 1
        if len(self.cpu_millis) > MAX_SAMPLES:
            self.cpu_millis = self.cpu_millis[::2]
            self._stride *= 2


async def poll_usage(
    client: ApiClient,
    receive: Callable[[Mapping[tuple[str, str], PodSample]], Awaitable[None]],
    every_s: float = POLL_S,
) -> None:
    """Call ``receive`` with the readings by namespace and pod, until cancelled."""
    while True:
        usage = (await pod_usage(client, None)).items()
        used = {pod: PodSample(round(one.memory), round(1000 * one.cpu)) for pod, one in usage}
        await receive(used)
        await asyncio.sleep(every_s)


MINUTE_MS = 60_000
MINUTES = 120
"""Minutes of one server that are kept: advice on idle servers looks back an hour."""


class ServerTable:
    def __init__(self) -> None:
        self._minutes: dict[ServerUse, dict[int, list[PodSample]]] = {}
        """The readings of each server by the minute."""

    def add(
        self,
        rank: int,
        node: str,
        limits: tuple[int | None, int | None],
        sample: PodSample,
        now_ms: int,
    ) -> None:
        """Add a reading of one server, with its limits of CPU (millicores) and memory (bytes).

        A server that moved, or has other limits, begins again: its past says nothing about it.
        """
        use = ServerUse(
            rank=rank, node=node, cpu_limit_millis=limits[0], memory_limit_bytes=limits[1]
        )
        for other in [other for other in self._minutes if other.rank == rank and other != use]:
            del self._minutes[other]
        minutes = self._minutes.setdefault(use, {})
        minutes.setdefault(now_ms // MINUTE_MS, []).append(sample)
        for minute in list(minutes)[:-MINUTES]:
            del minutes[minute]

    def use(self, ranks: Collection[int]) -> tuple[ServerUse, ...]:
        """Return the use of those servers of ``ranks`` that were measured, by rank."""
        uses = []
        for server, minutes in sorted(self._minutes.items(), key=lambda item: item[0].rank):
            if server.rank in ranks:
                sums = [[*map(sum, zip(*one, strict=True)), len(one)] for one in minutes.values()]
                memory, cpu = zip(*((m // count, c // count) for m, c, count in sums), strict=True)
                uses.append(replace(server, cpu_millis=cpu, memory_bytes=memory))
        return tuple(uses)


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
