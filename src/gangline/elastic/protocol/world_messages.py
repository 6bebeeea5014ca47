"""Messages about worlds: nodes join, form a world, fail and leave. Times are seconds."""

from collections.abc import Sequence

import msgspec

from gangline.elastic.protocol.base_messages import ProtocolMessage


class Join(ProtocolMessage):
    """A node asks for the next world -> ``World``, ``Waiting`` (ask again) or ``Refused``.

    A long poll: the reply comes when the world is formed, and ``Waiting`` after ``wait_s``. Each
    Join has the parameters of the rendezvous, so that a master without its journal learns them
    again; those of the first Join apply.
    """

    node_id: int
    """Permanent identifier of the node (its pod); a replacement has another one."""
    incarnation: str
    """Random identifier of the agent process; a restarted agent has another one."""
    number: int
    """Number of this request for a world by this agent process, from 1. The same number again is
    the same request (its reply was lost, or ``Waiting``); a higher one leaves the old world.
    """
    node_rank: int = -1
    """Preferred rank; the node replaces another node with this rank. -1 for none."""
    local_world_size: int = 1
    host: str = ""
    """Host name or address at which other nodes reach it."""
    agent_address: str = ""
    """host:port at which its agent listens for peers."""
    store_port: int = 0
    """A free port on its host, for the store if it becomes the first node of the world."""
    topology: Sequence[str] = ()
    """Topology domains, the widest first: ("zone-a", "rack-7"). Near nodes get adjacent ranks."""
    round_seen: int = 0
    """The last round that it was in; a master without its journal counts on from it."""
    attempt: int = 0
    """The last attempt in that round (see ``World``)."""
    wait_s: float = 30.0
    min_nodes: int = 1
    max_nodes: int = 1
    node_unit: int = 1
    """The number of nodes of a world is a multiple of it."""
    last_call_s: float = 5.0
    """Once the minimum has joined, the world waits this time after each arrival for more nodes."""
    join_timeout_s: float = 600.0
    """The rendezvous fails if the minimum has not joined within this time."""


class WorldMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One node of a world. The order of fields is the wire format: add only at the end.

    It has no references to containers, so the garbage collector need not track thousands of them.
    """

    node_id: int
    node_rank: int
    group_rank: int
    """Index of the node in the world, from 0."""
    local_world_size: int
    first_rank: int
    """The global rank of its first worker: the sum of the sizes of all members before it."""
    host: str = ""
    agent_address: str = ""


class WorldInfo(ProtocolMessage, tag="World"):
    """A formed world. All members get the same."""

    round: int
    """Higher than any round before in this job."""
    members: tuple[WorldMember, ...]
    """In the order of ``group_rank``."""
    store_host: str
    store_port: int
    attempt: int = 0
    """0 from the master; agents that restart in place without it increase the number."""

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return sum(member.local_world_size for member in self.members)


class JoinPending(ProtocolMessage, tag="Waiting"):
    """There is no world yet: send the same ``Join`` again."""

    message: str = ""
    """What the rendezvous waits for, for display."""
    present: int = 0
    """Number of waiting nodes."""
    wanted: int = 0
    """Minimum number of nodes."""
    missing: tuple[int, ...] = ()
    """Expected node ranks (or ids) that have not joined, if known."""


class Leave(ProtocolMessage):
    """A node leaves -> ``Done``. Its work is finished or given up; no other node waits for it."""

    node_id: int
    incarnation: str = ""
    reason: str = ""
    """For display."""
    succeeded: bool = False
    """True if its workers succeeded: the other nodes do not restart because of it."""
    known_dead: int | None = None
    """The node that is gone, in place of the sender, as seen by a launcher, operator or peer."""


class FailureReport(ProtocolMessage, tag="Failure"):
    """Workers of a node failed -> ``Done``. It is recorded; the agent acts by itself."""

    node_id: int
    round: int = 0
    attempt: int = 0
    ranks: tuple[int, ...] = ()
    local_ranks: tuple[int, ...] = ()
    """Leases of shards of these workers are released."""
    exit_codes: tuple[int, ...] = ()
    cause: str = ""
    """A cause of ``gangline.api.failure``."""
    blame: str = ""
    remedy: str = ""
    message: str = ""
    """End of the log or traceback, at most 4,096 characters."""
    action: str = ""
    """The agent's action: RestartInPlace, LeaveNode, StopJob."""


class WorkersFinished(ProtocolMessage, tag="Finished"):
    """All workers of a node succeeded -> ``Done`` once those of all members have.

    A long poll: ``Waiting`` after ``wait_s``, ask again. ``Refused`` RoundOver if the world is
    broken: join again (a command says so too).
    """

    node_id: int
    incarnation: str = ""
    round: int = 0
    attempt: int = 0
    wait_s: float = 30.0
