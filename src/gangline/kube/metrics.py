"""Metrics of components, under the names of controller-runtime and client-go.

Dashboards and alerts for other controllers therefore work with ours. Labels are controllers, kinds,
verbs and codes, never objects, so that their number is bounded.
"""

import weakref
from collections.abc import Iterable
from time import monotonic as _now

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

QUEUE_DEPTH = Gauge("workqueue_depth", "Keys that wait for a worker", ["name"])
QUEUE_ADDS = Counter("workqueue_adds", "Keys that were added", ["name"])
QUEUE_RETRIES = Counter("workqueue_retries", "Keys that were requeued after a failure", ["name"])
QUEUE_WAIT = Histogram(
    "workqueue_queue_duration_seconds", "Waiting time of a key", ["name"], buckets=_SECONDS
)
QUEUE_WORK = Histogram(
    "workqueue_work_duration_seconds", "Processing time of a key", ["name"], buckets=_SECONDS
)
QUEUE_UNFINISHED = Gauge(
    "workqueue_unfinished_work_seconds",
    "Sum of the time that workers have processed their current keys",
    ["name"],
)
QUEUE_LONGEST_RUNNING = Gauge(
    "workqueue_longest_running_processor_seconds",
    "Time that the slowest worker has processed its current key",
    ["name"],
)

RECONCILES = Counter(
    "controller_runtime_reconcile", "Reconciles by result", ["controller", "result"]
)
RECONCILE_ERRORS = Counter(
    "controller_runtime_reconcile_errors", "Reconciles that raised", ["controller"]
)
TERMINAL_ERRORS = Counter(
    "controller_runtime_terminal_reconcile_errors",
    "Reconciles with an error that a retry cannot help",
    ["controller"],
)
RECONCILE_TIME = Histogram(
    "controller_runtime_reconcile_time_seconds",
    "Duration of a reconcile",
    ["controller"],
    buckets=_SECONDS,
)
WORKERS = Gauge("controller_runtime_max_concurrent_reconciles", "Number of workers", ["controller"])
ACTIVE_WORKERS = Gauge(
    "controller_runtime_active_workers", "Number of active workers", ["controller"]
)

REQUESTS = Counter(
    "rest_client_requests", "Responses of the API server", ["code", "method", "host"]
)
REQUEST_TIME = Histogram(
    "rest_client_request_duration_seconds",
    "Time until the API server responded",
    ["verb", "host"],
    buckets=_SECONDS,
)
RATE_LIMIT_WAIT = Histogram(
    "rest_client_rate_limiter_duration_seconds",
    "Delay of requests by the rate limit",
    ["verb", "host"],
    buckets=_SECONDS,
)

WATCH_RESTARTS = Counter(
    "gangline_watch_restarts",
    "Restarts of watches: timeout (ended), revision too old (expired), error (failed)",
    ["kind", "cause"],
)
LEADER = Gauge(
    "leader_election_master_status", "1 while this replica holds the lease, else 0", ["name"]
)
LEADER_TRANSITIONS = Gauge(
    "gangline_leader_transitions",
    "How often another replica took the lease, as the lease itself counts",
    ["name"],
)


class CacheAge:
    """When the cache of one watch was last known to be current."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.refreshed_at = _now()

    def refresh(self) -> None:
        """Record that the server has sent a list, an event or a bookmark, or ended the watch."""
        self.refreshed_at = _now()


class CacheAges(Collector):
    """The age of the oldest cache of each kind, computed when it is scraped."""

    def __init__(self) -> None:
        self._ages: weakref.WeakSet[CacheAge] = weakref.WeakSet()

    def add(self, age: CacheAge) -> None:
        """Export this age until ``remove`` is called."""
        self._ages.add(age)

    def remove(self, age: CacheAge) -> None:
        """Export this age no longer: its watch has ended."""
        self._ages.discard(age)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the metric without values, so that registration computes nothing."""
        return [_cache_age_family()]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the metric."""
        family, now = _cache_age_family(), _now()
        oldest: dict[str, float] = {}
        for age in self._ages:
            oldest[age.kind] = max(oldest.get(age.kind, 0.0), now - age.refreshed_at)
        for kind, seconds in sorted(oldest.items()):
            family.add_metric([kind], seconds)
        return [family]


def _cache_age_family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "gangline_cache_age_seconds",
        "Time since the API server last sent anything about a watched kind: objects, an event, a "
        "bookmark, or the regular end of the watch",
        labels=["kind"],
    )


CACHE_AGES = CacheAges()
REGISTRY.register(CACHE_AGES)


class QueueMetrics:
    """Metrics of one work queue (a ``QueueObserver``)."""

    def __init__(self, name: str) -> None:
        self._depth = QUEUE_DEPTH.labels(name)
        self._adds = QUEUE_ADDS.labels(name)
        self._retries = QUEUE_RETRIES.labels(name)
        self._wait = QUEUE_WAIT.labels(name)
        self._work = QUEUE_WORK.labels(name)

    def added(self, depth: int) -> None:
        """Count an added key."""
        self._adds.inc()
        self._depth.set(depth)

    def taken(self, depth: int, waited_s: float) -> None:
        """Record the waiting time of a key."""
        self._depth.set(depth)
        self._wait.observe(waited_s)

    def finished(self, held_s: float) -> None:
        """Record the processing time of a key."""
        self._work.observe(held_s)

    def retried(self) -> None:
        """Count a requeued key."""
        self._retries.inc()


class RequestMetrics:
    """Metrics of the requests to one server (a ``RequestCounter``)."""

    def __init__(self, host: str) -> None:
        self._host = host
        # Looking up a label costs several times as much as counting.
        self._answers: dict[tuple[str, str], Counter] = {}
        self._times: dict[str, Histogram] = {}

    def record_response(self, method: str, code: str, took_s: float) -> None:
        """Count a response by its code (or ``NO_RESPONSE``) and duration."""
        answers = self._answers.get((code, method))
        if answers is None:
            answers = self._answers[code, method] = REQUESTS.labels(code, method, self._host)
        times = self._times.get(method)
        if times is None:
            times = self._times[method] = REQUEST_TIME.labels(method, self._host)
        answers.inc()
        times.observe(took_s)

    def record_wait(self, method: str, waited_s: float) -> None:
        """Record the delay of a request by the rate limit."""
        RATE_LIMIT_WAIT.labels(method, self._host).observe(waited_s)
