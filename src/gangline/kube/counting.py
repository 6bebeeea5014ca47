"""Who counts the requests of a client: Prometheus, or nobody.

Only what lasts is asked for its figures. A command that ends soon does not load what counts them.
"""

from typing import Protocol

NO_ANSWER = "<error>"
"""The code of a request that got no answer, as client-go spells it."""


class RequestCounter(Protocol):
    """Counts the requests to one server."""

    def answered(self, method: str, code: str, took_s: float) -> None:
        """A request got this code, or none (``NO_ANSWER``), after so long."""

    def waited(self, method: str, waited_s: float) -> None:
        """A request had its turn under the rate limit after so long."""


class Uncounted:
    """Counts nothing."""

    def answered(self, method: str, code: str, took_s: float) -> None:
        """Leave it at that."""

    def waited(self, method: str, waited_s: float) -> None:
        """Leave it at that."""


def counter_of(host: str, *, counted: bool) -> RequestCounter:
    """The counter of the requests to a server."""
    if not counted:
        return Uncounted()
    from gangline.kube.metrics import RequestMetrics  # noqa: PLC0415 - for those who count

    return RequestMetrics(host)
