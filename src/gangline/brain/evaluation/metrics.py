"""Metrics of the Brain, for Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

CYCLE_SECONDS = Histogram(
    "gangline_brain_cycle_seconds",
    "Time of one evaluation of all running jobs.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30),
)
ACTIONS = Counter("gangline_brain_actions_total", "Actions begun, by field.", ["what"])
ROLLBACKS = Counter("gangline_brain_rollbacks_total", "Actions that were rolled back.")
_JOBS = Gauge("gangline_brain_running_jobs", "Jobs that are evaluated.")
_DROPPED = Gauge("gangline_brain_dropped_facts", "Facts that were not believed, since the start.")
_AVAILABLE = Gauge("gangline_brain_history_available", "1 while the database answers, else 0.")
_RESTARTING = Gauge(
    "gangline_brain_devices_in_restart", "Devices of jobs whose size is being changed."
)


def record_cycle(jobs: int, dropped_facts: int, problem: str, devices_in_restart: int) -> None:
    """Set the gauges at the end of a cycle."""
    _JOBS.set(jobs)
    _DROPPED.set(dropped_facts)
    _RESTARTING.set(devices_in_restart)
    _AVAILABLE.set(0 if problem else 1)
