"""Metrics of the API server, served under ``/metrics``."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gangline.local.apiserver.core.request import ApiRequest

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class _SeatCollector(Collector):
    """Reads the seats of the priority levels when the metrics are read."""

    def __init__(self, counts: Callable[[], dict[str, tuple[int, int]]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        labels = ["priority_level"]
        used = GaugeMetricFamily(
            "gangline_apiserver_seats_in_use", "Seats of executing requests.", labels=labels
        )
        waiting = GaugeMetricFamily(
            "gangline_apiserver_waiting_requests", "Requests that wait for a seat.", labels=labels
        )
        for level, (in_use, queued) in self._counts().items():
            used.add_metric([level], in_use)
            waiting.add_metric([level], queued)
        yield from (used, waiting)


class ApiServerMetrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "gangline_apiserver_requests", "Requests answered.",
            ["verb", "resource", "code"], registry=self._registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "gangline_apiserver_request_seconds", "Request duration without watches and streams.",
            ["verb"], registry=self._registry, buckets=BUCKETS,
        )  # fmt: skip
        self.audit_events_lost = Counter(
            "gangline_apiserver_audit_events_lost",
            "Audit events that were not written, because the disk is slow or full.",
            registry=self._registry,
        )
        self.watches = Gauge("gangline_apiserver_watches", "Open watches.", registry=self._registry)
        self.revision = Gauge(
            "gangline_apiserver_revision", "The newest committed revision.",
            registry=self._registry,
        )  # fmt: skip
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}

    def add_seats(self, counts: Callable[[], dict[str, tuple[int, int]]]) -> None:
        """Serve the occupied seats and the waiting requests of each level."""
        self._registry.register(_SeatCollector(counts))

    def observe_request(self, request: ApiRequest | None, code: int, seconds: float) -> None:
        verb, resource = (request.verb, request.kind.plural) if request else ("page", "")
        key = (verb, resource, code)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self._requests.labels(verb, resource, str(code))
            self._timers.setdefault(verb, self._seconds.labels(verb))
        counter.inc()
        if verb != "watch":
            self._timers[verb].observe(seconds)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)
