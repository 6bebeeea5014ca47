"""What happened in the demo, told from the lines that the replicas wrote, and the final report."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

STEP = re.compile(r"step (\d+)/\d+ ")
STARTS_AT = re.compile(r"rank \d+ of \d+ .* starts at step (\d+)")
LOST_IN = re.compile(r"rank \d+ lost another rank in step (\d+)")
ACCURACY = re.compile(r"test accuracy (\d\.\d+)")
GOOD_ENOUGH = 0.95


@dataclass(slots=True)
class Story:
    """The demo's milestones. Times are seconds of ``clock``; -1 stands for "not yet"."""

    steps: int
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    cluster_start: float = -1
    submitted_at: float = -1
    first_step: float = -1
    killed_at: float = -1
    victim: str = ""
    recovery: float = -1
    last_step: int = 0
    last_before_kill: int = 0
    """The last step known to have been done before the worker was missed."""
    resumed_at: int = -1
    accuracy: float = -1
    total: float = -1
    restarts: int = 0
    state: str = ""
    _recovering: bool = False

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def killed(self) -> bool:
        """Whether the worker has been killed."""
        return self.killed_at >= 0

    @property
    def share_done(self) -> float:
        """The share of the steps that are done."""
        return self.last_step / self.steps

    @property
    def lost_steps(self) -> int:
        """Steps that had to be done again after the kill."""
        return max(0, self.last_before_kill - self.resumed_at) if self.resumed_at >= 0 else 0

    @property
    def succeeded(self) -> bool:
        """Whether the job succeeded with a good network, and recovered if it had to."""
        recovered = not self.killed or self.recovery >= 0
        return self.state == "Succeeded" and self.accuracy >= GOOD_ENOUGH and recovered

    def cluster_answers(self) -> None:
        """The API server of the cluster answers."""
        self.cluster_start = self.clock() - self.began

    def submitted(self) -> None:
        """The job has been accepted."""
        self.submitted_at = self.clock()

    def kill(self, victim: str) -> None:
        """The worker's process has been sent SIGKILL."""
        self.killed_at, self.victim = self.clock(), victim
        self.last_before_kill, self._recovering = self.last_step, True

    def line(self, replica: str, text: str) -> None:
        """A replica has written a line."""
        if found := LOST_IN.search(text):
            self.last_before_kill = max(self.last_before_kill, int(found[1]) - 1)
        elif found := STARTS_AT.search(text):
            if self.killed and self._recovering:
                self.resumed_at = int(found[1])
        elif found := ACCURACY.search(text):
            self.accuracy = float(found[1])
        elif found := STEP.match(text):
            self._step(int(found[1]))

    def ended(self, state: str, restarts: int) -> None:
        """The job has ended."""
        self.state, self.restarts = state, restarts
        self.total = self.clock() - self.began

    def _step(self, number: int) -> None:
        if self.first_step < 0:
            self.first_step = self.clock() - self.submitted_at
        if self._recovering and self.resumed_at >= 0:
            self.recovery = self.clock() - self.killed_at
            self._recovering = False
        self.last_step = number


def report(story: Story) -> Iterator[str]:
    """Say what came out and how long each phase took."""
    yield ""
    yield f"The job {story.state.lower()}; test accuracy {story.accuracy:.4f}"
    if story.killed:
        yield (
            f"Killed: {story.victim}, after step {story.last_before_kill}; training went on "
            f"from the checkpoint of step {story.resumed_at}: {story.lost_steps} steps lost, "
            f"{story.restarts} restarts"
        )
    yield f"  cluster start, to the first answer   {story.cluster_start:6.1f} s"
    yield f"  submission to the first step         {story.first_step:6.1f} s"
    if story.killed:
        yield f"  kill to the first step after it      {story.recovery:6.1f} s"
    yield f"  all of it                            {story.total:6.1f} s"
    if story.accuracy < GOOD_ENOUGH:
        yield f"The accuracy is below {GOOD_ENOUGH}: something is wrong."
