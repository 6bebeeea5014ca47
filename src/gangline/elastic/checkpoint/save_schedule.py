"""When to save: at the interval that loses least time, and when the agent asks for it.

Saving every ``t`` seconds costs ``save_s / t`` of the time; a failure costs half an interval on
average. J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9),
1974, balances the two; J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", FGCS 22(3), 2006, equation 37, refines it for frequent failures.

The agent asks for a save before its node is evicted. All ranks must save the same step, so rank 0
looks for a request about once a second, and broadcasts it with the step of the next such exchange.
A script that saves after every step without ``due`` needs no agreement: a rank that finds the
request stops after that save, and the others wait for it in their next step.
"""

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline.elastic.checkpoint.ranks import SaveGroup
from gangline.elastic.save_request import SaveOrder, SaveOrders
from gangline.elastic.variables import TUNING_FILE_VARIABLE

EXCHANGE_EVERY_S = 1.0
MAX_STEPS_BETWEEN = 1000


def daly_interval(save_s: float, between_failures_s: float) -> float:
    """Return the best time between two saves, in seconds.

    Raises ValueError: a time is not positive.
    """
    if save_s <= 0 or between_failures_s <= 0:
        raise ValueError("times must be positive")
    if save_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = math.sqrt(save_s / (2 * between_failures_s))
    return math.sqrt(2 * save_s * between_failures_s) * (1 + ratio / 3 + ratio**2 / 9) - save_s


@dataclass(frozen=True, slots=True)
class FailurePrior:
    """A number of failures in a number of seconds of this job's training."""

    failures: float
    seconds: float


@dataclass(slots=True)
class AutoInterval:
    """Records observations and decides when the next save is due."""

    failures: int = 0
    """Number of restarts of the job."""
    observed_s: float = 0.0
    """Seconds of training so far, restarts included."""
    save_s: float = 0.05
    """Seconds that a save blocks training; a running mean."""
    measured_s: float | None = None
    """The same mean without an assumed beginning; None before the first save."""
    between_saves_s: float | None = None
    """Seconds from one save to the next; a running mean, None before the second save."""
    last_save_at: float | None = None
    prior: FailurePrior = FailurePrior(1.0, 6 * 3600.0)
    """Assumed before any failure, unless the job is tuned. Observations are added to it."""

    def between_failures_s(self) -> float:
        """Return the expected seconds from one failure to the next."""
        return (self.prior.seconds + self.observed_s) / (self.prior.failures + self.failures)

    def interval_s(self) -> float:
        """Return the best known interval between saves, in seconds."""
        return daly_interval(max(self.save_s, 1e-4), self.between_failures_s())

    def due(self, now: float) -> bool:
        """Return whether to save now; ``now`` is a monotonic clock."""
        return self.last_save_at is None or now - self.last_save_at >= self.interval_s()

    def record_save(self, now: float, took_s: float) -> None:
        """Record a save that blocked training for ``took_s`` seconds."""
        self.save_s += 0.3 * (took_s - self.save_s)
        self.measured_s = _smoothed(self.measured_s, took_s)
        if self.last_save_at is not None:
            passed_s = max(0.0, now - self.last_save_at)
            self.observed_s += passed_s
            self.between_saves_s = _smoothed(self.between_saves_s, passed_s)
        self.last_save_at = now


def _smoothed(mean: float | None, value: float) -> float:
    return value if mean is None else mean + 0.3 * (value - mean)


class TunedPrior:
    """Reads the file again when it has changed."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get(TUNING_FILE_VARIABLE)
        self._path = Path(path) if path else None
        self._seen: tuple[int, int] | None = None

    def changed(self) -> FailurePrior | None:
        """Return the prior if the file is new and has one."""
        if self._path is None:
            return None
        try:
            stat = self._path.stat()
            if (seen := (stat.st_mtime_ns, stat.st_ino)) == self._seen:
                return None
            self._seen = seen
            part = json.loads(self._path.read_text(encoding="utf-8"))["checkpoint"]
            prior = FailurePrior(float(part["failures"]), float(part["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # no tuning, or none for checkpoints
        is_valid = 0 < prior.failures < math.inf and 0 < prior.seconds < math.inf
        return prior if is_valid else None


class RequestedSaves:
    """Which save answers a request; the same on all ranks."""

    def __init__(self, ranks: SaveGroup, orders: SaveOrders) -> None:
        self._ranks, self._orders = ranks, orders
        self._is_enabled = not ranks.any_rank(not orders.is_enabled)
        self._uses_due = False
        self._agreed: SaveOrder | None = None
        self._next_exchange = 0
        self._last_exchange: tuple[int, float] | None = None
        self._last_saved: int | None = None

    def is_due(self, step: int) -> bool:
        """Return whether a request asks for a save after this step. All ranks call it together."""
        if not self._is_enabled:
            return False
        if not self._uses_due:
            self._uses_due = True
            self._orders.announce()
        # A lower step than at the last exchange: the script counts from the beginning again.
        if self._last_exchange is not None and self._last_exchange[0] <= step < self._next_exchange:
            return self._agreed is not None
        pending = self._orders.pending() if self._ranks.rank == 0 else None
        self._agreed, self._next_exchange = self._ranks.broadcast((pending, self._next(step)))
        return self._agreed is not None

    def _next(self, step: int) -> int:
        """Return the step of the next exchange, from the time that the last steps took."""
        now, last = time.monotonic(), self._last_exchange
        self._last_exchange = (step, now)
        if self._ranks.world == 1 or last is None or step <= last[0]:
            return step + 1
        steps = step - last[0]
        passed_s = max(now - last[1], 1e-6)
        # At most twice as many as before: one slow step after fast ones must not be late.
        count = min(int(steps * EXCHANGE_EVERY_S / passed_s), 2 * steps, MAX_STEPS_BETWEEN)
        return step + max(count, 1)

    def answer(self, step: int, *, is_saved: bool) -> SaveOrder | None:
        """Return the request that the save of this step answers, if any; it is not reported yet."""
        if not self._is_enabled:
            return None
        order, self._agreed = self._agreed, None
        follows, self._last_saved = self._last_saved == step - 1, step
        if not self._uses_due and follows:
            self._orders.announce()
            order = self._orders.pending()
        return order if is_saved else None
