"""The rate of failures that the job's tuning assumes, from the file that the agent writes."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline.elastic.variables import TUNING_FILE_VARIABLE


@dataclass(frozen=True, slots=True)
class FailurePrior:
    """So many failures in so many seconds of this job's training."""

    failures: float
    seconds: float


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
