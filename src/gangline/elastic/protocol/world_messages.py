"""Messages about worlds: nodes join, form a world, live, fail and leave.

Times are seconds.
"""

from collections.abc import Sequence

import msgspec

from gangline.elastic.protocol.kinds import Message


class Join(Message):
    """A node wants to be in the next world -> ``World``, ``Waiting`` (ask again) or ``Refused``.

    A long poll: the reply comes when the world stands, and ``Waiting`` after ``wait_s``. The
    parameters of the rendezvous are in each Join, so that a master that lost everything learns
    them again; the first to come win.
    """

    node_id: int
    """Names the node (its pod) for ever; a replacement has another one."""
    incarnation: str
    """Random word of the agent process: an agent that was started anew has another."""
    number: int
    """How many times this agent process wanted a world, counted from 1. The same number again is
    the same wish (its reply was lost, or ``Waiting``); a higher one leaves the old world."""
    node_rank: int = -1
    """Preferred order; a node that comes with a rank replaces the one that had it. -1: none."""
    local_world_size: int = 1
    host: str = ""
    """Name or address where the other nodes reach it."""
    agent_address: str = ""
    """host:port on which its agent listens for its peers."""
    store_port: int = 0
    """A port that is free there now, for the store should it become the first of the world."""
    topology: Sequence[str] = ()
    """Where it stands, widest first: ("zone-a", "rack-7"). Near nodes get ranks side by side."""
    round_seen: int = 0
    """The last round that it was in; what a master that lost its journal counts on from."""
    attempt: int = 0
    """The last attempt in that round (see ``World``)."""
    wait_s: float = 30.0
    min_nodes: int = 1
    max_nodes: int = 1
    node_unit: int = 1
    """Worlds have a multiple of this many nodes."""
    last_call_s: float = 5.0
    """With the minimum there, so long after the last arrival nobody more is waited for."""
    join_timeout_s: float = 600.0
    """If the minimum is not there after this, the rendezvous fails."""


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One node of a world. The order of fields is the wire format: add only at the end.

    It holds no references to containers, so the garbage collector need not look at the thousands.
    """

    node_id: int
    node_rank: int
    group_rank: int
    """Its place in the world, from 0."""
    local_world_size: int
    first_rank: int
    """The global rank of its first worker: the sizes of all members before it."""
    host: str = ""
    agent_address: str = ""


class World(Message):
    """A world stands. All members get the same."""

    round: int
    """Higher than any before in this job."""
    members: tuple[Member, ...]
    """In the order of ``group_rank``."""
    store_host: str
    store_port: int
    attempt: int = 0
    """0 from the master; agents that restart in place without it count up from there."""

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return sum(member.local_world_size for member in self.members)


class Waiting(Message):
    """No world yet: send the same ``Join`` again."""

    message: str = ""
    """What is waited for, for people."""
    present: int = 0
    """How many nodes wait."""
    wanted: int = 0
    """How many there must be at least."""
    missing: tuple[int, ...] = ()
    """Node ranks (or ids) that are expected and have not come, if known."""


class Leave(Message):
    """A node goes -> ``Done``. Its work is over or given up; nobody waits for it any more."""

    node_id: int
    incarnation: str = ""
    reason: str = ""
    """For people."""
    succeeded: bool = False
    """Its workers ended well: the others do not restart because of it."""
    known_dead: int | None = None
    """Not the sender but this node is gone: what a launcher, operator or peer saw."""


class Failure(Message):
    """Workers of a node failed -> ``Done``. Recorded; the agent acts by itself."""

    node_id: int
    round: int = 0
    attempt: int = 0
    ranks: tuple[int, ...] = ()
    local_ranks: tuple[int, ...] = ()
    """Their leases of shards return to the queue."""
    exit_codes: tuple[int, ...] = ()
    cause: str = ""
    """As ``gangline.api.failure`` names it."""
    blame: str = ""
    remedy: str = ""
    message: str = ""
    """The end of the log or the traceback; cut to 4,096 characters."""
    action: str = ""
    """What the agent does: RestartInPlace, LeaveNode, StopJob."""


class Finished(Message):
    """All workers of a node ended well -> ``Done`` when those of all members did.

    A long poll: ``Waiting`` after ``wait_s``, ask again. ``Refused`` RoundOver if the world does
    not stand any more: join again (a command says so too).
    """

    node_id: int
    incarnation: str = ""
    round: int = 0
    attempt: int = 0
    wait_s: float = 30.0
