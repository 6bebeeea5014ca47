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

from gangline.api.failure import NODE_LOST, SIGNAL_BASE
from gangline.elastic.master.state import state as rec
from gangline.elastic.master.state.state import (
    MAX_CLIENTS,
    MAX_REPLIES_PER_CLIENT,
    ClockReading,
    MasterState,
    Timeline,
)
from gangline.elastic.progress import NodePhase
from gangline.elastic.protocol import messages as msg
from gangline.elastic.rendezvous import Rendezvous
from gangline.elastic.shards import events as shard_events

WORLD: Final = "world"
COMMANDS: Final = "commands"
KEYS: Final = "keys"
SHARDS: Final = "shards"

_DONE = msg.Acknowledged()
_COMMAND_EVENTS: Mapping[type, str] = {
    msg.RestartCommand: "CommandRestart",
    msg.StopCommand: "CommandStop",
    msg.RunCheck: "CommandRunCheck",
    msg.SaveCheckpoint: "CommandSaveCheckpoint",
    msg.DumpStacks: "CommandDumpStacks",
    msg.Evict: "CommandEvict",
}
"""Reasons of timeline events. They are an interface, so they do not follow class names."""
_NOT_REPEATABLE = (
    msg.KeyValueAdd,
    msg.KeyValueCompareSet,
    msg.SendCommand,
    msg.JobEvent,
    msg.FailureReport,
)
"""Requests that must not be applied twice. Their replies are stored and sent again on repetition.
"""
DURABLE = (
    msg.KeyValueSet,
    msg.KeyValueAdd,
    msg.KeyValueCompareSet,
    msg.KeyValueDelete,
    msg.SendCommand,
)
"""Requests whose records must survive the loss of the machine, because no client would repeat them.
Shards are leased again, and nodes join again.
"""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    reply: msg.Reply | None = None
    """None if the request waits; a reply method then has the answer."""
    changed: bool = True
    """True if the state has changed: only then is the record worth journaling."""
    topics: frozenset[str] = frozenset()


_UNCHANGED = ApplyResult(changed=False)


class MasterCore:
    def __init__(self, state: MasterState | None = None) -> None:
        self.state = state or MasterState()
        self.rendezvous = Rendezvous(self.state.persistent.rendezvous)
        self.timeline = Timeline(self.state.persistent)
        self._add_event = self.timeline.add
        self.heartbeats: dict[int, msg.Heartbeat] = {}
        """The last heartbeat of each node; not journaled, since the next one follows soon."""

    def apply(self, record: rec.JournalRecord) -> ApplyResult:
        persistent = self.state.persistent
        remembers = isinstance(record.body, _NOT_REPEATABLE) and record.number > 0
        if remembers:
            reply = persistent.replies.get(record.client, {}).get(record.number)
            if reply is not None:
                return ApplyResult(reply, changed=False)
        applied = _APPLIERS[type(record.body)](self, record.body, record.at)
        if remembers and applied.changed and applied.reply is not None:
            self._remember(record, applied.reply)
        return applied

    # Long polls

    def join_reply(self, join: msg.Join) -> msg.WorldInfo | msg.RequestRefused | None:
        """Return the present reply to a Join; None if it must wait."""
        return self.rendezvous.answer(join)

    def finished_reply(self, request: msg.WorkersFinished) -> msg.Reply | None:
        """Return the present reply to Finished; None if it must wait."""
        all_done = self.rendezvous.finished_answer(request.node_id, request.round)
        if all_done is None:
            return msg.RequestRefused(reason="RoundOver", message="the world is broken; join again")
        return _DONE if all_done else None

    def commands_for(self, node: int, seen: int) -> msg.Commands | None:
        """Return the commands that a node has not seen; None if there are none."""
        waiting = self.state.persistent.commands.get(node)
        if not waiting:
            return None
        fresh = tuple(command for command in waiting if command.number > seen)
        return msg.Commands(commands=fresh) if fresh else None

    def read_values(self, keys: tuple[str, ...]) -> msg.KeyValueReply:
        values = self.state.persistent.values
        return msg.KeyValueReply(values=tuple(values.get(key) for key in keys))

    # Time

    def deadline(self) -> float | None:
        """Return the next time at which the passage of time may change the state."""
        deadlines = (self.rendezvous.deadline(), self.state.ledger.deadline)
        return min((end for end in deadlines if end is not None), default=None)

    # Rendezvous

    def _join(self, join: msg.Join, now: float) -> ApplyResult:
        parameters = self.rendezvous.parameters_of(join)
        if parameters.problem:
            refused = msg.RequestRefused(reason="BadRequest", message=parameters.problem)
            return ApplyResult(refused, changed=False)
        before, persistent = self._rendezvous_marker(), self.state.persistent
        state = self.rendezvous.state
        is_late = state.world is not None and not (
            join.node_id in state.members or join.node_id in state.waiting
        )
        if not self.rendezvous.join(join, now):
            return _UNCHANGED
        if is_late:
            self._add_event("NodeJoined", join.host, now, join.node_id)
        self._withdraw_restarts(join.node_id)
        topics = self._after_rendezvous(before, now)
        if not join.continues:
            persistent.attempts.pop(join.node_id, None)
            topics |= self._release(str(join.node_id), now)
        return ApplyResult(topics=topics)

    def _finished(self, request: msg.WorkersFinished, now: float) -> ApplyResult:
        before = self._rendezvous_marker()
        changed = self.rendezvous.finish(request.node_id, request.incarnation, request.round)
        return ApplyResult(changed=changed, topics=self._after_rendezvous(before, now))

    def _leave(self, leave: msg.Leave, now: float) -> ApplyResult:
        if leave.known_dead is not None:
            return self._remove_node(leave.known_dead, leave.reason or "reported dead", now)
        before = self._rendezvous_marker()
        changed = self.rendezvous.leave(
            leave.node_id,
            now,
            leave.reason or "it left",
            succeeded=leave.succeeded,
            incarnation=leave.incarnation,
        )
        topics = self._release(str(leave.node_id), now) | self._after_rendezvous(before, now)
        if changed and not leave.succeeded:
            self.state.persistent.account.begin_restart("NodeLeft", leave.node_id)
            self._add_event("NodeLeft", leave.reason, now, leave.node_id)
        return ApplyResult(_DONE, changed or bool(topics), topics)

    def _lost(self, lost: rec.NodeLost, now: float) -> ApplyResult:
        return self._remove_node(lost.node_id, lost.reason, now)

    def _remove_node(self, node: int, reason: str, now: float) -> ApplyResult:
        before = self._rendezvous_marker()
        if not self.rendezvous.leave(node, now, reason):
            return ApplyResult(_DONE, changed=False)
        self.state.persistent.account.begin_restart(NODE_LOST, node)
        self._add_event("NodeLost", reason, now, node)
        topics = self._release(str(node), now) | self._after_rendezvous(before, now)
        return ApplyResult(_DONE, topics=topics)

    def _adopted(self, adopted: rec.MemberAdopted, now: float) -> ApplyResult:
        before = self._rendezvous_marker()
        changed = self.rendezvous.record_heartbeat(
            adopted.node_id, adopted.incarnation, adopted.round, now
        )
        return ApplyResult(_DONE, changed, self._after_rendezvous(before, now))

    def _restarted(self, restarted: rec.WorkersRestarted, now: float) -> ApplyResult:
        persistent = self.state.persistent
        former = persistent.attempts.get(restarted.node_id)
        persistent.attempts[restarted.node_id] = (restarted.round, restarted.attempt)
        # The first attempt of a round has other workers only after a Join, which released shards.
        is_first = restarted.attempt == 0
        if former is None or is_first or former >= (restarted.round, restarted.attempt):
            return ApplyResult(_DONE)
        return ApplyResult(_DONE, topics=self._release(str(restarted.node_id), now))

    def _time_passed(self, passed: rec.TimePassed, now: float) -> ApplyResult:
        del passed
        before = self._rendezvous_marker()
        changed = self.rendezvous.tick(now)
        topics = self._after_rendezvous(before, now)
        if self.state.ledger.apply(shard_events.ExpireLeases(), now).changed:
            changed, topics = True, topics | {SHARDS}
        return ApplyResult(_DONE, changed, topics)

    def _rendezvous_marker(self) -> tuple[int, bool, bool, int, int]:
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
            self._queue_command(node, order)
            topics.add(COMMANDS)
        if self._rendezvous_marker() != before:
            topics.add(WORLD)
            self._report_rendezvous_change(before, now)
        return frozenset(topics)

    def _report_rendezvous_change(
        self, before: tuple[int, bool, bool, int, int], now: float
    ) -> None:
        state, persistent = self.rendezvous.state, self.state.persistent
        round_, was_broken, was_over, refusals, _ = before
        if state.is_broken and not was_broken:
            persistent.account.change_phase(now, NodePhase.RESTARTING)
            self._add_event("WorldBroken", f"round {state.round}", now)
        if state.round != round_ and state.world is not None and state.members:
            if state.world.continues:
                persistent.account.continue_in(state.round)
            else:
                persistent.account.restarts += 1 if round_ else 0
            persistent.account.change_phase(now, NodePhase.TRAINING)
            count, size = len(state.world.members), state.world.world_size
            self._add_event(
                "WorldFormed", f"round {state.round}: {count} nodes, {size} workers", now
            )
        if len(state.refusals) > refusals:
            messages = [one.message for one in state.refusals.values() if one.message]
            if messages:
                self._add_event("RendezvousFailed", messages[-1], now)
        if state.is_over and not was_over:
            self._add_event("AllFinished", "all workers have succeeded", now)

    # Failures, events and commands

    def _failure(self, failure: msg.FailureReport, now: float) -> ApplyResult:
        persistent = self.state.persistent
        persistent.account.failures += 1
        code = next(iter(failure.exit_codes), None)
        code = SIGNAL_BASE - code if code is not None and code < 0 else code
        persistent.account.begin_restart(failure.cause, failure.node_id, code)
        ranks = f" on ranks {list(failure.ranks)}" if failure.ranks else ""
        summary = f"{failure.cause}{ranks}: {failure.action}"
        self._add_event("WorkersFailed", f"{summary} {failure.message}", now, failure.node_id)
        topics: frozenset[str] = frozenset()
        for local_rank in failure.local_ranks:
            topics |= self._release(f"{failure.node_id}/{local_rank}", now)
        return ApplyResult(_DONE, topics=topics)

    def _event(self, event: msg.JobEvent, now: float) -> ApplyResult:
        self._add_event(event.reason, event.message, now, event.node_id)
        return ApplyResult(_DONE)

    def _send_command(self, request: msg.SendCommand, now: float) -> ApplyResult:
        state = self.rendezvous.state
        nodes = request.nodes or tuple(sorted(state.members.keys() | state.waiting.keys()))
        what = request.what
        if isinstance(what, msg.RunCheck):
            what = msgspec.structs.replace(what, nodes=nodes)
        for node in nodes:
            self._queue_command(node, what)
        self._add_event(_COMMAND_EVENTS[type(what)], f"to nodes {list(nodes)}", now)
        return ApplyResult(_DONE, topics=frozenset({COMMANDS}))

    def _queue_command(self, node: int, what: msg.CommandBody) -> None:
        persistent = self.state.persistent
        if isinstance(what, msg.RestartCommand):
            self._withdraw_restarts(node)
        persistent.commands.setdefault(node, []).append(
            msg.NodeCommand(persistent.next_command, what)
        )
        persistent.next_command += 1

    def _withdraw_restarts(self, node: int) -> None:
        """Remove restart commands that a later one, or the node's Join, has made obsolete."""
        commands = self.state.persistent.commands
        if waiting := commands.get(node):
            commands[node] = [
                one for one in waiting if not isinstance(one.what, msg.RestartCommand)
            ]

    def _commands_seen(self, seen: rec.CommandsSeen, now: float) -> ApplyResult:
        del now
        persistent = self.state.persistent
        left = [one for one in persistent.commands.get(seen.node_id, []) if one.number > seen.seen]
        persistent.commands[seen.node_id] = left
        persistent.next_command = max(persistent.next_command, seen.seen + 1)
        return ApplyResult(_DONE)

    def _started(self, started: rec.MasterStarted, now: float) -> ApplyResult:
        account = self.state.persistent.account
        account.change_phase(now, account.phase)
        account.book_downtime(started.down_s)
        self.state.persistent.down_s += started.down_s
        self._store_clock(started.moment, now)
        if started.down_s:
            self._add_event("MasterBack", f"after {started.down_s:.1f} s", now)
        return ApplyResult(_DONE)

    def _goodput_recorded(self, noted: rec.GoodputRecorded, now: float) -> ApplyResult:
        self.state.persistent.account = noted.account
        self._store_clock(noted.moment, now)
        return ApplyResult(_DONE)

    def _store_clock(self, moment: ClockReading | None, now: float) -> None:
        self.state.persistent.moment, self.state.persistent.moment_at = moment, now

    # Keys

    def _set_key(self, request: msg.KeyValueSet, now: float) -> ApplyResult:
        del now
        self.state.persistent.values[request.key] = request.value
        return ApplyResult(_DONE, topics=frozenset({KEYS}))

    def _add_to_key(self, request: msg.KeyValueAdd, now: float) -> ApplyResult:
        del now
        values = self.state.persistent.values
        try:
            total = int(values.get(request.key, b"0")) + request.amount
        except ValueError:
            problem = f"the value of the key {request.key} is not a number"
            return ApplyResult(
                msg.RequestRefused(reason="BadRequest", message=problem), changed=False
            )
        values[request.key] = str(total).encode()
        return ApplyResult(self.read_values((request.key,)), topics=frozenset({KEYS}))

    def _compare_set(self, request: msg.KeyValueCompareSet, now: float) -> ApplyResult:
        del now
        values = self.state.persistent.values
        if values.get(request.key) != request.expected:
            return ApplyResult(self.read_values((request.key,)), changed=False)
        values[request.key] = request.value
        return ApplyResult(self.read_values((request.key,)), topics=frozenset({KEYS}))

    def _delete(self, request: msg.KeyValueDelete, now: float) -> ApplyResult:
        del now
        changed = self.state.persistent.values.pop(request.key, None) is not None
        return ApplyResult(_DONE, changed)

    # Shards

    def _shards(self, request: msg.ShardRequest, now: float) -> ApplyResult:
        outcome = self.state.ledger.apply(request.event, now)
        # Waiting requests can be answered when shards return, or a stream grows or ends, but not
        # after a request for shards.
        is_relevant = outcome.changed and not isinstance(request.event, shard_events.TakeShards)
        topics = frozenset({SHARDS}) if is_relevant else frozenset()
        return ApplyResult(msg.ShardReply(answer=outcome.answer), outcome.changed, topics)

    def _release(self, owner: str, now: float) -> frozenset[str]:
        changed = self.state.ledger.apply(shard_events.ReleaseWorker(owner), now).changed
        return frozenset({SHARDS}) if changed else frozenset()

    def _remember(self, record: rec.JournalRecord, reply: msg.Reply) -> None:
        replies = self.state.persistent.replies
        of_client = replies.setdefault(record.client, {})
        of_client[record.number] = reply
        if len(of_client) > MAX_REPLIES_PER_CLIENT:
            del of_client[next(iter(of_client))]
        if len(replies) > MAX_CLIENTS:
            del replies[next(iter(replies))]


_APPLIERS: Mapping[type, Callable[[MasterCore, Any, float], ApplyResult]] = {
    msg.Join: MasterCore._join,
    msg.WorkersFinished: MasterCore._finished,
    msg.Leave: MasterCore._leave,
    msg.FailureReport: MasterCore._failure,
    msg.JobEvent: MasterCore._event,
    msg.SendCommand: MasterCore._send_command,
    msg.KeyValueSet: MasterCore._set_key,
    msg.KeyValueAdd: MasterCore._add_to_key,
    msg.KeyValueCompareSet: MasterCore._compare_set,
    msg.KeyValueDelete: MasterCore._delete,
    msg.ShardRequest: MasterCore._shards,
    rec.MasterStarted: MasterCore._started,
    rec.NodeLost: MasterCore._lost,
    rec.WorkersRestarted: MasterCore._restarted,
    rec.MemberAdopted: MasterCore._adopted,
    rec.TimePassed: MasterCore._time_passed,
    rec.GoodputRecorded: MasterCore._goodput_recorded,
    rec.CommandsSeen: MasterCore._commands_seen,
}
STATE_CHANGING = frozenset(_APPLIERS)
"""The types of requests and own records that ``apply`` accepts."""
