"""Messages about the job as a whole: its timeline, its account of time, its state."""

from gangline.elastic.protocol.kinds import Message
from gangline.elastic.protocol.world_messages import World


class JobEvent(Message):
    """Something for the job's timeline -> ``Done``."""

    reason: str
    message: str = ""
    node_id: int | None = None
    at: float = 0.0
    """On the master's clock of the job; set by the master."""


class GoodputWanted(Message):
    """What became of the time? -> ``Goodput``."""


class Goodput(Message):
    """Where the job's wall time went; the parts add up to ``wall_s``."""

    wall_s: float
    productive_s: float
    parts_s: dict[str, float]
    """waiting, starting, checking, restarting, checkpoint, hanging, lost."""
    step: int | None = None
    steps_lost: int = 0
    restarts: int = 0
    failures: int = 0

    @property
    def share(self) -> float:
        """The productive share, between 0 and 1."""
        return self.productive_s / self.wall_s if self.wall_s > 0 else 0.0


class StatusWanted(Message):
    """How is the job? -> ``Status``."""

    events_after: int = 0
    """Events up to this number are known already."""


class Status(Message):
    """The job as its master sees it."""

    job: str
    round: int
    world: World | None
    waiting: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    goodput: Goodput | None = None
    events: tuple[JobEvent, ...] = ()
    events_seen: int = 0
    """What to ask with next time."""
    datasets: tuple[str, ...] = ()
