"""The rendezvous of a job: a world forms, breaks when its members change, and forms again.

It has no clock and does no I/O: each method takes the time and changes the state. Events come in
(``join``, ``leave``, ``finish``, ``record_heartbeat``, ``tick``); ``answer`` gives the reply to a
node, and ``orders`` collects the restarts to send. The rules:

1. A world has at least the minimum and at most the maximum of nodes, a multiple of the node unit.
2. It forms immediately when the maximum waits, or when all nodes known to live wait. Dead nodes are
   not waited for. Before the first world nothing is known of other nodes, so it forms when no node
   has joined for the last-call time.
3. It breaks when a member joins again, dies, or leaves without success, and when waiting nodes make
   it larger. Members are then ordered to restart. Live members are waited for longer than a last
   call, because they must stop their workers first.
4. If the minimum is not there in time, all waiting nodes are refused with the names of the missing.
5. A node that joins with the rank of another one replaces it; the other one is refused from then
   on.

6. Members whose workers survive a change of members join again while these keep running.

Near nodes get neighbouring ranks. All of the state is persisted, so that a new master continues
where the old one ended.

Invariant: round numbers only rise, also after the master has lost its memory (``round_seen``).
"""

from collections.abc import Iterable

import msgspec

from gangline.api.figures import plain_number
from gangline.elastic.protocol.messages import (
    Join,
    JoinPending,
    RequestRefused,
    RestartCommand,
    WorldInfo,
    WorldMember,
)

STOP_TIMEOUT_S = 60.0
"""Live members are waited for this long when a world breaks: torch gives workers 30 s to end."""
RESEND_RESTART_S = 3.0
"""A node that trains on although it must restart gets the order again after this time."""
_MAX_FORMER = 8
_MAX_GONE_LISTED = 8
_MAX_MISSING_LISTED = 64
_LAST_RANK = 1 << 62
"""Sort key of a node without a rank: behind all others."""
_RankKey = tuple[int, int]


class RendezvousParameters(msgspec.Struct, frozen=True, array_like=True):
    """Rendezvous parameters of a job; the first Join sets them."""

    min_nodes: int
    max_nodes: int
    node_unit: int
    last_call_s: float
    join_timeout_s: float

    @classmethod
    def from_join(cls, join: Join) -> "RendezvousParameters":
        """Read them from a Join, and correct contradictions."""
        unit = max(1, join.node_unit)
        lowest = max(1, join.min_nodes)
        return cls(lowest, max(lowest, join.max_nodes), unit, join.last_call_s, join.join_timeout_s)

    @property
    def problem(self) -> str:
        """Why no world can ever form; empty if one can."""
        if self.largest_size:
            return ""
        return (
            f"there is no multiple of {self.node_unit} (node unit) between {self.min_nodes} and "
            f"{self.max_nodes} nodes"
        )

    @property
    def largest_size(self) -> int:
        return self.usable_size(self.max_nodes)

    def usable_size(self, count: int) -> int:
        """Return the size of the largest world of ``count`` nodes; 0 if there is none."""
        size = min(count, self.max_nodes)
        size -= size % self.node_unit
        return size if size >= self.min_nodes else 0

    @property
    def smallest_size(self) -> int:
        """Size of the smallest possible world: the minimum, rounded up to the unit."""
        return -(-self.min_nodes // self.node_unit) * self.node_unit


class WaitingNode(msgspec.Struct, array_like=True):
    join: Join
    since: float


class MemberRecord(msgspec.Struct, array_like=True):
    """A node's membership in the current world."""

    incarnation: str
    number: int
    """Number of the Join; 0 if the membership is known from a heartbeat only."""
    is_finished: bool = False


class JoinRefusal(msgspec.Struct, array_like=True):
    incarnation: str
    number: int
    reason: str
    message: str


class RendezvousState(msgspec.Struct):
    parameters: RendezvousParameters | None = None
    round: int = 0
    world: WorldInfo | None = None
    """The last world that formed, current or not."""
    members: dict[int, MemberRecord] = {}
    """Members that have not left it. Also nodes that report training in a world unknown to this
    master.
    """
    is_broken: bool = False
    """True if the members are ordered to stop and join again."""
    broken_at: float = 0.0
    waiting: dict[int, WaitingNode] = {}
    waiting_since: float | None = None
    """Time since which nodes wait for a world; None without waiting nodes."""
    last_arrival: float = 0.0
    gone: dict[int, str] = {}
    """Nodes that are dead or have left, with the reason. They are not waited for."""
    replaced: dict[int, int] = {}
    """Nodes whose rank another node has taken, with the id of that node."""
    former: dict[int, list[str]] = {}
    """Earlier agent processes of each node."""
    refusals: dict[int, JoinRefusal] = {}
    told: dict[int, float] = {}
    """Time of the last order to restart, for nodes that train on in a world that is over."""
    is_over: bool = False
    """True if all members of a world have finished: there will be no other one."""

    @property
    def is_standing(self) -> bool:
        """True if there is a world whose members need not restart."""
        return bool(self.members) and not self.is_broken


class Rendezvous:
    """One job's rendezvous; ``state`` is everything that it knows."""

    def __init__(self, state: RendezvousState | None = None) -> None:
        self.state = state or RendezvousState()
        self.orders: list[tuple[int, RestartCommand]] = []
        """Restarts to send since this was last cleared, with the node of each."""
        self._rank_index = _RankIndex(self.state)

    def parameters_of(self, join: Join) -> RendezvousParameters:
        """Return the parameters in force; the first Join sets them."""
        return self.state.parameters or RendezvousParameters.from_join(join)

    # Events

    def join(self, join: Join, now: float) -> bool:
        """A node wants to be in the next world. Returns True if the state changed."""
        state = self.state
        node = join.node_id
        if self._is_outdated(join) or state.is_over:
            return False
        state.parameters = self.parameters_of(join)
        state.round = max(state.round, join.round_seen)
        self._replace_rank_of(join, now)
        self._record_former(join)
        was_member = state.members.pop(node, None) is not None
        state.gone.pop(node, None)
        state.refusals.pop(node, None)
        state.waiting[node] = WaitingNode(join, now)
        self._rank_index.add(join)
        state.last_arrival = now
        if state.waiting_since is None:
            state.waiting_since = now
        if was_member:
            self._break_world(now, f"node {node} joins again")
        elif self._can_grow():
            self._break_world(now, f"node {node} has joined")
        self._form_world(now)
        return True

    def leave(
        self, node: int, now: float, reason: str, *, succeeded: bool = False, incarnation: str = ""
    ) -> bool:
        """A node has left, or is known to be dead. Returns True if the state changed.

        Args:
            node: its id.
            now: the time.
            reason: for people.
            succeeded: its workers have succeeded.
            incarnation: its agent process, if that one reports its own end: it will not return.
                A node that others report as dead may still live and join again.
        """
        state = self.state
        is_news = bool(incarnation) and incarnation not in state.former.get(node, ())
        if is_news:
            self._remember_former(node, incarnation)
        if node in state.gone:
            return is_news
        state.gone[node] = reason
        state.waiting.pop(node, None)
        member = state.members.get(node)
        if member is not None and (succeeded or member.is_finished):
            member.is_finished = True
            self._end_if_all_finished()
        elif member is not None:
            del state.members[node]
            self._break_world(now, f"node {node} has left: {reason}")
        self._form_world(now)
        return True

    def finish(self, node: int, incarnation: str, round_: int) -> bool:
        """All workers of a node have succeeded. Returns True if the state changed."""
        member = self.state.members.get(node)
        if member is None or member.is_finished or not self._is_current(round_):
            return False
        if member.incarnation != incarnation:
            return False
        member.is_finished = True
        self._end_if_all_finished()
        return True

    def record_heartbeat(self, node: int, incarnation: str, round_: int, now: float) -> bool:
        """A node reports that it trains in a round. Returns True if the state changed.

        A master that lost its memory learns from this that there is a world. A node that was
        considered dead by mistake, or missed that its world broke, is ordered to restart.
        """
        state = self.state
        if round_ <= 0 or state.is_over or node in state.waiting or node in state.replaced:
            return False
        if incarnation in state.former.get(node, ()):
            return False
        member = state.members.get(node)
        if member is None and state.world is None and round_ >= state.round:
            self._adopt_world(node, incarnation, round_, now)
            return True
        reason = self._why_restart(member, incarnation, round_, now)
        if not reason or now < state.told.get(node, 0.0) + RESEND_RESTART_S:
            return False
        state.told[node] = now
        self.orders.append((node, RestartCommand(round=round_, reason=reason)))
        return True

    def tick(self, now: float) -> bool:
        """Process timeouts. Returns True if the state changed."""
        state = self.state
        before = state.round
        self._form_world(now)
        if state.round != before:
            return True
        if not state.waiting or self.state.is_standing or state.waiting_since is None:
            return False
        assert state.parameters is not None
        if now < state.waiting_since + state.parameters.join_timeout_s:
            return False
        self._refuse_waiting()
        return True

    def deadline(self) -> float | None:
        """Time of the next ``tick``; None for never."""
        state = self.state
        if not state.waiting or self.state.is_standing or state.parameters is None:
            return None
        ends = []
        if state.waiting_since is not None:
            ends.append(state.waiting_since + state.parameters.join_timeout_s)
        if state.parameters.usable_size(len(state.waiting)):
            ends.append(self._last_call_end())
        return min(ends, default=None)

    # Replies to nodes

    def answer(self, join: Join) -> WorldInfo | RequestRefused | None:
        """Return the reply to a Join that has been processed; None if the node must wait."""
        state, node = self.state, join.node_id
        member, waiting = state.members.get(node), state.waiting.get(node)
        refusal = state.refusals.get(node)
        if member is not None and _is_same_request(member, join):
            assert state.world is not None
            return state.world
        if node in state.replaced:
            other = state.replaced[node]
            return RequestRefused(reason="Superseded", message=f"node {other} has taken its rank")
        if refusal is not None and _is_same_request(refusal, join):
            return RequestRefused(reason=refusal.reason, message=refusal.message)
        if state.is_over:
            return RequestRefused(reason="JobOver", message="all nodes have finished")
        if waiting is None or not _is_same_request(waiting.join, join):
            return RequestRefused(reason="Superseded", message="a later Join of this node is known")
        return None

    def waiting_message(self) -> JoinPending:
        """Return what waiting nodes wait for."""
        state = self.state
        least = state.parameters.smallest_size if state.parameters else 0
        if state.is_standing:
            message = f"the world of round {state.round} is complete; this node is a spare"
        elif state.members:
            message = f"nodes {sorted(state.members)} stop their workers first"
        else:
            message = f"{len(state.waiting)} of at least {least} nodes have joined"
        return JoinPending(
            message=message,
            present=len(state.waiting),
            wanted=least,
            missing=_missing(state)[:_MAX_MISSING_LISTED],
        )

    def finished_answer(self, node: int, round_: int) -> bool | None:
        """Whether all nodes have finished; None if the round ended for another reason."""
        if self.state.is_over:
            return True
        if not self._is_current(round_) or node not in self.state.members:
            return None
        return False

    # The rules

    def _adopt_world(self, node: int, incarnation: str, round_: int, now: float) -> None:
        """Learn of a world from one of its members."""
        state = self.state
        state.round = round_
        state.members[node] = MemberRecord(incarnation, 0)
        state.gone.pop(node, None)
        if state.is_broken:
            self.orders.append((node, RestartCommand(round=round_, reason="the world forms again")))
        elif state.waiting:
            self._break_world(now, "other nodes of the world have joined again")

    def _why_restart(
        self, member: MemberRecord | None, incarnation: str, round_: int, now: float
    ) -> str:
        """Return why a node that trains in a round must restart; empty if it may continue."""
        state = self.state
        if member is None:
            return "the world continues without it"
        if member.incarnation != incarnation:
            return ""
        if state.is_broken:  # the order was sent, but may have been lost
            return "the members have changed" if now >= state.broken_at + RESEND_RESTART_S else ""
        return "there is a newer world" if round_ < state.round else ""

    def _is_outdated(self, join: Join) -> bool:
        """True if this Join is known already, or older than a known one."""
        state, node = self.state, join.node_id
        if node in state.replaced or join.incarnation in state.former.get(node, ()):
            return True
        member = state.members.get(node)
        if member is not None and state.is_broken and member.incarnation == join.incarnation:
            # The reply to this Join was lost, and the world has broken meanwhile, so the repeated
            # Join asks for the next world.
            return join.number < member.number
        return any(
            join.number <= request.number
            for request in self._requests_of(node)
            if request.incarnation == join.incarnation
        )

    def _requests_of(self, node: int) -> list[MemberRecord | JoinRefusal | Join]:
        """Return the last Join of a node, in the form in which it is remembered."""
        waiting = self.state.waiting.get(node)
        requests = (
            self.state.members.get(node),
            self.state.refusals.get(node),
            waiting.join if waiting else None,
        )
        return [request for request in requests if request is not None]

    def _record_former(self, join: Join) -> None:
        """Record the agent processes of the node that this Join replaces."""
        incarnations = {request.incarnation for request in self._requests_of(join.node_id)}
        for incarnation in sorted(incarnations - {join.incarnation}):
            self._remember_former(join.node_id, incarnation)

    def _remember_former(self, node: int, incarnation: str) -> None:
        kept = [earlier for earlier in self.state.former.get(node, []) if earlier != incarnation]
        self.state.former[node] = [*kept, incarnation][-_MAX_FORMER:]

    def _replace_rank_of(self, join: Join, now: float) -> None:
        """Let a node replace others of the same rank."""
        state = self.state
        for node in self._rank_index.nodes_of(join.node_rank):
            if node == join.node_id or node in state.replaced:
                continue
            reason = f"node {join.node_id} has taken its rank"
            state.replaced[node] = join.node_id
            state.gone[node] = reason
            state.waiting.pop(node, None)
            if state.members.pop(node, None) is not None:
                self.orders.append((node, RestartCommand(round=state.round, reason=reason)))
                self._break_world(now, f"node {join.node_id} replaces node {node}")

    def _can_grow(self) -> bool:
        state = self.state
        if not self.state.is_standing or state.parameters is None:
            return False
        if any(member.is_finished for member in state.members.values()):
            return False  # it is about to end, so its members do not restart for a new node
        present = len(state.members)
        return state.parameters.usable_size(present + len(state.waiting)) > present

    def _is_current(self, round_: int) -> bool:
        return self.state.is_standing and self.state.round == round_

    def _break_world(self, now: float, reason: str) -> None:
        """Order the members to restart, once for each world."""
        state = self.state
        if state.is_broken:
            return
        state.is_broken = True
        state.broken_at = now
        state.waiting_since = now if state.waiting else state.waiting_since
        for node, member in state.members.items():
            member.is_finished = False
            if node not in state.gone:
                self.orders.append((node, RestartCommand(round=state.round, reason=reason)))
        for node in [node for node in state.members if node in state.gone]:
            del state.members[node]

    def _form_world(self, now: float) -> None:
        """Form a world if the rules allow it now."""
        state = self.state
        if not state.waiting or self.state.is_standing or state.is_over or state.parameters is None:
            return
        size = state.parameters.usable_size(len(state.waiting))
        if not size or (now < self._last_call_end() and not self._has_all_nodes()):
            return
        joins = _order_by_topology(_choose_members(state.waiting.values(), size, state.world))
        first = state.world.members[0].node_id if state.world else None
        # The first node has the store of workers that keep running, so it stays the first one.
        joins.sort(key=lambda join: not (join.continues and join.node_id == first))
        state.round += 1
        state.world = _build_world(joins, state.round, first)
        for join in joins:
            del state.waiting[join.node_id]
        state.members = {
            join.node_id: MemberRecord(join.incarnation, join.number) for join in joins
        }
        state.is_broken = False
        state.waiting_since = None

    def _has_all_nodes(self) -> bool:
        """True if no other node can be expected."""
        state = self.state
        assert state.parameters is not None
        waiting = len(state.waiting)
        if state.parameters.usable_size(waiting) == state.parameters.largest_size:
            return True
        if state.members:  # members of a broken world live, and will join
            return False
        if state.world is not None and any(
            member.node_id in state.waiting for member in state.world.members
        ):
            return True  # all survivors of the last world wait
        dead = len(state.gone.keys() - state.replaced.keys())
        return waiting + dead >= state.parameters.max_nodes

    def _last_call_end(self) -> float:
        """Time until which other nodes are waited for."""
        state = self.state
        assert state.parameters is not None
        last_call = state.last_arrival + state.parameters.last_call_s
        if state.members:
            return max(last_call, state.broken_at + STOP_TIMEOUT_S)
        return last_call

    def _refuse_waiting(self) -> None:
        """Refuse all waiting nodes: the minimum has not joined in time."""
        state = self.state
        message = _timeout_message(state)
        for node, waiting_node in state.waiting.items():
            join = waiting_node.join
            state.refusals[node] = JoinRefusal(
                join.incarnation, join.number, "RendezvousFailed", message
            )
        state.waiting.clear()
        state.waiting_since = None

    def _end_if_all_finished(self) -> None:
        state = self.state
        if state.members and all(member.is_finished for member in state.members.values()):
            state.is_over = not state.is_broken


class _RankIndex:
    """Finds waiting nodes and members of the last world by rank.

    Without it each of a thousand joins would be compared with all present nodes, half of the time
    in which a large job forms its world. At most one waiting node has a rank, because a new one
    replaces the old one. Entries may be outdated and are checked against the state, from which the
    index follows, so it is not persisted.
    """

    def __init__(self, state: RendezvousState) -> None:
        self._state = state
        self._waiting = {
            waiting_node.join.node_rank: node for node, waiting_node in state.waiting.items()
        }
        self._world: WorldInfo | None = None
        self._members: dict[int, int] = {}

    def add(self, join: Join) -> None:
        self._waiting[join.node_rank] = join.node_id

    def nodes_of(self, rank: int) -> list[int]:
        """Return the nodes with a rank; empty for a negative one, which many nodes may have."""
        if rank < 0:
            return []
        nodes = []
        node = self._waiting.get(rank)
        waiting_node = self._state.waiting.get(node) if node is not None else None
        if node is not None and waiting_node is not None and waiting_node.join.node_rank == rank:
            nodes.append(node)
        member = self._members_by_rank().get(rank)
        return nodes if member is None else [*nodes, member]

    def _members_by_rank(self) -> dict[int, int]:
        world = self._state.world
        if world is not self._world:
            members = world.members if world is not None else ()
            self._world = world
            self._members = {member.node_rank: member.node_id for member in members}
        return self._members


def _timeout_message(state: RendezvousState) -> str:
    """Return the message of a timeout, with the missing nodes."""
    assert state.parameters is not None
    parts = [
        f"after {plain_number(state.parameters.join_timeout_s)} s only {len(state.waiting)} of at "
        f"least {state.parameters.smallest_size} nodes have joined"
    ]
    if missing := _missing(state):
        parts.append(f"missing: rank {', '.join(map(str, missing[:_MAX_MISSING_LISTED]))}")
    gone = sorted(state.gone.keys() - state.replaced.keys())
    parts += [f"lost: node {node} ({state.gone[node]})" for node in gone[:_MAX_GONE_LISTED]]
    return "; ".join(parts)


def _missing(state: RendezvousState) -> tuple[int, ...]:
    """Ranks below the maximum without a waiting node; empty if nodes have no ranks."""
    if state.parameters is None:
        return ()
    here = {waiting_node.join.node_rank for waiting_node in state.waiting.values()}
    if -1 in here:
        return ()
    return tuple(rank for rank in range(state.parameters.max_nodes) if rank not in here)


def _choose_members(
    waiting: Iterable[WaitingNode], size: int, former: WorldInfo | None
) -> list[Join]:
    """Return the nodes of a world of ``size``: former members first, then by rank."""
    trained = {member.node_id for member in former.members} if former else set()
    by_right = sorted(
        (waiting_node.join for waiting_node in waiting),
        key=lambda join: (join.node_id not in trained, _rank_key(join)),
    )
    return by_right[:size]


def _order_by_topology(joins: list[Join]) -> list[Join]:
    """Order nodes by rank, but place nodes of one zone, rack … next to each other.

    An area is placed where its first node would be. Without topology the order is that of ranks.
    """
    depth = max((len(join.topology) for join in joins), default=0)
    first: dict[tuple[str, ...], _RankKey] = {}
    for join in joins:
        for level in range(1, depth + 1):
            area = tuple(join.topology[:level])
            first[area] = min(first.get(area, _rank_key(join)), _rank_key(join))

    def key(join: Join) -> list[_RankKey]:
        areas = (tuple(join.topology[:level]) for level in range(1, depth + 1))
        return [*(first[area] for area in areas), _rank_key(join)]

    return sorted(joins, key=key)


def _rank_key(join: Join) -> _RankKey:
    """Sort key of a node by its rank. It is unique, so arrival times do not matter."""
    return (join.node_rank if join.node_rank >= 0 else _LAST_RANK, join.node_id)


def _build_world(joins: list[Join], number: int, first: int | None) -> WorldInfo:
    members, first_rank = [], 0
    are_equal = len({join.local_world_size for join in joins}) == 1
    for group_rank, join in enumerate(joins):
        members.append(
            WorldMember(
                join.node_id,
                join.node_rank,
                group_rank,
                join.local_world_size,
                first_rank,
                join.host,
                join.agent_address,
            )
        )
        first_rank += join.local_world_size
    return WorldInfo(
        round=number,
        members=tuple(members),
        store_host=joins[0].host,
        store_port=joins[0].store_port,
        continues=joins[0].continues and joins[0].node_id == first and are_equal,
    )


def _is_same_request(request: MemberRecord | JoinRefusal | Join, join: Join) -> bool:
    return (request.incarnation, request.number) == (join.incarnation, join.number)
