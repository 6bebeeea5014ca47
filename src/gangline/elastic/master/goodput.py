"""Where a job's time goes: the productive share, and what the rest went into. Pure.

At each moment the job is in one phase: what its rendezvous says while there is no world, else what
the first of its nodes report. Workers that run count as training until they say what else they did:
the time up to the first step, waits for checkpoints, hangs are taken off again when they are told.
So are steps that are made a second time because what they had reached was lost, at the usual time
of a step.
"""

import msgspec

from gangline.elastic.protocol.messages import Goodput, Heartbeat, Phase

LOST = "lost"
_PHASES = (
    Phase.WAITING,
    Phase.STARTING,
    Phase.CHECKING,
    Phase.TRAINING,
    Phase.RESTARTING,
    Phase.CHECKPOINT,
    Phase.HANGING,
)


class Account(msgspec.Struct):
    """The account so far. Times are on the job's clock."""

    since: float | None = None
    """When it began; None: not yet."""
    until: float = 0.0
    """Up to when it is booked."""
    phase: str = Phase.WAITING
    """What has been going on since."""
    parts_s: dict[str, float] = {}
    steps_made: int = 0
    """Including those made twice."""
    step: int | None = None
    """The last step reported."""
    furthest: int | None = None
    """The furthest step ever."""
    lost_s: float = 0.0
    steps_lost: int = 0
    restarts: int = 0
    failures: int = 0
    attempt: tuple[int, int] = (0, 0)
    """Round and attempt of the workers that were heard of last."""
    spent_s: dict[str, float] = {}
    """What these have said they spent otherwise than in training, and is booked so."""
    has_step: bool = False
    """Whether these have told a step."""

    def move(self, now: float, phase: str) -> None:
        """Book the time up to now, and say what goes on from now on."""
        if self.since is None:
            self.since = self.until = now
        passed = max(0.0, now - self.until)
        self.parts_s[self.phase] = self.parts_s.get(self.phase, 0.0) + passed
        self.until = max(self.until, now)
        self.phase = phase if phase in _PHASES else Phase.WAITING

    def pass_down(self, seconds: float) -> None:
        """Book time in which there was no master: the job went on as it did before."""
        if self.since is not None and seconds > 0:
            self.parts_s[self.phase] = self.parts_s.get(self.phase, 0.0) + seconds

    def hear(self, beat: Heartbeat) -> None:
        """Book what the first node says of its workers; call ``move`` before."""
        attempt = (beat.round, beat.attempt)
        if attempt > self.attempt:
            if attempt[0] == self.attempt[0]:
                self.restarts += 1  # in place; the rendezvous counts the others
            self.attempt, self.spent_s, self.has_step = attempt, {}, False
        elif attempt < self.attempt:
            return
        for phase, seconds in beat.spent_s.items():
            self._spend(phase, seconds)
        if beat.step is None:
            return
        first = beat.first_step
        if not self.has_step and first is not None:
            if self.step is not None:
                self._lose(max(0, self.step - first + 1))
            self.step = first - 1
        self.has_step = True
        self.reach(beat.step)

    def _spend(self, phase: str, seconds: float) -> None:
        """Take time off training that went elsewhere."""
        fresh = min(seconds - self.spent_s.get(phase, 0.0), self._training_s() - self.lost_s)
        if phase in _PHASES and fresh > 0:
            self.spent_s[phase] = self.spent_s.get(phase, 0.0) + fresh
            self.parts_s[Phase.TRAINING] -= fresh
            self.parts_s[phase] = self.parts_s.get(phase, 0.0) + fresh

    def _lose(self, steps: int) -> None:
        self.lost_s += min(steps * self._step_s(), self._training_s() - self.lost_s)
        self.steps_lost += steps

    def reach(self, step: int) -> None:
        """A step is finished. A lower one than before means that work was lost."""
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

    def goodput(self, now: float) -> Goodput:
        """Return the account as it stands."""
        parts = dict(self.parts_s)
        if self.since is not None:
            parts[self.phase] = parts.get(self.phase, 0.0) + max(0.0, now - self.until)
        training = parts.pop(Phase.TRAINING, 0.0)
        lost = min(self.lost_s, training)
        if lost:
            parts[LOST] = lost
        return Goodput(
            wall_s=training + sum(parts.values()) - (lost if LOST in parts else 0.0),
            productive_s=training - lost,
            parts_s=parts,
            step=self.step,
            steps_lost=self.steps_lost,
            restarts=self.restarts,
            failures=self.failures,
        )

    def _training_s(self) -> float:
        return self.parts_s.get(Phase.TRAINING, 0.0)

    def _step_s(self) -> float:
        return self._training_s() / self.steps_made if self.steps_made else 0.0
