"""What components count of themselves, under the names that controller-runtime and client-go use.

Dashboards and alerts made for other controllers show ours as they are. Labels name controllers,
kinds, verbs and codes: never an object, so that their number is bounded.
"""

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

QUEUE_DEPTH = Gauge("workqueue_depth", "Keys that wait for a worker", ["name"])
QUEUE_ADDS = Counter("workqueue_adds", "Keys that came in", ["name"])
QUEUE_RETRIES = Counter("workqueue_retries", "Keys tried again after a failure", ["name"])
QUEUE_WAIT = Histogram(
    "workqueue_queue_duration_seconds", "From coming in to a worker", ["name"], buckets=_SECONDS
)
QUEUE_WORK = Histogram(
    "workqueue_work_duration_seconds", "How long workers held a key", ["name"], buckets=_SECONDS
)
QUEUE_UNFINISHED = Gauge(
    "workqueue_unfinished_work_seconds", "How long workers have held their keys, summed", ["name"]
)
QUEUE_LONGEST = Gauge(
    "workqueue_longest_running_processor_seconds",
    "How long the slowest worker has held its key",
    ["name"],
)

RECONCILES = Counter(
    "controller_runtime_reconcile", "Reconciles by how they ended", ["controller", "result"]
)
RECONCILE_ERRORS = Counter(
    "controller_runtime_reconcile_errors", "Reconciles that raised", ["controller"]
)
TERMINAL_ERRORS = Counter(
    "controller_runtime_terminal_reconcile_errors",
    "Reconciles whose error no repetition can help",
    ["controller"],
)
RECONCILE_TIME = Histogram(
    "controller_runtime_reconcile_time_seconds",
    "How long a reconcile took",
    ["controller"],
    buckets=_SECONDS,
)
WORKERS = Gauge("controller_runtime_max_concurrent_reconciles", "Workers there are", ["controller"])
ACTIVE_WORKERS = Gauge("controller_runtime_active_workers", "Workers at work", ["controller"])

REQUESTS = Counter("rest_client_requests", "Answers of the API server", ["code", "method", "host"])
REQUEST_TIME = Histogram(
    "rest_client_request_duration_seconds",
    "Until the API server began to answer",
    ["verb", "host"],
    buckets=_SECONDS,
)
RATE_LIMIT_WAIT = Histogram(
    "rest_client_rate_limiter_duration_seconds",
    "How long requests waited for their turn under the rate limit",
    ["verb", "host"],
    buckets=_SECONDS,
)

WATCH_RESTARTS = Counter(
    "gangline_watch_restarts",
    "Watches begun anew: after their time (ended), a revision too old (expired), an error (failed)",
    ["kind", "cause"],
)
LEADER = Gauge(
    "leader_election_master_status", "1 while this copy holds the lease, else 0", ["name"]
)


class QueueMetrics:
    """Counts what goes on in one queue."""

    def __init__(self, name: str) -> None:
        self._depth = QUEUE_DEPTH.labels(name)
        self._adds = QUEUE_ADDS.labels(name)
        self._retries = QUEUE_RETRIES.labels(name)
        self._wait = QUEUE_WAIT.labels(name)
        self._work = QUEUE_WORK.labels(name)

    def added(self, depth: int) -> None:
        """A key came in; so many wait now."""
        self._adds.inc()
        self._depth.set(depth)

    def taken(self, depth: int, waited_s: float) -> None:
        """A worker took a key that had waited so long."""
        self._depth.set(depth)
        self._wait.observe(waited_s)

    def finished(self, held_s: float) -> None:
        """A worker is through with a key that it held so long."""
        self._work.observe(held_s)

    def retried(self) -> None:
        """A key is to be tried again after a failure."""
        self._retries.inc()


class RequestMetrics:
    """Counts the requests to one server."""

    def __init__(self, host: str) -> None:
        self._host = host
        # Looking a label up costs several times what counting does.
        self._answers: dict[tuple[str, str], Counter] = {}
        self._times: dict[str, Histogram] = {}

    def answered(self, method: str, code: str, took_s: float) -> None:
        """A request got this code, or none (``counting.NO_ANSWER``), after so long."""
        answers = self._answers.get((code, method))
        if answers is None:
            answers = self._answers[code, method] = REQUESTS.labels(code, method, self._host)
        times = self._times.get(method)
        if times is None:
            times = self._times[method] = REQUEST_TIME.labels(method, self._host)
        answers.inc()
        times.observe(took_s)

    def waited(self, method: str, waited_s: float) -> None:
        """A request had its turn under the rate limit after so long."""
        RATE_LIMIT_WAIT.labels(method, self._host).observe(waited_s)
