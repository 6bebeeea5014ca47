"""The progress file, in which a training process reports its steps to its agent.

The file (``GANGLINE_PROGRESS_FILE``) holds lines of a name and a number. Any script may write it:

    Path(os.environ["GANGLINE_PROGRESS_FILE"]).write_text(f"step {step}\\n")

``ElasticTrainer`` and ``Checkpointer`` write it themselves, each its own fixed part of the file.
That is one system call, which costs microseconds a step. Only the standard library is used here.
Batch sizes, times and more are optional: ``training_report`` has their names.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from gangline.elastic.training_report import (
    DEVICE_MODEL,
    TrainingReport,
    first_line,
    format_report,
    parse_report,
)


class NodePhase:
    """Names of the phases. The set is open: unknown ones count as waiting."""

    WAITING = "waiting"
    STARTING = "starting"
    CHECKING = "checking"
    TRAINING = "training"
    RESTARTING = "restarting"
    CHECKPOINT = "checkpoint"
    """Training waits while a checkpoint is written or read."""
    HANGING = "hanging"


PROGRESS_VARIABLE: Final = "GANGLINE_PROGRESS_FILE"
METRICS_VARIABLE: Final = "RUNTIME_METRICS_PATH"
"""Names the file to which trainers written for DLRover report their steps."""
_FIRST_AT: Final = "first_at_monotonic"
_SKIPPED: Final = "saves_skipped"
_OVERTAKEN: Final = "saves_overtaken"
_FAILED: Final = "saves_failed"
_PART: Final = 128
_TRAINING_AT: Final = 2 * _PART
_TRAINING_PART: Final = 1024
_PHASE_AT: Final = _TRAINING_AT + _TRAINING_PART
_PHASE: Final = "phase"
_SAVE_TIMES_AT: Final = _TRAINING_AT + _TRAINING_PART
_LARGEST: Final = 4096


@dataclass(frozen=True, slots=True)
class SaveCounts:
    """Numbers of saves that did not complete as requested, since the last start."""

    skipped: int = 0
    """Saves for which no memory was free."""
    overtaken: int = 0
    """Steps that were not written to storage because newer ones came first."""
    failed: int = 0
    """Failed writes of a step to storage; each is tried again."""

    @classmethod
    def merge_max(cls, counts: Iterable["SaveCounts"]) -> Self:
        """Combine the counts of processes that save the same steps: the maximum of each number."""
        rows = [(count.skipped, count.overtaken, count.failed) for count in counts]
        return cls(*map(max, *rows, (0, 0, 0))) if rows else cls()


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """Progress of one process since its start."""

    step: int | None = None
    first_step: int | None = None
    first_at: float | None = None
    """Time of the first finished step, on this machine's monotonic clock."""
    saved_step: int | None = None
    """The last step that a complete checkpoint holds, in memory or in storage."""
    blocked_s: float = 0.0
    """Time for which training has waited for checkpoints."""
    saves: SaveCounts = SaveCounts()
    phase: str = ""
    """What it does instead of steps: ``evaluation``, ``checkpoint``, or empty."""
    training: TrainingReport | None = None
    """Batch sizes, times of steps and more; None if none is reported."""
    lacks_steps: bool = False
    """True if saves or phases are reported, but nothing announces steps. An empty file does."""


class _FilePart:
    """One writer's fixed part of the file; without a file it does nothing.

    The file is created by the first report: an empty one announces steps.
    """

    def __init__(self, start: int, size: int, environment: Mapping[str, str]) -> None:
        self._at, self._size, self._file = start, size, -1
        self._path = environment.get(PROGRESS_VARIABLE, "")

    def write(self, text: str) -> None:
        if self._file < 0 and self._path:
            with contextlib.suppress(OSError):
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if self._file >= 0:
            with contextlib.suppress(OSError):  # a full disk must not end the training
                os.pwrite(self._file, text.ljust(self._size - 1).encode() + b"\n", self._at)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class StepReporter:
    """Reports finished steps."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._part = _FilePart(0, _PART, environment)
        self._part.write("\n")
        self._first = ""

    def report_step(self, step: int) -> None:
        """Report that a step is finished."""
        if not self._first:
            self._first = f"first_step {step}\n{_FIRST_AT} {time.monotonic():.3f}"
        self._part.write(f"step {step}\n{self._first}\n")


class SaveReporter:
    """Reports saved steps, and the time for which training has waited for checkpoints."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._part = _FilePart(_PART, _PART, environment)
        self._times_part = _FilePart(_SAVE_TIMES_AT, _PART, environment)
        self._blocked_s, self._saved = 0.0, ""
        self._saves = SaveCounts()
        self._write_lock = threading.Lock()

    def report_saved(self, step: int) -> None:
        """Report that a complete checkpoint holds this step."""
        self._saved = f"saved_step {step}\n"
        self._write()

    def report_blocked(self, seconds: float) -> None:
        """Add time for which training has waited for checkpoints."""
        self._blocked_s += seconds
        self._write()

    def report_times(self, save_s: float, interval_s: float | None, *, adapts: bool) -> None:
        """Report the time for which a save stops training, and the time between two saves.

        ``adapts`` is true if that time follows from the rate of failures.
        """
        interval = "" if interval_s is None else f"save_interval_s {interval_s:.6g}\n"
        self._times_part.write(f"save_s {save_s:.6g}\nsaves_adapt {int(adapts)}\n{interval}")

    def report_counts(self, saves: SaveCounts) -> None:
        """Report the numbers of saves that did not complete."""
        if saves != self._saves:
            self._saves = saves
            self._write()

    def _write(self) -> None:
        with self._write_lock:  # a save may complete in another thread
            saves = self._saves
            counts = {_SKIPPED: saves.skipped, _OVERTAKEN: saves.overtaken, _FAILED: saves.failed}
            more = "".join(f"{name} {number}\n" for name, number in counts.items() if number)
            self._part.write(f"{self._saved}blocked_s {self._blocked_s:.3f}\n{more}")


class PhaseReporter:
    """Reports phases without steps, which have time-outs of their own."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._part = _FilePart(_PHASE_AT, _PART, environment)

    @contextlib.contextmanager
    def report_phase(self, phase: str) -> Iterator[None]:
        """Report ``evaluation`` or ``checkpoint`` while the block runs.

        Example:
            with PhaseReporter().report_phase("evaluation"):
                evaluate(model)
        """
        self._part.write(f"{_PHASE} {phase}\n")
        try:
            yield
        finally:
            self._part.write("\n")


class TrainingReporter:
    """Reports batch sizes, times of steps and more."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._part = _FilePart(_TRAINING_AT, _TRAINING_PART, environment)
        self.is_enabled = bool(environment.get(PROGRESS_VARIABLE))
        """False if no agent reads the reports."""

    def report(self, report: TrainingReport) -> None:
        """Replace the last report."""
        self._part.write(format_report(report))


def read_progress(progress: Path, metrics: Path) -> WorkerProgress:
    """Read the progress of a process; invalid lines are ignored."""
    text = _text(progress)
    numbers = _numbers(text)
    texts = first_line((DEVICE_MODEL, _PHASE), text)
    device_model = texts.get(DEVICE_MODEL, "")
    step = _integer(numbers, "step")
    if step is None:
        step = _dlrover_step(_text(metrics))
    # The part of steps comes first. Without a writer of steps it is a hole.
    lacks_steps = step is None and text.startswith("\0")
    if step is None:
        step = _integer(numbers, "saved_step")
    return WorkerProgress(
        step=step,
        first_step=_integer(numbers, "first_step"),
        first_at=numbers.get(_FIRST_AT),
        saved_step=_integer(numbers, "saved_step"),
        blocked_s=numbers.get("blocked_s", 0.0),
        saves=SaveCounts(
            *(_integer(numbers, name) or 0 for name in (_SKIPPED, _OVERTAKEN, _FAILED))
        ),
        phase=texts.get(_PHASE, ""),
        training=parse_report(numbers, device_model),
        lacks_steps=lacks_steps,
    )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST).decode(errors="replace")
    except OSError:
        return ""


def _numbers(text: str) -> dict[str, float]:
    numbers = {}
    for line in text.replace("\0", " ").splitlines():
        name, _, number = line.strip().partition(" ")
        with contextlib.suppress(ValueError):
            numbers[name] = float(number)
    return numbers


def _integer(numbers: Mapping[str, float], name: str) -> int | None:
    number = numbers.get(name)
    return int(number) if number is not None and abs(number) < 1 << 53 else None


def _dlrover_step(text: str) -> int | None:
    try:
        step = json.loads(text)["step"]
    except (ValueError, KeyError, TypeError):
        return None  # absent, or incomplete
    return step if isinstance(step, int) else None
