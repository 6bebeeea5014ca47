"""The request loop of the master: applies requests, journals them, and manages long polls.

It stands between the pure state machine and the connections. It has no state that must survive the
process: only open long polls, which clients repeat to the next master, and the liveness of nodes.

Invariant: a record is passed to the group commit before any reply that depends on it, so no client
ever sees a state that a crash could undo.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from gangline.api.figures import plain_number
from gangline.elastic.master.facts.collector import FactsCollector
from gangline.elastic.master.facts.eviction_saves import EvictionSaveRequests
from gangline.elastic.master.journal import GroupCommit
from gangline.elastic.master.node_checks import LongPoll, LongPolls, NodeCheckRequests
from gangline.elastic.master.queries import (
    CheckpointAge,
    answer_query,
    metrics_page,
    state_summary,
    world_progress,
)
from gangline.elastic.master.settings import MasterSettings
from gangline.elastic.master.state import core as topic
from gangline.elastic.master.state import state as rec
from gangline.elastic.master.state.core import DURABLE, STATE_CHANGING, ApplyResult, MasterCore
from gangline.elastic.master.state.state import JobClock, read_clocks
from gangline.elastic.progress import NodePhase
from gangline.elastic.protocol import messages as msg
from gangline.elastic.protocol import wire
from gangline.elastic.protocol.server import Peer, negotiate_version
from gangline.elastic.protocol.wire import installed_version
from gangline.elastic.shards import events as shard_events
from gangline.extras import explain_missing

MIN_RECORD_INTERVAL_S = 2.0
MAX_RECORD_INTERVAL_S = 30.0
"""Bounds of the interval at which goodput is journaled: a killed master loses at most this much."""
_OTHERS_RUNNING = msg.JoinPending(message="other nodes have not finished")
_KEYS_MISSING = msg.RequestRefused(reason="TimedOut", message="the keys were not set in time")
_NO_SHARDS_YET = msg.ShardReply(answer=shard_events.TakenShards(shard_events.Supply.WAIT))


def record_interval_s(wall_s: float) -> float:
    """Return the interval of records after this time: short in a young job, which people watch."""
    return min(MAX_RECORD_INTERVAL_S, max(MIN_RECORD_INTERVAL_S, wall_s / 60))


@dataclass(slots=True)
class _NodeLiveness:
    heard: float
    peer: Peer | None = None
    """The agent's connection; None if it has no known one."""
    timer: asyncio.TimerHandle | None = None


class LivenessTracker:
    """Tracks when nodes were last heard from; ``lost`` is called for one that seems dead."""

    def __init__(self, silence_s: float, grace_s: float, lost: Callable[[int, str], None]) -> None:
        self._silence_s, self._grace_s, self._lost = silence_s, grace_s, lost
        self._nodes: dict[int, _NodeLiveness] = {}
        self._all_silent = False

    def expect(self, node: int) -> None:
        self._nodes.setdefault(node, _NodeLiveness(_now()))

    def mark_alive(self, node: int, peer: Peer | None = None) -> None:
        """Restart the timeout of a node, and record its agent's connection if one is given."""
        liveness = self._nodes.get(node)
        if liveness is None:
            liveness = self._nodes[node] = _NodeLiveness(0.0)
        liveness.heard = _now()
        if peer is not None and liveness.peer is not peer:
            liveness.peer = peer
            if liveness.timer is not None:
                liveness.timer.cancel()
                liveness.timer = None

    def forget(self, node: int) -> None:
        liveness = self._nodes.pop(node, None)
        if liveness is not None and liveness.timer is not None:
            liveness.timer.cancel()

    def mark_disconnected(self, peer: Peer) -> None:
        """Process a broken connection: its node has the grace period to reconnect."""
        node = peer.hello.node_id if peer.hello else None
        liveness = self._nodes.get(node) if node is not None else None
        if node is None or liveness is None or liveness.peer is not peer:
            return
        liveness.peer = None
        loop = asyncio.get_running_loop()
        liveness.timer = loop.call_later(self._grace_s, self._not_back, node, liveness)

    def check(self) -> None:
        """Report nodes that have been silent for too long.

        If all nodes are silent at the same time, the master itself was cut off or suspended: no
        node is reported, and every timeout restarts once one of them is heard.
        """
        oldest = _now() - self._silence_s
        silent = [node for node, liveness in self._nodes.items() if liveness.heard < oldest]
        all_were_silent, self._all_silent = self._all_silent, len(silent) == len(self._nodes)
        if self._all_silent:
            return
        if all_were_silent:
            for liveness in self._nodes.values():
                liveness.heard = _now()
            return
        for node in silent:
            self.forget(node)
            self._lost(node, f"silent for {plain_number(self._silence_s)} s")

    def _not_back(self, node: int, liveness: _NodeLiveness) -> None:
        if self._nodes.get(node) is liveness and liveness.peer is None:
            self.forget(node)
            self._lost(node, "its agent's connection broke")


def _now() -> float:
    return asyncio.get_running_loop().time()


class MasterService:
    """Answers the clients of one job."""

    def __init__(
        self, settings: MasterSettings, core: MasterCore, clock: JobClock, group_commit: GroupCommit
    ) -> None:
        self.settings, self.core = settings, core
        self.name = uuid.uuid4().hex
        self.is_over = asyncio.Event()
        self._clock, self._group_commit = clock, group_commit
        self._liveness = LivenessTracker(settings.silence_s, settings.grace_s, self._lost)
        send, waiting_message = self._send, core.rendezvous.waiting_message
        self._joins: LongPolls[int] = LongPolls(self._send_world, waiting_message)
        self._finishing: LongPolls[int] = LongPolls(send, lambda: _OTHERS_RUNNING)
        self._commands: LongPolls[int] = LongPolls(send, msg.Commands)
        self._keys: LongPolls[str] = LongPolls(send, lambda: _KEYS_MISSING)
        self._shards: LongPolls[str] = LongPolls(send, lambda: _NO_SHARDS_YET)
        self._checks = NodeCheckRequests(self._send)
        self.facts = FactsCollector(core, clock.now, self._checks, segment_s=settings.segment_s)
        self.eviction_saves = EvictionSaveRequests(core, self.apply_own)
        self._checkpoints = CheckpointAge()
        self._queue = ""
        self._tuning: msg.Tuning | None = None
        self._world: tuple[int, bytes] = (0, b"")
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0

    # Process lifecycle

    def start(self, down_s: float) -> None:
        """Start: all known nodes get the full timeout to be heard from."""
        self.apply_own(rec.MasterStarted(master=self.name, down_s=down_s, moment=read_clocks()))
        state = self.core.rendezvous.state
        for node in [*state.members, *state.waiting]:
            self._liveness.expect(node)
        if state.is_over:
            self.is_over.set()

    async def run(self) -> None:
        """Check for silent nodes and journal goodput, for ever."""
        noted = self._clock.now()
        while True:
            await asyncio.sleep(min(1.0, self.settings.silence_s / 4))
            self._liveness.check()
            self._book()
            self._observe_checkpoints()
            wall_s = self.core.state.persistent.account.goodput(self._clock.now()).wall_s
            if self._clock.now() - noted >= record_interval_s(wall_s):
                self.record_goodput()
                noted = self._clock.now()

    def _observe_checkpoints(self) -> None:
        step = self.core.state.persistent.account.goodput(self._clock.now()).step
        # Not in each heartbeat: all members are traversed.
        saved = world_progress(self.core).checkpoint_step
        self._checkpoints.observe_steps(step, saved, self._clock.now())

    def record_goodput(self) -> None:
        self.apply_own(
            rec.GoodputRecorded(account=self.core.state.persistent.account, moment=read_clocks())
        )

    def snapshot(self) -> bytes:
        return self.core.state.snapshot(self._clock.now())

    def summary(self) -> dict[str, str]:
        now = self._clock.now()
        return state_summary(self.core, now, self._checkpoints, datetime.now(UTC))

    def journal_failed(self, error: OSError) -> None:
        self.apply_own(msg.JobEvent(reason="JournalFailed", message=str(error)))

    # Called by the server

    def welcome(self, peer: Peer, hello: msg.Hello) -> msg.Welcome | msg.RequestRefused:
        job = self.settings.job
        if hello.job and job and hello.job != job:
            problem = f"this is the master of {job}, not of {hello.job}"
            return msg.RequestRefused(reason="WrongJob", message=problem)
        if hello.node_id is not None and hello.node_id not in self.core.rendezvous.state.gone:
            self._liveness.mark_alive(hello.node_id, peer)
        return msg.Welcome(
            protocol=negotiate_version(hello),
            version=installed_version(),
            master=self.name,
            job=job,
            heartbeat_s=self.settings.heartbeat_s,
            silence_s=self.settings.silence_s,
        )

    def handle(self, peer: Peer, number: int, request: msg.Request) -> None:
        handler = _HANDLERS.get(type(request))
        if handler is not None:
            handler(self, peer, number, request)
        elif type(request) in STATE_CHANGING:
            self._change(peer, number, request)
        else:
            problem = f"{type(request).__name__} is not a request to the master"
            self._send(peer, number, msg.RequestRefused(reason="BadRequest", message=problem))

    def _change(self, peer: Peer, number: int, request: msg.Request) -> None:
        applied = self._apply(request, self._client(peer), number)
        assert applied.reply is not None
        self._send(peer, number, applied.reply, is_durable=isinstance(request, DURABLE))

    def _failed(self, peer: Peer, number: int, failure: msg.FailureReport) -> None:
        self.facts.add_failure(failure, self._tuning)
        self._change(peer, number, failure)

    def disconnected(self, peer: Peer) -> None:
        for polls in (self._joins, self._finishing, self._commands):
            polls.drop(peer)
        self._keys.drop(peer)
        self._shards.drop(peer)
        self._checks.drop(peer)
        self._liveness.mark_disconnected(peer)

    def page(self, path: str) -> tuple[HTTPStatus, bytes]:
        path = path.split("?", 1)[0]
        if path in ("/healthz", "/readyz"):
            return HTTPStatus.OK, b"ok\n"
        if path == "/metrics" and self.settings.serves_metrics:
            self._book()
            now = self._clock.now()
            try:
                return HTTPStatus.OK, metrics_page(self.core, now, self._checkpoints, self._queue)
            except ModuleNotFoundError as error:
                text = "metrics need more: {}; {}\n".format(*explain_missing(error))
                return HTTPStatus.NOT_IMPLEMENTED, text.encode()
        return HTTPStatus.NOT_FOUND, b"there is /healthz, /readyz and /metrics\n"

    # Records

    def apply_own(self, what: rec.RecordBody) -> None:
        self._apply(what, "", 0)

    def _apply(self, what: rec.RecordBody, client: str, number: int) -> ApplyResult:
        record = rec.JournalRecord(self._clock.now(), what, client, number)
        applied = self.core.apply(record)
        if applied.changed:
            self._group_commit.append_record(rec.encode_record(record))
            self._set_alarm()
            self._group_commit.publish_events(self.core.timeline.take_new())
        if applied.topics:
            self._serve_waiting(applied.topics)
        return applied

    def _lost(self, node: int, reason: str) -> None:
        self.apply_own(rec.NodeLost(node_id=node, reason=reason))
        self._checks.lost(node)

    def _set_alarm(self) -> None:
        """Set the timer to the next time that changes the state."""
        deadline = self.core.deadline()
        if self._alarm is not None:
            if deadline == self._alarm_at:
                return
            self._alarm.cancel()
            self._alarm = None
        if deadline is not None:
            delay = max(0.0, deadline - self._clock.now()) + 0.001
            self._alarm = asyncio.get_running_loop().call_later(delay, self._on_alarm)
            self._alarm_at = deadline

    def _on_alarm(self) -> None:
        self._alarm = None
        self.apply_own(rec.TimePassed())
        self._set_alarm()

    def _book(self) -> None:
        account, state = self.core.state.persistent.account, self.core.rendezvous.state
        phase = account.phase
        if state.is_broken:
            phase = NodePhase.RESTARTING
        elif not state.members:
            phase = NodePhase.RESTARTING if state.world else NodePhase.WAITING
        account.change_phase(self._clock.now(), phase)

    # Requests that wait

    def _join(self, peer: Peer, number: int, join: msg.Join) -> None:
        self._liveness.mark_alive(
            join.node_id, peer if peer.hello and peer.hello.node_id is not None else None
        )
        applied = self._apply(join, self._client(peer), number)
        reply = applied.reply or self.core.join_reply(join)
        self._joins.reply_or_add(join.node_id, LongPoll(peer, number, join), join.wait_s, reply)
        self._book()

    def _finished(self, peer: Peer, number: int, request: msg.WorkersFinished) -> None:
        self._apply(request, self._client(peer), number)
        poll, reply = LongPoll(peer, number, request), self.core.finished_reply(request)
        self._finishing.reply_or_add(request.node_id, poll, request.wait_s, reply)

    def _leave(self, peer: Peer, number: int, leave: msg.Leave) -> None:
        node = leave.node_id if leave.known_dead is None else leave.known_dead
        self._liveness.forget(node)
        self._checks.lost(node)
        self._apply(leave, self._client(peer), number)
        self._send(peer, number, msg.Acknowledged())

    def _heartbeat(self, peer: Peer, number: int, heartbeat: msg.Heartbeat) -> None:
        node, persistent = heartbeat.node_id, self.core.state.persistent
        self._liveness.mark_alive(node, peer)
        self.core.heartbeats[node] = heartbeat
        if heartbeat.round > 0:
            self._check_round(heartbeat)
        self._check_seen(node, heartbeat.commands_seen)
        state = self.core.rendezvous.state
        if state.world is None or state.world.members[0].node_id == node:
            self._book()
            if not state.is_broken and state.members:
                persistent.account.phase = heartbeat.phase
            if heartbeat.round > 0:
                has_continued = persistent.account.has_continued
                persistent.account.book_heartbeat(heartbeat)
                if persistent.account.has_continued and not has_continued:
                    self.record_goodput()
        if heartbeat.node is not None:
            self._checkpoints.observe_report(heartbeat.node)
        self.facts.observe(heartbeat)
        commands = self.core.commands_for(node, heartbeat.commands_seen) or msg.Commands()
        commands.tuning = self._tuning_for(heartbeat)
        self._send(peer, number, commands)

    def _save_finished(self, peer: Peer, number: int, request: msg.SaveFinished) -> None:
        self._liveness.mark_alive(request.node_id, peer)
        self.eviction_saves.finished(request)
        self._send(peer, number, msg.Acknowledged())

    def set_queue(self, queue: str) -> None:
        self._queue = queue

    def set_tuning(self, tuning: msg.Tuning) -> None:
        """Pass a tuning on to all nodes, unless it is older than the last one."""
        if self._tuning is None or tuning.version > self._tuning.version:
            self._tuning = tuning

    def _tuning_for(self, heartbeat: msg.Heartbeat) -> msg.Tuning | None:
        """Return the tuning if the node takes one and has not applied it."""
        report, tuning = heartbeat.node, self._tuning
        if report is None or report.tuning_version is None or tuning is None:
            return None
        return tuning if report.tuning_version < tuning.version else None

    def _check_round(self, heartbeat: msg.Heartbeat) -> None:
        """Detect what the rendezvous does not know: a lost world, a restart in place."""
        adopted = rec.MemberAdopted(
            node_id=heartbeat.node_id, incarnation=heartbeat.incarnation, round=heartbeat.round
        )
        self._apply(adopted, "", 0)
        attempt = (heartbeat.round, heartbeat.attempt)
        if self.core.state.persistent.attempts.get(heartbeat.node_id) != attempt:
            self.apply_own(
                rec.WorkersRestarted(
                    node_id=heartbeat.node_id, round=heartbeat.round, attempt=heartbeat.attempt
                )
            )

    def _check(self, peer: Peer, number: int, request: msg.CheckRequest | msg.CheckResult) -> None:
        self._liveness.mark_alive(request.node_id, peer)
        self._checks.handle(peer, number, request)

    def _get_commands(self, peer: Peer, number: int, request: msg.GetCommands) -> None:
        self._liveness.mark_alive(request.node_id, peer)
        self._check_seen(request.node_id, request.seen)
        poll, reply = LongPoll(peer, number, request), self._commands_for(request)
        self._commands.reply_or_add(request.node_id, poll, request.wait_s, reply)

    def _commands_for(self, request: msg.GetCommands) -> msg.Commands | None:
        return self.core.commands_for(request.node_id, request.seen)

    def _check_seen(self, node: int, seen: int) -> None:
        persistent = self.core.state.persistent
        commands = persistent.commands.get(node)
        if seen >= persistent.next_command or (commands and commands[0].number <= seen):
            self.apply_own(rec.CommandsSeen(node_id=node, seen=seen))

    def _wait_for_keys(self, peer: Peer, number: int, request: msg.KeyValueWait) -> None:
        # By the first missing key only: it is looked up again when that key arrives.
        values, poll = self.core.state.persistent.values, LongPoll(peer, number, request)
        missing = next((key for key in request.keys if key not in values), None)
        reply = self.core.read_values(request.keys) if missing is None else None
        self._keys.reply_or_add(missing or "", poll, request.wait_s, reply)

    def _shard_event(self, peer: Peer, number: int, request: msg.ShardRequest) -> None:
        reply = self._apply(request, self._client(peer), number).reply
        event = request.event
        assert reply is not None
        must_wait = (
            request.wait_s > 0
            and isinstance(reply, msg.ShardReply)
            and isinstance(reply.answer, shard_events.TakenShards)
            and reply.answer.supply is shard_events.Supply.WAIT
        )
        if must_wait and isinstance(event, shard_events.TakeShards):
            poll = LongPoll(peer, number, request)
            self._shards.reply_or_add(event.dataset, poll, request.wait_s, None)
        else:
            self._send(peer, number, reply)

    def _query(self, peer: Peer, number: int, request: msg.Request) -> None:
        self._book()
        self._send(
            peer, number, answer_query(request, self.core, self.settings.job, self._clock.now())
        )

    # Replies to long polls

    def _serve_waiting(self, topics: frozenset[str]) -> None:
        if topic.WORLD in topics:
            self._joins.serve(self.core.join_reply)
            self._finishing.serve(self.core.finished_reply)
            if self.core.rendezvous.state.is_over:
                self.is_over.set()
        if topic.COMMANDS in topics:
            self._commands.serve(self._commands_for)
        if topic.KEYS in topics:
            self._serve_keys()
        if topic.SHARDS in topics:
            for dataset, poll in self._shards.all():
                self._shards.remove(dataset, poll)
                # Not now: a lease to this worker is a record of its own, after the present one.
                asyncio.get_running_loop().call_soon(self._ask_again, poll)

    def _serve_keys(self) -> None:
        values = self.core.state.persistent.values
        for key, poll in self._keys.all():
            if key in values:
                self._keys.remove(key, poll)
                self._wait_for_keys(poll.peer, poll.number, poll.request)

    def _ask_again(self, poll: LongPoll) -> None:
        if poll.peer.is_open:
            self._shard_event(poll.peer, poll.number, poll.request)

    # Sending

    def _send(self, peer: Peer, number: int, reply: msg.Reply, *, is_durable: bool = False) -> None:
        body = wire.encode_body(reply)
        self._group_commit.send(peer, number, body, is_durable=is_durable)

    def _send_world(self, peer: Peer, number: int, reply: msg.Reply) -> None:
        """Send a reply; a world is encoded once for all its members."""
        if not isinstance(reply, msg.WorldInfo):
            self._send(peer, number, reply)
            return
        if self._world[0] != reply.round:
            self._world = (reply.round, wire.encode_body(reply))
        self._group_commit.send(peer, number, self._world[1], is_durable=True)

    @staticmethod
    def _client(peer: Peer) -> str:
        return peer.hello.client if peer.hello else ""


_HANDLERS: Mapping[type, Callable[[MasterService, Peer, int, Any], None]] = {
    msg.Join: MasterService._join,
    msg.WorkersFinished: MasterService._finished,
    msg.Leave: MasterService._leave,
    msg.FailureReport: MasterService._failed,
    msg.Heartbeat: MasterService._heartbeat,
    msg.GetCommands: MasterService._get_commands,
    msg.SaveFinished: MasterService._save_finished,
    msg.KeyValueWait: MasterService._wait_for_keys,
    msg.ShardRequest: MasterService._shard_event,
    msg.CheckRequest: MasterService._check,
    msg.CheckResult: MasterService._check,
    msg.GoodputRequest: MasterService._query,
    msg.JobStatusRequest: MasterService._query,
    msg.ShardCheckpointRequest: MasterService._query,
    msg.DatasetStateRequest: MasterService._query,
    msg.KeyValueGet: MasterService._query,
}
