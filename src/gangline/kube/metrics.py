"""Counters of controllers and their queues, in Prometheus' terms."""

from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram

_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)

QUEUE_DEPTH = Gauge("gangline_workqueue_depth", "Keys that wait for a worker", ["name"])
QUEUE_ADDS = Counter("gangline_workqueue_adds", "Keys that came in", ["name"])
QUEUE_RETRIES = Counter("gangline_workqueue_retries", "Keys tried again after a failure", ["name"])
QUEUE_WAIT = Histogram(
    "gangline_workqueue_wait_seconds", "From coming in to a worker", ["name"], buckets=_BUCKETS
)
RECONCILES = Counter("gangline_reconciles", "Reconciles by outcome", ["name", "outcome"])
RECONCILE_TIME = Histogram(
    "gangline_reconcile_seconds", "How long a reconcile took", ["name"], buckets=_BUCKETS
)


@dataclass(slots=True)
class QueueMetrics:
    """Counts what goes on in one queue."""

    name: str

    def added(self, depth: int) -> None:
        """A key came in; so many wait now."""
        QUEUE_ADDS.labels(self.name).inc()
        QUEUE_DEPTH.labels(self.name).set(depth)

    def taken(self, depth: int, waited_s: float) -> None:
        """A worker took a key that had waited so long."""
        QUEUE_DEPTH.labels(self.name).set(depth)
        QUEUE_WAIT.labels(self.name).observe(waited_s)

    def retried(self) -> None:
        """A key is to be tried again after a failure."""
        QUEUE_RETRIES.labels(self.name).inc()
