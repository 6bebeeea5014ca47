"""Goodput: the productive share of a job's wall time, and what the remaining time was spent on.

At each moment the job is in one phase: the phase of the rendezvous while there is no world, else
the phase that the first node reports. Running workers count as training until they report
otherwise: time up to the first step, waits for checkpoints and hangs are then subtracted from
training. Steps that are repeated because their result was lost are subtracted too, at the mean time
of a step.
"""

import math

import msgspec

from gangline.elastic.agent.failures import CONSEQUENCE_CAUSE
from gangline.elastic.progress import NodePhase
from gangline.elastic.protocol.messages import GoodputReport, Heartbeat

LOST = "lost"
_PHASES = (
    NodePhase.WAITING,
    NodePhase.STARTING,
    NodePhase.CHECKING,
    NodePhase.TRAINING,
    NodePhase.RESTARTING,
    NodePhase.CHECKPOINT,
    NodePhase.HANGING,
)


class Restart(msgspec.Struct):
    """The last restart of workers: what caused it, and how the training continued."""

    cause: str = ""
    """A cause of ``gangline.api.failure``."""
    node: int | None = None
    """The node that failed first."""
    exit_code: int | None = None
    """Exit code of the worker that failed first, above 128 for a signal."""
    lost_before_s: float = 0.0
    """Time without training up to the failure."""
    step: int | None = None
    """The step at which the workers continue; None until they have reported a step again."""
    seconds: float = 0.0
    """Time from the failure to the first step."""
    number: int = 1
    """Counts the restarts of the job that followed failures."""


class GoodputAccount(msgspec.Struct):
    """Goodput so far. Times are on the job's clock."""

    since: float | None = None
    """Start of the account; None before it started."""
    until: float = 0.0
    """Time up to which the account is complete."""
    phase: str = NodePhase.WAITING
    parts_s: dict[str, float] = {}
    steps_made: int = 0
    """Steps made, including repeated ones."""
    step: int | None = None
    furthest: int | None = None
    lost_s: float = 0.0
    steps_lost: int = 0
    restarts: int = 0
    failures: int = 0
    attempt: tuple[int, int] = (0, 0)
    """Round and attempt of the last workers that reported."""
    spent_s: dict[str, float] = {}
    """Seconds that these workers reported for other phases, as far as booked."""
    has_step: bool = False
    """True if these workers have reported a step."""
    restart: Restart | msgspec.UnsetType = msgspec.UNSET
    """The last restart; not set before the first failure."""

    def change_phase(self, now: float, phase: str) -> None:
        """Book the time up to now, and start another phase."""
        if self.since is None:
            self.since = self.until = now
        passed = max(0.0, now - self.until)
        self.parts_s[self.phase] = self.parts_s.get(self.phase, 0.0) + passed
        self.until = max(self.until, now)
        self.phase = phase if phase in _PHASES else NodePhase.WAITING

    def begin_restart(self, cause: str, node: int, exit_code: int | None = None) -> None:
        """Record a failure. Of failures before the next step, the first one that is no consequence
        of another counts.
        """
        last = self.restart
        if not last or last.step is not None:
            number = last.number + 1 if last else 1
            self.restart = Restart(cause, node, exit_code, self._idle_s(), number=number)
        elif last.cause == CONSEQUENCE_CAUSE:
            last.cause, last.node, last.exit_code = cause, node, exit_code

    @property
    def has_continued(self) -> bool:
        """True if the workers have made a step since the last failure."""
        return not self.restart or self.restart.step is not None

    def _end_restart(self, step: int) -> None:
        if self.restart and self.restart.step is None:
            self.restart.step = step
            self.restart.seconds = self._idle_s() - self.restart.lost_before_s

    def continue_in(self, round_: int) -> None:
        """Record that the workers keep running in the world of another round."""
        self.attempt = (round_, 0)
        if self.step is not None:
            self._end_restart(self.step)

    def _idle_s(self) -> float:
        """Return the time of all phases without training or saves."""
        trained = (NodePhase.TRAINING, NodePhase.CHECKPOINT)
        return math.fsum(time_s for phase, time_s in self.parts_s.items() if phase not in trained)

    def book_downtime(self, seconds: float) -> None:
        """Book time without a master: the job stayed in its phase."""
        if self.since is not None and seconds > 0:
            self.parts_s[self.phase] = self.parts_s.get(self.phase, 0.0) + seconds

    def book_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Book a heartbeat of the first node; call ``change_phase`` before."""
        attempt = (heartbeat.round, heartbeat.attempt)
        if attempt > self.attempt:
            if attempt[0] == self.attempt[0]:
                self.restarts += 1  # in place; the rendezvous counts the others
            self.attempt, self.spent_s, self.has_step = attempt, {}, False
        elif attempt < self.attempt:
            return
        for phase, seconds in heartbeat.spent_s.items():
            self._spend(phase, seconds)
        if heartbeat.step is None:
            return
        first = heartbeat.first_step
        if not self.has_step:
            self._end_restart(heartbeat.step if first is None else first)
        if not self.has_step and first is not None:
            if self.step is not None:
                self._lose(max(0, self.step - first + 1))
            self.step = first - 1
        self.has_step = True
        self.record_step(heartbeat.step)

    def _spend(self, phase: str, seconds: float) -> None:
        """Move time from training to the phase that it was spent in."""
        fresh = min(seconds - self.spent_s.get(phase, 0.0), self._training_s() - self.lost_s)
        if phase in _PHASES and fresh > 0:
            self.spent_s[phase] = self.spent_s.get(phase, 0.0) + fresh
            self.parts_s[NodePhase.TRAINING] -= fresh
            self.parts_s[phase] = self.parts_s.get(phase, 0.0) + fresh

    def _lose(self, steps: int) -> None:
        self.lost_s += min(steps * self._step_s(), self._training_s() - self.lost_s)
        self.steps_lost += steps

    def record_step(self, step: int) -> None:
        """Book a finished step. A lower step than before means that work was lost."""
        before = self.step
        self.step = step
        if before is None:
            self.furthest = max(step, self.furthest or step)
            return
        if step < before:
            self._lose(before - step)
        else:
            self.steps_made += step - before
        self.furthest = max(step, self.furthest or step)

    def goodput(self, now: float) -> GoodputReport:
        parts = dict(self.parts_s)
        if self.since is not None:
            parts[self.phase] = parts.get(self.phase, 0.0) + max(0.0, now - self.until)
        training = parts.pop(NodePhase.TRAINING, 0.0)
        lost = min(self.lost_s, training)
        if lost:
            parts[LOST] = lost
        return GoodputReport(
            wall_s=training + sum(parts.values()) - (lost if LOST in parts else 0.0),
            productive_s=training - lost,
            parts_s=parts,
            step=self.step,
            steps_lost=self.steps_lost,
            restarts=self.restarts,
            failures=self.failures,
        )

    def _training_s(self) -> float:
        return self.parts_s.get(NodePhase.TRAINING, 0.0)

    def _step_s(self) -> float:
        return self._training_s() / self.steps_made if self.steps_made else 0.0
