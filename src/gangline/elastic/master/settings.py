"""Settings of a master, and the address of a Brain that runs outside of the job's cluster."""

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class MasterSettings:
    job: str
    """The job's name; clients of another job are refused."""
    hosts: tuple[str, ...] = ()
    """The addresses to listen on; none for all."""
    port: int = 50001
    """0 for any free port; it is printed."""
    listen_descriptor: int | None = None
    """An inherited listening socket, in place of host and port."""
    heartbeat_s: float = 1.0
    silence_s: float = 15.0
    """A node that is silent for this time is dead. A shorter time detects cut-off nodes sooner, but
    also reports nodes with an overloaded processor or network.
    """
    grace_s: float = 2.0
    """A node whose agent's connection broke is dead if it does not reconnect within this time."""
    linger_s: float | None = None
    """The master ends this time after all workers succeeded; None: only when it is stopped."""
    segment_s: float = 300.0
    """A segment of the published facts ends after this time at the latest."""
    serves_metrics: bool = True
    """Answer GET /metrics for any client: numbers only, no content of the job."""


class BrainUrlError(ValueError):
    """The URL of a Brain cannot be used; the message gives the reason."""


def check_brain_url(url: str) -> str:
    """Return the URL without a final slash. Raises BrainUrlError: it is no URL of a web server."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_valid = is_valid and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise BrainUrlError(f"{url}: must be http://HOST:PORT or https://HOST:PORT")
    return url.rstrip("/")
