"""How long the start took, by phase: one log line, and a metric."""

import logging
import time

from gangline.scheduler.informers import SchedulerInformers
from gangline.scheduler.metrics import START_DURATION

log = logging.getLogger(__name__)


class StartReporter:
    """Measures the time from its creation to the end of the first cycle.

    The phases of the list of pods are ``list`` (waiting for the server), ``decode`` and ``cache``.
    ``sync`` is the time until all kinds had been read, and includes them.
    """

    def __init__(self, informers: SchedulerInformers) -> None:
        self._informers = informers
        self._began = time.perf_counter()
        self._sync_s: float | None = None
        self._reported = False

    def synced(self) -> None:
        """Note that everything has been read."""
        self._sync_s = time.perf_counter() - self._began

    def cycle_ended(self, took_s: float) -> None:
        """Report the phases after the first cycle; later ones are ignored."""
        if self._reported or self._sync_s is None:
            return
        self._reported = True
        phases = {"sync": self._sync_s, "first_cycle": took_s}
        fields: dict[str, object] = {"pods": len(self._informers.pods)}
        for times in self._informers.pods.list_times:
            phases |= {"list": times.list_s, "decode": times.decode_s, "cache": times.cache_s}
            fields["protobuf"] = times.is_protobuf
        for phase, duration_s in phases.items():
            START_DURATION.labels(phase).set(duration_s)
            fields[f"{phase}_s"] = round(duration_s, 3)
        log.info("started", extra=fields)
