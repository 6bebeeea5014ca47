"""The master's state machine: what each record does to the state. The time is in the record.

``apply`` returns the reply, unless the request may have to wait. In that case the reply methods
return what it would be answered with now; None means not yet. ``topics`` name the long polls that
may be answerable after a record.

Invariant: the result depends only on the state and the record, so replaying the journal gives the
same state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gangline.elastic.data import events as shard_events
from gangline.elastic.master import records as rec
from gangline.elastic.master.clock import Moment
from gangline.elastic.master.state import (
    CLIENTS_KEPT,
    REPLIES_KEPT,
    MasterState,
)
from gangline.elastic.master.timeline import Timeline
from gangline.elastic.protocol import messages as msg
from gangline.elastic.rendezvous import Rendezvous

WORLD: Final = "world"
FINISHED: Final = "finished"
COMMANDS: Final = "commands"
KEYS: Final = "keys"
SHARDS: Final = "shards"

_DONE = msg.Done()


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a record."""

    reply: msg.Reply | None = None
    """None if the request waits; a reply method then has the answer."""
    changed: bool = True
    """True if the state has changed: only then is the record worth journaling."""
    topics: frozenset[str] = frozenset()


_UNCHANGED = Applied(changed=False)


class Core:
    """The state and its rules."""

    def __init__(self, state: MasterState | None = None) -> None:
        self.state = state or MasterState()
        self.rendezvous = Rendezvous(self.state.kept.rendezvous)
        self.timeline = Timeline(self.state.kept)
        self._tell = self.timeline.tell
        self.beats: dict[int, msg.Heartbeat] = {}
        """The last heartbeat of each node; not journaled, since the next one follows soon."""

    def apply(self, record: rec.Record) -> Applied:
        """Apply a record to the state."""
        kept = self.state.kept
        remembers = isinstance(record.what, _ONCE_ONLY) and record.number > 0
        if remembers:
            known = kept.replies.get(record.client, {}).get(record.number)
            if known is not None:
                return Applied(known, changed=False)
        applied = _APPLIERS[type(record.what)](self, record.what, record.at)
        if remembers and applied.changed and applied.reply is not None:
            self._remember(record, applied.reply)
        return applied

    # Long polls

    def join_answer(self, join: msg.Join) -> msg.World | msg.Refused | None:
        """Return the present reply to a Join; None if it must wait."""
        return self.rendezvous.answer(join)

    def finished_answer(self, request: msg.Finished) -> msg.Reply | None:
        """Return the present reply to Finished; None if it must wait."""
        all_done = self.rendezvous.finished_answer(request.node_id, request.round)
        if all_done is None:
            return msg.Refused(reason="RoundOver", message="the world is broken; join again")
        return _DONE if all_done else None

    def commands_for(self, node: int, seen: int) -> msg.Commands | None:
        """Return the commands that a node has not seen; None if there are none."""
        waiting = self.state.kept.commands.get(node)
        if not waiting:
            return None
        fresh = tuple(command for command in waiting if command.number > seen)
        return msg.Commands(commands=fresh) if fresh else None

    def values_of(self, keys: tuple[str, ...]) -> msg.Values:
        values = self.state.kept.values
        return msg.Values(values=tuple(values.get(key) for key in keys))

    # Time

    def deadline(self) -> float | None:
        """Return the next time at which the passage of time may change the state."""
        ends = (self.rendezvous.deadline(), self.state.ledger.deadline)
        return min((end for end in ends if end is not None), default=None)

    # Rendezvous

    def _join(self, join: msg.Join, now: float) -> Applied:
        parameters = self.rendezvous.parameters_of(join)
        if parameters.problem:
            refused = msg.Refused(reason="BadRequest", message=parameters.problem)
            return Applied(refused, changed=False)
        before, kept = self._shape(), self.state.kept
        state = self.rendezvous.state
        is_late = state.world is not None and not (
            join.node_id in state.members or join.node_id in state.waiting
        )
        if not self.rendezvous.join(join, now):
            return _UNCHANGED
        if is_late:
            self._tell("NodeJoined", join.host, now, join.node_id)
        self._withdraw_restarts(join.node_id)
        kept.attempts.pop(join.node_id, None)
        topics = self._release(str(join.node_id), now) | self._after_rendezvous(before, now)
        return Applied(topics=topics)

    def _finished(self, request: msg.Finished, now: float) -> Applied:
        before = self._shape()
        changed = self.rendezvous.finish(request.node_id, request.incarnation, request.round)
        return Applied(changed=changed, topics=self._after_rendezvous(before, now))

    def _leave(self, leave: msg.Leave, now: float) -> Applied:
        if leave.known_dead is not None:
            return self._gone(leave.known_dead, leave.reason or "reported dead", now)
        before = self._shape()
        changed = self.rendezvous.leave(
            leave.node_id,
            now,
            leave.reason or "it left",
            succeeded=leave.succeeded,
            incarnation=leave.incarnation,
        )
        topics = self._release(str(leave.node_id), now) | self._after_rendezvous(before, now)
        if changed and not leave.succeeded:
            self._tell("NodeLeft", leave.reason, now, leave.node_id)
        return Applied(_DONE, changed or bool(topics), topics)

    def _lost(self, lost: rec.Lost, now: float) -> Applied:
        return self._gone(lost.node_id, lost.reason, now)

    def _gone(self, node: int, reason: str, now: float) -> Applied:
        before = self._shape()
        if not self.rendezvous.leave(node, now, reason):
            return Applied(_DONE, changed=False)
        self._tell("NodeLost", reason, now, node)
        topics = self._release(str(node), now) | self._after_rendezvous(before, now)
        return Applied(_DONE, topics=topics)

    def _adopted(self, adopted: rec.Adopted, now: float) -> Applied:
        before = self._shape()
        changed = self.rendezvous.seen(adopted.node_id, adopted.incarnation, adopted.round, now)
        return Applied(_DONE, changed, self._after_rendezvous(before, now))

    def _restarted(self, restarted: rec.RestartedInPlace, now: float) -> Applied:
        kept = self.state.kept
        former = kept.attempts.get(restarted.node_id)
        kept.attempts[restarted.node_id] = (restarted.round, restarted.attempt)
        if former is None or former[0] != restarted.round or former[1] >= restarted.attempt:
            return Applied(_DONE)
        return Applied(_DONE, topics=self._release(str(restarted.node_id), now))

    def _passed(self, passed: rec.Passed, now: float) -> Applied:
        del passed
        before = self._shape()
        changed = self.rendezvous.tick(now)
        topics = self._after_rendezvous(before, now)
        if self.state.ledger.apply(shard_events.Tick(), now).changed:
            changed, topics = True, topics | {SHARDS}
        return Applied(_DONE, changed, topics)

    def _shape(self) -> tuple[int, bool, bool, int, int]:
        """Return the facts whose change may answer requests that wait for a world."""
        state = self.rendezvous.state
        return (
            state.round,
            state.is_broken,
            state.is_over,
            len(state.refusals),
            len(state.replaced),
        )

    def _after_rendezvous(
        self, before: tuple[int, bool, bool, int, int], now: float
    ) -> frozenset[str]:
        topics = set()
        orders, self.rendezvous.orders = self.rendezvous.orders, []
        for node, order in orders:
            self._order(node, order)
            topics.add(COMMANDS)
        if self._shape() != before:
            topics |= {WORLD, FINISHED}
            self._tell_of_change(before, now)
        return frozenset(topics)

    def _tell_of_change(self, before: tuple[int, bool, bool, int, int], now: float) -> None:
        state, kept = self.rendezvous.state, self.state.kept
        round_, was_broken, was_over, refusals, _ = before
        if state.is_broken and not was_broken:
            kept.account.move(now, msg.Phase.RESTARTING)
            self._tell("WorldBroken", f"round {state.round}", now)
        if state.round != round_ and state.world is not None and state.members:
            kept.account.restarts += 1 if round_ else 0
            kept.account.move(now, msg.Phase.TRAINING)
            count, size = len(state.world.members), state.world.world_size
            self._tell("WorldFormed", f"round {state.round}: {count} nodes, {size} workers", now)
        if len(state.refusals) > refusals:
            messages = [one.message for one in state.refusals.values() if one.message]
            if messages:
                self._tell("RendezvousFailed", messages[-1], now)
        if state.is_over and not was_over:
            self._tell("AllFinished", "all workers have succeeded", now)

    # Failures, events and commands

    def _failure(self, failure: msg.Failure, now: float) -> Applied:
        kept = self.state.kept
        kept.account.failures += 1
        summary = f"{failure.cause} on ranks {list(failure.ranks)}: {failure.action}"
        self._tell("WorkersFailed", f"{summary} {failure.message}", now, failure.node_id)
        topics: frozenset[str] = frozenset()
        for local_rank in failure.local_ranks:
            topics |= self._release(f"{failure.node_id}/{local_rank}", now)
        return Applied(_DONE, topics=topics)

    def _event(self, event: msg.JobEvent, now: float) -> Applied:
        self._tell(event.reason, event.message, now, event.node_id)
        return Applied(_DONE)

    def _send_command(self, request: msg.SendCommand, now: float) -> Applied:
        state = self.rendezvous.state
        nodes = request.nodes or tuple(sorted(state.members.keys() | state.waiting.keys()))
        what = request.what
        if isinstance(what, msg.RunCheck):
            what = msgspec.structs.replace(what, nodes=nodes)
        for node in nodes:
            self._order(node, what)
        self._tell(f"Command{type(what).__name__}", f"to nodes {list(nodes)}", now)
        return Applied(_DONE, topics=frozenset({COMMANDS}))

    def _order(self, node: int, what: msg.CommandKind) -> None:
        kept = self.state.kept
        if isinstance(what, msg.Restart):
            self._withdraw_restarts(node)
        kept.commands.setdefault(node, []).append(msg.Command(kept.next_command, what))
        kept.next_command += 1

    def _withdraw_restarts(self, node: int) -> None:
        """Remove restart commands that a later one, or the node's Join, has made obsolete."""
        commands = self.state.kept.commands
        if waiting := commands.get(node):
            commands[node] = [one for one in waiting if not isinstance(one.what, msg.Restart)]

    def _commands_seen(self, seen: rec.CommandsSeen, now: float) -> Applied:
        del now
        kept = self.state.kept
        left = [one for one in kept.commands.get(seen.node_id, []) if one.number > seen.seen]
        kept.commands[seen.node_id] = left
        kept.next_command = max(kept.next_command, seen.seen + 1)
        return Applied(_DONE)

    def _started(self, started: rec.Started, now: float) -> Applied:
        account = self.state.kept.account
        account.move(now, account.phase)
        account.pass_down(started.down_s)
        self.state.kept.down_s += started.down_s
        self._note_moment(started.moment, now)
        if started.down_s:
            self._tell("MasterBack", f"after {started.down_s:.1f} s", now)
        return Applied(_DONE)

    def _noted(self, noted: rec.Noted, now: float) -> Applied:
        self.state.kept.account = noted.account
        self._note_moment(noted.moment, now)
        return Applied(_DONE)

    def _note_moment(self, moment: Moment | None, now: float) -> None:
        self.state.kept.moment, self.state.kept.moment_at = moment, now

    # Keys

    def _set(self, request: msg.KeyValueSet, now: float) -> Applied:
        del now
        self.state.kept.values[request.key] = request.value
        return Applied(_DONE, topics=frozenset({KEYS}))

    def _add(self, request: msg.KeyValueAdd, now: float) -> Applied:
        del now
        values = self.state.kept.values
        try:
            total = int(values.get(request.key, b"0")) + request.amount
        except ValueError:
            problem = f"the value of the key {request.key} is not a number"
            return Applied(msg.Refused(reason="BadRequest", message=problem), changed=False)
        values[request.key] = str(total).encode()
        return Applied(self.values_of((request.key,)), topics=frozenset({KEYS}))

    def _compare_set(self, request: msg.KeyValueCompareSet, now: float) -> Applied:
        del now
        values = self.state.kept.values
        if values.get(request.key) != request.expected:
            return Applied(self.values_of((request.key,)), changed=False)
        values[request.key] = request.value
        return Applied(self.values_of((request.key,)), topics=frozenset({KEYS}))

    def _delete(self, request: msg.KeyValueDelete, now: float) -> Applied:
        del now
        changed = self.state.kept.values.pop(request.key, None) is not None
        return Applied(_DONE, changed)

    # Shards

    def _shards(self, request: msg.ShardEvent, now: float) -> Applied:
        outcome = self.state.ledger.apply(request.event, now)
        # Waiting requests can be answered when shards return, or a stream grows or ends, but not
        # after a request for shards.
        is_relevant = outcome.changed and not isinstance(request.event, shard_events.Take)
        topics = frozenset({SHARDS}) if is_relevant else frozenset()
        return Applied(msg.ShardAnswer(answer=outcome.answer), outcome.changed, topics)

    def _release(self, owner: str, now: float) -> frozenset[str]:
        changed = self.state.ledger.apply(shard_events.Release(owner), now).changed
        return frozenset({SHARDS}) if changed else frozenset()

    def _remember(self, record: rec.Record, reply: msg.Reply) -> None:
        replies = self.state.kept.replies
        of_client = replies.setdefault(record.client, {})
        of_client[record.number] = reply
        if len(of_client) > REPLIES_KEPT:
            del of_client[next(iter(of_client))]
        if len(replies) > CLIENTS_KEPT:
            del replies[next(iter(replies))]


_ONCE_ONLY = (
    msg.KeyValueAdd,
    msg.KeyValueCompareSet,
    msg.SendCommand,
    msg.JobEvent,
    msg.Failure,
)
"""Requests that must not be applied twice. Their replies are stored and sent again on repetition.
"""

LASTING = (
    msg.KeyValueSet,
    msg.KeyValueAdd,
    msg.KeyValueCompareSet,
    msg.KeyValueDelete,
    msg.SendCommand,
)
"""Requests whose records must survive the loss of the machine, because no client would repeat them.
Shards are leased again, and nodes join again.
"""

_APPLIERS: Mapping[type, Callable[[Core, Any, float], Applied]] = {
    msg.Join: Core._join,
    msg.Finished: Core._finished,
    msg.Leave: Core._leave,
    msg.Failure: Core._failure,
    msg.JobEvent: Core._event,
    msg.SendCommand: Core._send_command,
    msg.KeyValueSet: Core._set,
    msg.KeyValueAdd: Core._add,
    msg.KeyValueCompareSet: Core._compare_set,
    msg.KeyValueDelete: Core._delete,
    msg.ShardEvent: Core._shards,
    rec.Started: Core._started,
    rec.Lost: Core._lost,
    rec.RestartedInPlace: Core._restarted,
    rec.Adopted: Core._adopted,
    rec.Passed: Core._passed,
    rec.Noted: Core._noted,
    rec.CommandsSeen: Core._commands_seen,
}
CHANGING = frozenset(_APPLIERS)
"""The types of requests and own records that ``apply`` accepts."""
