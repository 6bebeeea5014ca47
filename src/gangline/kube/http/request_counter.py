"""Counting of a client's requests: with Prometheus, or not at all.

Only long-running components are scraped. Short commands do not import the metrics library.
"""

from typing import Protocol

NO_RESPONSE = "<error>"
"""The code of a request without a response, as in client-go."""


class RequestCounter(Protocol):
    """Counts the requests to one server."""

    def record_response(self, method: str, code: str, took_s: float) -> None:
        """Count a response by its code (or ``NO_RESPONSE``) and duration."""

    def record_wait(self, method: str, waited_s: float) -> None:
        """Count the time that a request was delayed by the rate limit."""


class NullRequestCounter:
    """Counts nothing."""

    def record_response(self, method: str, code: str, took_s: float) -> None:
        """Do nothing."""

    def record_wait(self, method: str, waited_s: float) -> None:
        """Do nothing."""


def request_counter(host: str, *, counted: bool) -> RequestCounter:
    """Return the counter of the requests to a server."""
    if not counted:
        return NullRequestCounter()
    from gangline.kube.metrics import RequestMetrics

    return RequestMetrics(host)
