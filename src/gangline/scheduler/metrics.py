"""Prometheus metrics of the scheduler."""

from prometheus_client import Counter, Gauge, Histogram

BINDINGS = Counter("gangline_scheduler_bindings", "Pods that were given a node")
EVICTIONS = Counter("gangline_scheduler_evictions", "Pods that were evicted for others")
WAITING = Gauge("gangline_scheduler_waiting_pods", "Pods that wait for a node")
DECISION_TIME = Histogram(
    "gangline_scheduler_decision_seconds",
    "How long one decision took",
    buckets=(0.0005, 0.001, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
)
