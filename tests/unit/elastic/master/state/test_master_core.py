"""What requests do to the master's state, and that replaying the records gives the same state."""

import random

import msgspec
import pytest

from gangline.elastic.master.state import state as rec
from gangline.elastic.master.state.core import MasterCore
from gangline.elastic.master.state.state import MasterState
from gangline.elastic.protocol import messages as msg
from gangline.elastic.shards import dataset, events


class Rig:
    """A core, the records that changed it, and a clock."""

    def __init__(self) -> None:
        self.core = MasterCore()
        self.lines: list[bytes] = []
        self.now = 1000.0
        self.number = 0

    def apply(
        self, what: rec.RecordBody, *, number: int = 0, client: str = "c"
    ) -> msg.Reply | None:
        self.now += 0.5
        record = rec.JournalRecord(self.now, what, client, number)
        applied = self.core.apply(record)
        if applied.changed:
            self.lines.append(rec.encode_record(record))
        return applied.reply

    def join(
        self, node: int, number: int = 1, nodes: int = 2, **fields: object
    ) -> msg.WorldInfo | msg.RequestRefused | None:
        join = msg.Join(
            node_id=node, incarnation=f"i{node}", number=number, node_rank=node,
            min_nodes=nodes, max_nodes=nodes, host=f"h{node}", store_port=number,
        )  # fmt: skip
        join = msgspec.structs.replace(join, **fields)
        self.apply(join)
        return self.core.join_reply(join)

    def replayed(self) -> MasterCore:
        core = MasterCore()
        for line in self.lines:
            core.apply(rec.decode_record(line))
        return core


def state_of(core: MasterCore) -> bytes:
    return core.state.snapshot(0.0)


def test_members_get_a_restart_command_when_a_node_is_lost() -> None:
    rig = Rig()
    rig.join(0)
    rig.join(1)
    rig.apply(rec.NodeLost(node_id=1, reason="gone"))
    commands = rig.core.commands_for(0, seen=0)
    assert commands is not None
    assert isinstance(commands.commands[0].what, msg.RestartCommand)
    assert rig.core.commands_for(0, seen=commands.commands[0].number) is None


def test_a_number_is_added_once_however_often_it_is_sent() -> None:
    rig = Rig()
    add = msg.KeyValueAdd(key="x", amount=2)
    assert rig.apply(add, number=7) == msg.KeyValueReply(values=(b"2",))
    assert rig.apply(add, number=7) == msg.KeyValueReply(values=(b"2",))
    assert rig.apply(add, number=8) == msg.KeyValueReply(values=(b"4",))
    assert rig.apply(add, number=7, client="another") == msg.KeyValueReply(values=(b"6",))


def test_adding_to_a_text_is_refused() -> None:
    rig = Rig()
    rig.apply(msg.KeyValueSet(key="x", value=b"abc"))
    assert isinstance(rig.apply(msg.KeyValueAdd(key="x")), msg.RequestRefused)


def test_compare_and_set_requires_the_expected_value() -> None:
    rig = Rig()
    first = msg.KeyValueCompareSet(key="k", expected=None, value=b"a")
    late = msg.KeyValueCompareSet(key="k", expected=None, value=b"b")
    assert rig.apply(first) == msg.KeyValueReply(values=(b"a",))
    assert rig.apply(late) == msg.KeyValueReply(values=(b"a",))


@pytest.mark.parametrize(
    "happening",
    [
        rec.NodeLost(node_id=0, reason="gone"),
        msg.FailureReport(node_id=0, local_ranks=(3,), cause="Killed"),
        msg.Leave(node_id=0),
        msg.Join(node_id=0, incarnation="i0", number=2),
    ],
    ids=["lost node", "failed worker", "node left", "node joins anew"],
)
def test_shards_of_workers_that_ended_go_to_others(happening: rec.RecordBody) -> None:
    rig = Rig()
    rig.join(0)
    table = dataset.Table(name="d", size=10, shard_size=10)
    rig.apply(msg.ShardRequest(event=events.RegisterDataset(table)))
    take = msg.ShardRequest(event=events.TakeShards("d", "0/3", request=1))
    given = rig.apply(take)
    assert isinstance(given, msg.ShardReply)
    rig.apply(happening)
    again = rig.apply(msg.ShardRequest(event=events.TakeShards("d", "1/0", request=1)))
    assert isinstance(again, msg.ShardReply)
    assert isinstance(again.answer, events.TakenShards)
    assert again.answer.supply is events.Supply.GIVEN


def test_workers_that_run_on_keep_their_shards_until_they_restart() -> None:
    rig = Rig()
    rig.join(0)
    rig.join(1)
    rig.apply(rec.WorkersRestarted(node_id=0, round=1, attempt=0))
    table = dataset.Table(name="d", size=30, shard_size=10)
    rig.apply(msg.ShardRequest(event=events.RegisterDataset(table)))
    rig.apply(msg.ShardRequest(event=events.TakeShards("d", "0/0", request=1)))
    rig.apply(rec.NodeLost(node_id=1, reason="gone"))
    rig.join(0, number=2, continues=True)
    rig.apply(rec.WorkersRestarted(node_id=0, round=2, attempt=0))
    state = rig.core.state.ledger.state("d")
    assert state is not None
    assert state.leased == 1
    assert rig.core.state.persistent.account.restarts == 0
    rig.apply(rec.WorkersRestarted(node_id=0, round=2, attempt=1))
    state = rig.core.state.ledger.state("d")
    assert state is not None
    assert state.leased == 0


def test_node_counts_without_a_possible_world_are_refused() -> None:
    rig = Rig()
    join = msg.Join(node_id=0, incarnation="a", number=1, min_nodes=3, max_nodes=3, node_unit=2)
    reply = rig.apply(join)
    assert isinstance(reply, msg.RequestRefused)
    assert "multiple of 2" in reply.message


def test_command_numbers_continue_after_the_journal_is_lost() -> None:
    rig = Rig()
    rig.apply(rec.CommandsSeen(node_id=0, seen=41))
    rig.apply(msg.SendCommand(what=msg.DumpStacks(), nodes=(0,)))
    commands = rig.core.commands_for(0, seen=41)
    assert commands is not None
    assert commands.commands[0].number == 42


def test_the_timeline_has_transitions_and_unpublished_events() -> None:
    rig = Rig()
    rig.join(0)
    rig.join(1)
    assert [one.reason for one in rig.core.timeline.take_new()] == ["WorldFormed"]
    rig.apply(rec.NodeLost(node_id=1, reason="not heard of"))
    rig.join(0, number=2)
    rig.join(2)
    timeline = rig.core.timeline.take_new()
    assert [one.reason for one in timeline] == [
        "NodeLost",
        "WorldBroken",
        "NodeJoined",
        "WorldFormed",
    ]
    assert [(one.message, one.node_id) for one in timeline if one.reason == "NodeJoined"] == [
        ("h2", 2)
    ]
    assert rig.core.timeline.take_new() == []
    events = rig.core.state.persistent.events
    assert [one.reason for one in events[:2]] == ["WorldFormed", "NodeLost"], "all are kept"


@pytest.mark.parametrize(("named", "expected"), [((), (0, 1)), ((1,), (1,))])
def test_check_command_names_all_nodes(named, expected) -> None:
    rig = Rig()
    rig.join(0)
    rig.join(1)
    rig.apply(msg.SendCommand(what=msg.RunCheck(), nodes=named))
    orders = {node: rig.core.commands_for(node, seen=0) for node in (0, 1)}
    assert {node for node, order in orders.items() if order} == set(expected)
    for node in expected:
        assert orders[node].commands[-1].what == msg.RunCheck(nodes=expected)


def test_replay_of_any_history_gives_the_same_state() -> None:
    for seed in range(60):
        chance = random.Random(seed)
        rig = Rig()
        table = dataset.Table(name="d", size=300, shard_size=10, epochs=2, lease_s=20.0)
        rig.apply(msg.ShardRequest(event=events.RegisterDataset(table)))
        for _ in range(chance.randrange(10, 120)):
            _something(rig, chance)
            if chance.random() < 0.05:  # a new master, from the journal
                assert state_of(rig.replayed()) == state_of(rig.core)
                rig.core = rig.replayed()
            if chance.random() < 0.02:  # a new master, from a snapshot
                rig.core = MasterCore(MasterState.from_snapshot(state_of(rig.core))[0])
        assert state_of(rig.replayed()) == state_of(rig.core)


def _something(rig: Rig, chance: random.Random) -> None:
    node = chance.randrange(3)
    leases = tuple(chance.randrange(1, 60) for _ in range(2))
    rig.number += chance.random() < 0.7  # else the last request comes again
    things: list[rec.RecordBody] = [
        msg.KeyValueAdd(key="n", amount=chance.randrange(5)),
        msg.KeyValueSet(key=f"k{node}", value=b"v"),
        msg.ShardRequest(event=events.TakeShards("d", f"{node}/0", request=rig.number)),
        msg.ShardRequest(event=events.ShardReport("d", f"{node}/0", done=leases)),
        rec.NodeLost(node_id=node, reason="gone"),
        rec.TimePassed(),
        rec.MemberAdopted(node_id=node, incarnation=f"i{node}", round=chance.randrange(4)),
        msg.Leave(node_id=node, reason="so"),
        msg.FailureReport(node_id=node, local_ranks=(0,)),
        msg.SendCommand(what=msg.SaveCheckpoint()),
        rec.CommandsSeen(node_id=node, seen=chance.randrange(20)),
    ]
    if chance.random() < 0.4:
        rig.join(node, number=chance.randrange(1, 6), nodes=2)
    else:
        rig.apply(chance.choice(things), number=rig.number)


def test_a_state_of_a_newer_version_is_refused() -> None:
    newer = msgspec.msgpack.encode([99, 0.0, msgspec.msgpack.encode({}), b""])
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        MasterState.from_snapshot(newer)
