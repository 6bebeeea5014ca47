"""The rendezvous: nodes join, a world forms, breaks when its members change, and forms anew.

Pure: no clock, no I/O; each method takes the time and changes the state. It is told what happens
(``join``, ``leave``, ``lost``, ``finish``, ``seen``, ``tick``) and is asked what a node should hear
(``answer``) and be told to do (``orders``). The rules:

- A world has at least the minimum and at most the maximum of nodes, a multiple of the unit.
- It forms at once when the maximum waits, or when all nodes that are known to live wait; nodes that
  are known to be dead are not waited for. Before anything is known of the other nodes (the first
  world) it forms when nobody came for the time of the last call.
- It breaks when a member joins anew, dies, or leaves without success, and when it can grow by nodes
  that wait. Members then hear that they must restart, and those that live are waited for, longer
  than a last call, because they must stop their workers first.
- When the minimum is not there in time, all that wait are refused with the names of the missing.
- A node that joins with the rank of another one takes its place; the other is refused from then on.
"""

from gangline.elastic.protocol.messages import Join, Refused, Restart, Waiting, World
from gangline.elastic.rendezvous_order import chosen, ranked, world_of
from gangline.elastic.rendezvous_ranks import RankHolders
from gangline.elastic.rendezvous_state import (
    Parameters,
    Refusal,
    RendezvousState,
    Seat,
    Stay,
)
from gangline.elastic.rendezvous_words import given_up, waiting

__all__ = ["STOP_PATIENCE_S", "Rendezvous", "RendezvousState"]

STOP_PATIENCE_S = 60.0
"""Members that live are waited for so long when a world breaks: torch gives workers 30 s to end."""
RETELL_S = 3.0
"""A node that trains on although it must restart is told again after this."""
_FORMER_KEPT = 8


class Rendezvous:
    """One job's rendezvous. ``state`` is all that it knows."""

    def __init__(self, state: RendezvousState | None = None) -> None:
        self.state = state or RendezvousState()
        self.orders: list[tuple[int, Restart]] = []
        """What nodes must be told since this was last emptied."""
        self._holders = RankHolders(self.state)

    def parameters_of(self, join: Join) -> Parameters:
        """Return the parameters in force; the first Join brings them."""
        return self.state.parameters or Parameters.of(join)

    # What happens

    def join(self, join: Join, now: float) -> bool:
        """A node wants to be in the next world. Returns whether that is news."""
        state = self.state
        node = join.node_id
        if self._is_old(join) or state.is_over:
            return False
        state.parameters = self.parameters_of(join)
        state.round = max(state.round, join.round_seen)
        self._replace_rank_of(join, now)
        self._follow(join)
        was_member = state.members.pop(node, None) is not None
        state.gone.pop(node, None)
        state.refusals.pop(node, None)
        state.waiting[node] = Seat(join, now)
        self._holders.took(join)
        state.last_arrival = now
        if state.waiting_since is None:
            state.waiting_since = now
        if was_member:
            self._break(now, f"node {node} joins anew")
        elif self._can_grow():
            self._break(now, f"node {node} has come")
        self._form(now)
        return True

    def leave(
        self, node: int, now: float, reason: str, *, succeeded: bool = False, incarnation: str = ""
    ) -> bool:
        """A node has gone for good or is known to be dead. Returns whether that is news.

        Args:
            node: its id.
            now: the time.
            reason: why, for people.
            succeeded: its workers have ended well.
            incarnation: its agent process, if that says so itself: it will not come back. A node
                that others hold dead may live after all, and join again.
        """
        state = self.state
        is_news = bool(incarnation) and incarnation not in state.former.get(node, ())
        if is_news:
            self._remember_former(node, incarnation)
        if node in state.gone:
            return is_news
        state.gone[node] = reason
        state.waiting.pop(node, None)
        stay = state.members.get(node)
        if stay is not None and (succeeded or stay.is_finished):
            stay.is_finished = True
            self._end_if_all_finished()
        elif stay is not None:
            del state.members[node]
            self._break(now, f"node {node} has gone: {reason}")
        self._form(now)
        return True

    def finish(self, node: int, incarnation: str, round_: int) -> bool:
        """All workers of a node ended well. Returns whether that is news."""
        stay = self.state.members.get(node)
        if stay is None or stay.is_finished or not self._stands(round_):
            return False
        if stay.incarnation != incarnation:
            return False
        stay.is_finished = True
        self._end_if_all_finished()
        return True

    def seen(self, node: int, incarnation: str, round_: int, now: float) -> bool:
        """A node says that it trains in a round. Returns whether that changes anything.

        After a master lost its memory this is how it learns that there is a world. A node that was
        held dead wrongly, or missed that its world broke, hears that it must restart.
        """
        state = self.state
        if round_ <= 0 or state.is_over or node in state.waiting or node in state.replaced:
            return False
        if incarnation in state.former.get(node, ()):
            return False
        stay = state.members.get(node)
        if stay is None and state.world is None and round_ >= state.round:
            self._adopt(node, incarnation, round_, now)
            return True
        reason = self._why_restart(stay, incarnation, round_, now)
        if not reason or now < state.told.get(node, 0.0) + RETELL_S:
            return False
        state.told[node] = now
        self.orders.append((node, Restart(round=round_, reason=reason)))
        return True

    def tick(self, now: float) -> bool:
        """Time has passed. Returns whether that changes anything."""
        state = self.state
        before = state.round
        self._form(now)
        if state.round != before:
            return True
        if not state.waiting or self.state.is_standing or state.waiting_since is None:
            return False
        assert state.parameters is not None
        if now < state.waiting_since + state.parameters.join_timeout_s:
            return False
        self._give_up()
        return True

    def deadline(self) -> float | None:
        """When ``tick`` may change something next; None for never."""
        state = self.state
        if not state.waiting or self.state.is_standing or state.parameters is None:
            return None
        ends = []
        if state.waiting_since is not None:
            ends.append(state.waiting_since + state.parameters.join_timeout_s)
        if state.parameters.usable(len(state.waiting)):
            ends.append(self._call_ends())
        return min(ends, default=None)

    # What a node should hear

    def answer(self, join: Join) -> World | Refused | None:
        """What a Join is answered with now; None: it must wait. Ask after ``join`` was told."""
        state = self.state
        node = join.node_id
        stay = state.members.get(node)
        if stay is not None and (stay.incarnation, stay.number) == (join.incarnation, join.number):
            assert state.world is not None
            return state.world
        if node in state.replaced:
            other = state.replaced[node]
            return Refused(reason="Superseded", message=f"node {other} has taken its rank")
        refusal = state.refusals.get(node)
        if refusal and (refusal.incarnation, refusal.number) == (join.incarnation, join.number):
            return Refused(reason=refusal.reason, message=refusal.message)
        if state.is_over:
            return Refused(reason="JobOver", message="all nodes have finished")
        seat = state.waiting.get(node)
        if seat is None or (seat.join.incarnation, seat.join.number) != (
            join.incarnation,
            join.number,
        ):
            return Refused(reason="Superseded", message="a later wish of this node is known")
        return None

    def waiting(self) -> Waiting:
        """Say what is waited for, to a node whose Join has no answer yet."""
        return waiting(self.state)

    def finished_answer(self, node: int, round_: int) -> bool | None:
        """Whether all have finished; None if the round is over for other reasons."""
        if self.state.is_over:
            return True
        if not self._stands(round_) or node not in self.state.members:
            return None
        return False

    # The rules

    def _adopt(self, node: int, incarnation: str, round_: int, now: float) -> None:
        """Learn of a world from one of its members."""
        state = self.state
        state.round = round_
        state.members[node] = Stay(incarnation, 0)
        state.gone.pop(node, None)
        if state.is_broken:
            self.orders.append((node, Restart(round=round_, reason="the world forms anew")))
        elif state.waiting:
            self._break(now, "other nodes of the world have joined anew")

    def _why_restart(self, stay: Stay | None, incarnation: str, round_: int, now: float) -> str:
        """Say why a node that trains in a round must not go on; empty if it may."""
        state = self.state
        if stay is None:
            return "the world goes on without it"
        if stay.incarnation != incarnation:
            return ""
        if state.is_broken:  # it was told; perhaps it did not hear
            return "the members have changed" if now >= state.broken_at + RETELL_S else ""
        return "there is a newer world" if round_ < state.round else ""

    def _is_old(self, join: Join) -> bool:
        """Whether this wish is known already, or older than what is known."""
        state = self.state
        node = join.node_id
        if node in state.replaced or join.incarnation in state.former.get(node, ()):
            return True
        stay, seat = state.members.get(node), state.waiting.get(node)
        refusal = state.refusals.get(node)
        if stay is not None and state.is_broken and stay.incarnation == join.incarnation:
            # Its reply was lost, and the world has broken meanwhile: it asks for the next one.
            return join.number < stay.number
        known = max(
            stay.number if stay and stay.incarnation == join.incarnation else -1,
            seat.join.number if seat and seat.join.incarnation == join.incarnation else -1,
            refusal.number if refusal and refusal.incarnation == join.incarnation else -1,
        )
        return join.number <= known

    def _follow(self, join: Join) -> None:
        """Note that an agent process has followed another one of its node."""
        state = self.state
        node = join.node_id
        stay, seat = state.members.get(node), state.waiting.get(node)
        known = {stay.incarnation} if stay else set()
        if seat:
            known.add(seat.join.incarnation)
        if node in state.refusals:
            known.add(state.refusals[node].incarnation)
        for incarnation in sorted(known - {join.incarnation}):
            self._remember_former(node, incarnation)

    def _remember_former(self, node: int, incarnation: str) -> None:
        kept = [one for one in self.state.former.get(node, []) if one != incarnation]
        self.state.former[node] = [*kept, incarnation][-_FORMER_KEPT:]

    def _replace_rank_of(self, join: Join, now: float) -> None:
        """Let a node take the place of others of the same rank."""
        state = self.state
        for node in self._holders.of(join.node_rank):
            if node == join.node_id or node in state.replaced:
                continue
            reason = f"node {join.node_id} has taken its rank"
            state.replaced[node] = join.node_id
            state.gone[node] = reason
            state.waiting.pop(node, None)
            if state.members.pop(node, None) is not None:
                self.orders.append((node, Restart(round=state.round, reason=reason)))
                self._break(now, f"node {join.node_id} replaces node {node}")

    def _can_grow(self) -> bool:
        """Whether those who wait would make the standing world larger."""
        state = self.state
        if not self.state.is_standing or state.parameters is None:
            return False
        if any(stay.is_finished for stay in state.members.values()):
            return False  # it is about to end; nobody starts over for a newcomer
        present = len(state.members)
        return state.parameters.usable(present + len(state.waiting)) > present

    def _stands(self, round_: int) -> bool:
        return self.state.is_standing and self.state.round == round_

    def _break(self, now: float, reason: str) -> None:
        """Tell the members to restart, once for each world."""
        state = self.state
        if state.is_broken:
            return
        state.is_broken = True
        state.broken_at = now
        state.waiting_since = now if state.waiting else state.waiting_since
        for node, stay in state.members.items():
            stay.is_finished = False
            if node not in state.gone:
                self.orders.append((node, Restart(round=state.round, reason=reason)))
        for node in [node for node in state.members if node in state.gone]:
            del state.members[node]

    def _form(self, now: float) -> None:
        """Form a world if that may be done now."""
        state = self.state
        if not state.waiting or self.state.is_standing or state.is_over or state.parameters is None:
            return
        size = state.parameters.usable(len(state.waiting))
        if not size or (now < self._call_ends() and not self._all_are_here()):
            return
        joins = ranked(chosen(state.waiting.values(), size, state.world))
        state.round += 1
        state.world = world_of(joins, state.round)
        for join in joins:
            del state.waiting[join.node_id]
        state.members = {join.node_id: Stay(join.incarnation, join.number) for join in joins}
        state.is_broken = False
        state.waiting_since = None

    def _all_are_here(self) -> bool:
        """Whether nobody else can be expected."""
        state = self.state
        assert state.parameters is not None
        waiting = len(state.waiting)
        if state.parameters.usable(waiting) == state.parameters.most:
            return True
        if state.members:  # of a broken world: they live, and are on their way
            return False
        if state.world is not None and any(
            member.node_id in state.waiting for member in state.world.members
        ):
            return True  # its survivors
        dead = len(state.gone.keys() - state.replaced.keys())
        return waiting + dead >= state.parameters.max_nodes

    def _call_ends(self) -> float:
        """When nobody more is waited for."""
        state = self.state
        assert state.parameters is not None
        last_call = state.last_arrival + state.parameters.last_call_s
        if state.members:
            return max(last_call, state.broken_at + STOP_PATIENCE_S)
        return last_call

    def _give_up(self) -> None:
        """Refuse all that wait: the minimum did not come in time."""
        state = self.state
        message = given_up(state)
        for node, seat in state.waiting.items():
            join = seat.join
            state.refusals[node] = Refusal(
                join.incarnation, join.number, "RendezvousFailed", message
            )
        state.waiting.clear()
        state.waiting_since = None

    def _end_if_all_finished(self) -> None:
        state = self.state
        if state.members and all(stay.is_finished for stay in state.members.values()):
            state.is_over = not state.is_broken
