"""Counting of a client's requests: with Prometheus, or not at all.

Only long-running components are scraped. Short commands do not import the metrics library.
"""

from typing import Protocol

NO_ANSWER = "<error>"
"""The code of a request without a response, as in client-go."""


class RequestCounter(Protocol):
    """Counts the requests to one server."""

    def answered(self, method: str, code: str, took_s: float) -> None:
        """Count a response by its code (or ``NO_ANSWER``) and duration."""

    def waited(self, method: str, waited_s: float) -> None:
        """Count the time that a request was delayed by the rate limit."""


class Uncounted:
    """Counts nothing."""

    def answered(self, method: str, code: str, took_s: float) -> None: ...

    def waited(self, method: str, waited_s: float) -> None: ...


def counter_of(host: str, *, counted: bool) -> RequestCounter:
    if not counted:
        return Uncounted()
    from gangline.kube.metrics import RequestMetrics  # noqa: PLC0415 - see the module docstring

    return RequestMetrics(host)
