"""How long a worker group may make no progress: by phase, and learned from the job's step times."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gangline.elastic.agent.settings import HangSettings

LEARNED_FACTOR = 10.0
"""A learned time-out is this multiple of the longest step so far."""
MIN_LEARNED_S = 30.0
"""Lowest learned time-out."""
MIN_LEARNED_IDLE_S = 300.0
"""Lowest learned time-out if the script reports no steps: idle workers may wait for data."""
_MIN_STEPS = 5
"""Steps before times count as learned."""


class HangPhase(StrEnum):
    """What a worker group does, as far as its time-out is concerned."""

    START = "start"
    """No progress has been reported yet."""
    FIRST_STEP = "first_step"
    """Workers have reported once, but no step: compilation and the first collectives take time."""
    STEP = "step"
    EVALUATION = "evaluation"
    """A worker reports that it evaluates."""
    CHECKPOINT = "checkpoint"
    """A worker reports that it saves a checkpoint."""


@dataclass(slots=True)
class StepTimes:
    """Longest time between two signs of progress in all attempts of this agent."""

    longest_s: float = 0.0
    count: int = 0
    reports_steps: bool = False
    """True if the script has reported progress in this or an earlier attempt."""

    def record(self, seconds: float) -> None:
        self.longest_s, self.count = max(self.longest_s, seconds), self.count + 1

    def timeout_s(self, default_s: float) -> float:
        """Return the learned time-out; the default while too few steps are known."""
        if self.count < _MIN_STEPS:
            return default_s
        least_s = MIN_LEARNED_S if self.reports_steps else MIN_LEARNED_IDLE_S
        return max(least_s, LEARNED_FACTOR * self.longest_s)


def phase_timeout_s(settings: HangSettings, phase: HangPhase, times: StepTimes) -> float:
    """Return the time-out of a phase; a phase without its own has that of steps.

    Args:
        settings: the time-outs; that of steps must be set.
        phase: the phase.
        times: step times of the job.
    """
    assert settings.timeout_s is not None
    own = {
        HangPhase.START: settings.start_s,
        HangPhase.FIRST_STEP: settings.first_step_s,
        HangPhase.EVALUATION: settings.evaluation_s,
        HangPhase.CHECKPOINT: settings.checkpoint_s,
    }.get(phase)
    if own is not None:
        return own
    if phase is HangPhase.STEP and settings.is_learned:
        return times.timeout_s(settings.timeout_s)
    return settings.timeout_s


def group_phase(
    reported: Sequence[str], *, has_touched: bool, has_steps: bool, touches: int
) -> HangPhase:
    """Return the phase of a group.

    Args:
        reported: the phases that workers report themselves; empty texts for none.
        has_touched: any worker has touched a progress file.
        has_steps: any worker has reported a step.
        touches: how often the worker that reports most has touched its file.
    """
    for phase in (HangPhase.EVALUATION, HangPhase.CHECKPOINT):
        if phase in reported:
            return phase
    if not has_touched:
        return HangPhase.START
    return HangPhase.STEP if has_steps or touches > 1 else HangPhase.FIRST_STEP
