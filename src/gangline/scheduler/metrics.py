"""Prometheus metrics of the scheduler."""

from prometheus_client import Counter, Gauge, Histogram

BINDINGS = Counter("gangline_scheduler_bindings", "Pods bound to a node")
EVICTIONS = Counter("gangline_scheduler_evictions", "Pods evicted for other pods")
PENDING_PODS = Gauge("gangline_scheduler_waiting_pods", "Pending pods")
START_DURATION = Gauge(
    "gangline_scheduler_start_seconds",
    "Time until the end of the first cycle: list, decode and cache of pods, sync of all kinds, "
    "first_cycle",
    ["phase"],
)
CYCLE_DURATION = Histogram(
    "gangline_scheduler_decision_seconds",
    "Duration of one scheduling cycle",
    buckets=(0.0005, 0.001, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
)
