"""What a master is told at its start."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """Settings of one job's master."""

    job: str
    """The job's name; clients of another one are refused."""
    host: str | None = None
    """The address to listen on; None for all."""
    port: int = 50001
    """0 for any free one; it is printed."""
    listen_descriptor: int | None = None
    """A listening socket that was inherited, instead of host and port."""
    heartbeat_s: float = 1.0
    """How often agents report."""
    silence_s: float = 15.0
    """A node that is not heard of for so long is dead. Shorter finds cut off nodes sooner, and
    blames nodes whose processor or network is overloaded."""
    grace_s: float = 2.0
    """A node whose agent's connection broke is dead if it does not come back in this time."""
    linger_s: float | None = None
    """The master ends so long after all workers have ended well; None: when it is told to."""
    serves_metrics: bool = True
    """Whether GET /metrics is answered, to anybody: numbers only, nothing of the job's content."""
