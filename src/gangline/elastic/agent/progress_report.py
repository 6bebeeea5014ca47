"""The progress report of a node: one report computed from the progress of all its workers.

The job is as far as its slowest worker: steps are minima over the workers, lost times are maxima.
Times are of this machine's monotonic clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gangline.elastic.progress import NodePhase, SaveCounts, TrainingReport, WorkerProgress

TRAINING_REPORT_S = 5.0
"""Interval of reports about batch sizes and times: the master digests those of a thousand nodes."""


@dataclass(frozen=True, slots=True)
class WorkerUsage:
    """Resource usage of the workers, with the processes that they have started."""

    cpus: float
    memory_bytes: int
    is_warm: bool | None = None
    """True if the next workers start without imports; None if that is disabled."""


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """Progress of the workers of one attempt."""

    round: int = 0
    """The round of the world whose workers are reported on; 0 before the first workers."""
    attempt: int = 0
    phase: str = NodePhase.WAITING
    step: int | None = None
    """The last step that all reporting workers have finished."""
    first_step: int | None = None
    steps_per_s: float = 0.0
    checkpoint_step: int | None = None
    saves: SaveCounts = field(default_factory=SaveCounts)
    spent_s: dict[str, float] = field(default_factory=dict)
    usage: WorkerUsage | None = None
    training: TrainingReport | None = None
    """What the workers report about their steps, every ``TRAINING_REPORT_S``; None in between."""
    memory_peak_bytes: int | None = None
    """Highest memory use of this pod so far, with ``training``; None if it is not known."""
    replaced: int = 0
    """How often ranks were replaced while the others kept running, with ``training``."""
    replacement: str = ""
    """The last such event, as one sentence."""
    is_detailed: bool = False
    """True for a report in which ``training`` was due, also if the workers report nothing."""


@dataclass(slots=True)
class ProgressTracker:
    """Follows the workers of one attempt."""

    round: int
    attempt: int
    since: float
    """Start of the attempt. It is the end of the previous one if that was in the same world."""
    is_first: bool
    """True for the first attempt of this agent."""
    reports_steps: bool
    """True if the script has reported steps in this or an earlier attempt."""
    hung_since: float | None = None
    """Time of the last progress before the workers hung; None while they do not hang."""
    _training_at: float | None = None
    _settings: tuple[int | None, ...] | None = None
    """Batch sizes in the last report of details."""
    _reported: dict[int, WorkerProgress] = field(default_factory=dict)
    """The last progress of each worker that has reported a step."""
    _last_sample: tuple[float, int] | None = None
    _last_rate: float = 0.0

    def report(
        self,
        workers: Sequence[WorkerProgress],
        now: float,
        usage: WorkerUsage | None,
        *,
        is_last: bool = False,
    ) -> NodeProgress:
        """Combine what the workers report now; ``is_last`` after they have ended."""
        workers = [self._unless_empty(number, progress) for number, progress in enumerate(workers)]
        step = _minimum(progress.step for progress in workers)
        self.reports_steps = self.reports_steps or step is not None
        firsts = [progress.first_step for progress in workers if progress.first_step is not None]
        training = _merge_training(workers)
        is_detailed = is_last or self._is_training_due(training, now)
        return NodeProgress(
            round=self.round,
            attempt=self.attempt,
            phase=NodePhase.TRAINING if self.hung_since is None else NodePhase.HANGING,
            step=step,
            first_step=min(firsts, default=None),
            steps_per_s=self._steps_per_s(step, now),
            checkpoint_step=_minimum(progress.saved_step for progress in workers),
            saves=SaveCounts.merge_max(progress.saves for progress in workers),
            spent_s=self._lost_seconds(workers, step, now),
            usage=usage,
            training=training if is_detailed else None,
            is_detailed=is_detailed,
        )

    def _is_training_due(self, training: TrainingReport | None, now: float) -> bool:
        """Return whether to report details: from time to time, and when a setting has changed."""
        settings = None
        if training is not None:
            settings = (
                training.batch_size, training.accumulation, training.global_batch,
                training.loader_workers,
            )  # fmt: skip
        due = self._training_at is None or now - self._training_at >= TRAINING_REPORT_S
        if due or settings != self._settings:
            self._training_at, self._settings = now, settings
            return True
        return False

    def _unless_empty(self, number: int, progress: WorkerProgress) -> WorkerProgress:
        """Return the last progress of a worker whose file has lost its step.

        A script that opens the file for writing empties it for a moment.
        """
        if progress.step is None:
            return self._reported.get(number, progress)
        self._reported[number] = progress
        return progress

    def _lost_seconds(
        self, workers: Sequence[WorkerProgress], step: int | None, now: float
    ) -> dict[str, float]:
        starting = NodePhase.STARTING if self.is_first else NodePhase.RESTARTING
        lost_s = {
            starting: 0.0,
            NodePhase.CHECKPOINT: max((progress.blocked_s for progress in workers), default=0),
        }
        firsts = [progress.first_at for progress in workers if progress.first_at is not None]
        if firsts:
            lost_s[starting] = max(firsts) - self.since
        elif step is None and self.reports_steps:
            lost_s[starting] = now - self.since
        if self.hung_since is not None:
            lost_s[NodePhase.HANGING] = now - self.hung_since
        most = now - self.since  # what workers say may be anything
        limited_s = {phase: round(min(seconds, most), 3) for phase, seconds in lost_s.items()}
        return {phase: seconds for phase, seconds in limited_s.items() if seconds > 0}

    def _steps_per_s(self, step: int | None, now: float) -> float:
        if step is None:
            return 0.0
        if self._last_sample is not None and now > self._last_sample[0]:
            self._last_rate = max(0.0, (step - self._last_sample[1]) / (now - self._last_sample[0]))
        self._last_sample = now, step
        return self._last_rate


def _merge_training(workers: Sequence[WorkerProgress]) -> TrainingReport | None:
    reports = [progress.training for progress in workers if progress.training is not None]
    return TrainingReport.merge(reports)


def _minimum(numbers: Iterable[int | None]) -> int | None:
    return min((number for number in numbers if number is not None), default=None)
