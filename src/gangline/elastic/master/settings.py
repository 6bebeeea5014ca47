"""Settings of a master."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """Settings of one job's master."""

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
