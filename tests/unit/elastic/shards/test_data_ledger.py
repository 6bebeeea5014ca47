"""The ledger of data shards: every record once without failures, at least once with them."""

from collections import Counter

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from gangline.elastic.shards.dataset import (
    DatasetDefinition,
    Shard,
    Shuffle,
    Stream,
    Table,
    Text,
    TextFile,
    records_of,
)
from gangline.elastic.shards.events import (
    CloseStream,
    EventAccepted,
    EventRefused,
    ExpireLeases,
    ExtendStream,
    ForgetDataset,
    LedgerEvent,
    RegisterDataset,
    ReleaseWorker,
    RenewLeases,
    RestorePosition,
    RetryDeadLetters,
    ShardFailure,
    ShardProgress,
    ShardReport,
    Supply,
    TakenShards,
    TakeShards,
)
from gangline.elastic.shards.ledger import LedgerOutcome, ShardLedger


def a_ledger(definition: DatasetDefinition) -> ShardLedger:
    ledger = ShardLedger()
    assert ledger.apply(RegisterDataset(definition), 0.0).answer == EventAccepted(definition)
    return ledger


def take(
    ledger: ShardLedger, worker: str = "n/0", now: float = 0.0, **message: object
) -> TakenShards:
    name = next(iter(ledger.states())).name
    answer = ledger.apply(TakeShards(name, worker, **message), now).answer  # type: ignore[arg-type]
    assert isinstance(answer, TakenShards)
    return answer


def done(ledger: ShardLedger, worker: str, *shards: Shard) -> LedgerOutcome:
    name = next(iter(ledger.states())).name
    return ledger.apply(ShardReport(name, worker, tuple(one.lease for one in shards)), 0.0)


def drained(ledger: ShardLedger, worker: str = "n/0") -> list[Shard]:
    shards = []
    while (answer := take(ledger, worker)).supply is Supply.GIVEN:
        shards += answer.shards
        done(ledger, worker, *answer.shards)
    assert answer.supply is Supply.END
    return shards


FILES = (TextFile("a", 7), TextFile("empty", 0), TextFile("b", 12))

DEFINITIONS = [
    pytest.param(Table(name="d", shard_size=3, size=10, epochs=2), 20, id="table"),
    pytest.param(
        Table(name="d", shard_size=3, size=10, epochs=3, shuffle=Shuffle.SHARDS, seed=5),
        30,
        id="shuffled shards",
    ),
    pytest.param(
        Table(name="d", shard_size=4, size=33, epochs=2, shuffle=Shuffle.RECORDS),
        66,
        id="shuffled records",
    ),
    pytest.param(Text(name="d", shard_size=5, files=FILES), 19, id="text"),
    pytest.param(
        Text(name="d", shard_size=5, files=FILES, shuffle=Shuffle.RECORDS), 19, id="shuffled lines"
    ),
    pytest.param(Table(name="d", shard_size=5, size=0, epochs=4), 0, id="no records"),
]


@pytest.mark.parametrize(("definition", "expected"), DEFINITIONS)
def test_each_record_comes_once_in_each_epoch(definition: Table | Text, expected: int) -> None:
    ledger = a_ledger(definition)
    seen = Counter(
        (shard.epoch, record)
        for shard in drained(ledger)
        for record in records_of(definition, shard)
    )
    assert set(seen.values()) <= {1}
    assert sum(seen.values()) == expected
    assert {record for _, record in seen} == set(range(definition.size))
    state = ledger.state("d")
    assert state is not None
    assert (state.done_records, state.ended, state.leased) == (expected, True, 0)


def test_shards_of_a_text_stay_within_a_file_and_lines_are_located() -> None:
    text = Text(name="d", shard_size=5, files=FILES)
    spans = [(shard.start, shard.end) for shard in drained(a_ledger(text))]
    assert spans == [(0, 5), (5, 7), (7, 12), (12, 17), (17, 19)]
    assert [text.locate(one) for one in (0, 6, 7, 18)] == [("a", 0), ("a", 6), ("b", 0), ("b", 11)]
    with pytest.raises(IndexError, match="19 lines"):
        text.locate(19)


def test_an_order_follows_from_its_seed_and_differs_between_epochs() -> None:
    def order(seed: int) -> list[int]:
        table = Table(name="d", shard_size=1, size=50, epochs=2, shuffle=Shuffle.SHARDS, seed=seed)
        return [shard.start for shard in drained(a_ledger(table))]

    first = order(1)
    assert first == order(1) != order(2)
    assert first[:50] != first[50:]
    assert first[:50] != sorted(first[:50])


def test_an_unknown_data_set_is_not_the_end() -> None:
    outcome = ShardLedger().apply(TakeShards("nothing", "w"), 0.0)
    assert outcome == LedgerOutcome(TakenShards(Supply.UNKNOWN), changed=False)
    assert isinstance(ShardLedger().apply(ShardReport("nothing", "w"), 0.0).answer, EventRefused)


def test_registering_again_is_harmless_and_another_definition_is_refused() -> None:
    table = Table(name="d", shard_size=3, size=10)
    ledger = a_ledger(table)
    assert ledger.apply(RegisterDataset(table), 1.0) == LedgerOutcome(
        EventAccepted(table), changed=False
    )
    answer = ledger.apply(RegisterDataset(Table(name="d", shard_size=4, size=10)), 1.0).answer
    assert answer == EventRefused("the data set d is registered with shard_size=3, not 4")
    answer = ledger.apply(
        RegisterDataset(Stream(name="d", shard_size=3, partitions={"p": 0})), 1.0
    ).answer
    assert answer == EventRefused("the data set d is registered as table, not as stream")
    ledger.apply(ForgetDataset("d"), 2.0)
    assert ledger.apply(RegisterDataset(Table(name="d", shard_size=4, size=10)), 3.0).changed


@pytest.mark.parametrize(
    "definition",
    [
        Table(name="d", shard_size=3, size=0, epochs=0),
        Text(name="d", shard_size=3, files=()),
        Stream(name="d", shard_size=3, partitions={}),
    ],
)
def test_invalid_definitions_are_refused(definition: DatasetDefinition) -> None:
    assert isinstance(ShardLedger().apply(RegisterDataset(definition), 0.0).answer, EventRefused)


def test_a_repeated_request_is_answered_with_the_same_shards() -> None:
    ledger = a_ledger(Table(name="d", shard_size=1, size=10))
    first = take(ledger, request=1, count=3)
    assert take(ledger, request=1, count=3) == first
    second = take(ledger, request=2, count=3)
    assert not {one.lease for one in first.shards} & {one.lease for one in second.shards}
    done(ledger, "n/0", *second.shards)
    assert take(ledger, request=2).shards[0].start == 6


def test_a_lost_worker_s_shards_go_to_others_first() -> None:
    ledger = a_ledger(Table(name="d", shard_size=2, size=10))
    lost = take(ledger, "n1/0", count=2).shards
    kept = take(ledger, "n10/0").shards
    assert ledger.apply(ReleaseWorker("n1"), 1.0).changed
    assert not ledger.apply(ReleaseWorker("n1"), 1.0).changed
    again = take(ledger, "n2/0", count=2).shards
    assert [one.start for one in again] == [one.start for one in lost]
    assert done(ledger, "n10/0", *kept).changed


def test_finished_records_of_a_shard_are_not_leased_again() -> None:
    ledger = a_ledger(Table(name="d", shard_size=10, size=10))
    [shard] = take(ledger, "a").shards
    ledger.apply(ShardReport("d", "a", progress=(ShardProgress(shard.lease, 7),)), 0.0)
    ledger.apply(ShardReport("d", "a", progress=(ShardProgress(shard.lease, 4),)), 0.0)
    ledger.apply(ReleaseWorker("a"), 1.0)
    [rest] = take(ledger, "b").shards
    assert (rest.start, rest.end) == (7, 10)
    done(ledger, "b", rest)
    assert ledger.states()[0].done_records == 10


def test_expired_shards_are_leased_again_and_the_first_finish_counts() -> None:
    ledger = a_ledger(Table(name="d", shard_size=5, size=10, lease_s=60))
    slow = take(ledger, "slow", now=0.0).shards
    renewed = take(ledger, "busy", now=1.0).shards
    ledger.apply(ShardReport("d", "busy", progress=(ShardProgress(renewed[0].lease, 0),)), 50.0)
    assert ledger.deadline == 60.0
    assert not ledger.apply(ExpireLeases(), 59.0).changed
    assert ledger.apply(ExpireLeases(), 60.0).changed
    again = take(ledger, "other", now=61.0).shards
    assert again[0].start == slow[0].start
    assert done(ledger, "slow", *slow).changed
    assert not done(ledger, "other", *again).changed
    done(ledger, "busy", *renewed)
    state = ledger.states()[0]
    assert (state.done_records, state.done_shards, state.ended) == (10, 2, True)


def test_a_new_clock_restarts_all_leases() -> None:
    ledger = a_ledger(Table(name="d", shard_size=5, size=10, lease_s=60))
    take(ledger, "a", now=1_000_000.0)
    ledger.apply(RenewLeases(), 5.0)
    assert ledger.deadline == 65.0


def test_repeatedly_failing_shards_become_reported_dead_letters() -> None:
    ledger = a_ledger(Table(name="d", shard_size=5, size=10, max_failures=2))
    for attempt in range(2):
        [bad, *_] = take(ledger, "w").shards
        assert bad.number == 0
        failed = (ShardFailure(bad.lease, f"bad bytes {attempt}"),)
        assert ledger.apply(ShardReport("d", "w", failed=failed), 0.0).changed
        assert not ledger.apply(ShardReport("d", "w", failed=failed), 0.0).changed
    assert [one.number for one in drained(ledger, "w")] == [1]
    state = ledger.states()[0]
    assert state.ended
    assert [(one.start, one.end) for one in state.dead] == [(0, 5)]
    assert state.dead[0].reasons == ("w: bad bytes 0", "w: bad bytes 1")
    assert ledger.apply(RetryDeadLetters("d"), 0.0).changed
    assert [one.number for one in drained(ledger, "w")] == [0]
    assert ledger.states()[0].done_records == 10


def test_a_shard_that_kills_its_workers_is_given_up_too() -> None:
    ledger = a_ledger(Table(name="d", shard_size=5, size=5, max_losses=3))
    for attempt in range(3):
        assert take(ledger, f"w{attempt}").supply is Supply.GIVEN
        ledger.apply(ReleaseWorker(f"w{attempt}"), 0.0)
    assert take(ledger, "w").supply is Supply.END
    assert len(ledger.states()[0].dead[0].reasons) == 3


def test_a_worker_with_leases_must_report_first_and_others_wait() -> None:
    ledger = a_ledger(Table(name="d", shard_size=5, size=5))
    shards = take(ledger, "a").shards
    assert take(ledger, "a").supply is Supply.REPORT_FIRST
    assert take(ledger, "b").supply is Supply.WAIT
    done(ledger, "a", *shards)
    assert take(ledger, "b").supply is Supply.END


def test_one_epoch_can_be_requested_alone() -> None:
    ledger = a_ledger(Table(name="d", shard_size=5, size=10, epochs=2))
    first = take(ledger, "a", count=9, through_epoch=0).shards
    assert len(first) == 2
    assert take(ledger, "b", through_epoch=0).supply is Supply.WAIT
    later = take(ledger, "b").shards
    assert later[0].epoch == 1
    done(ledger, "a", *first)
    assert take(ledger, "a", through_epoch=0).supply is Supply.END
    assert take(ledger, "a", through_epoch=1).shards[0].epoch == 1


def test_an_endless_data_set_continues() -> None:
    ledger = a_ledger(Table(name="d", shard_size=5, size=10, epochs=0))
    for _ in range(7):
        done(ledger, "a", *take(ledger, "a", count=2).shards)
    assert ledger.states()[0].done_records == 70
    assert not ledger.ended


def test_a_stream_grows_waits_and_ends_when_it_is_closed() -> None:
    ledger = a_ledger(Stream(name="d", shard_size=10, partitions={"p0": 100, "p1": 0}))
    assert take(ledger).supply is Supply.WAIT
    ledger.apply(ExtendStream("d", "p0", 115), 0.0)
    ledger.apply(ExtendStream("d", "p1", 3), 0.0)
    shards = take(ledger, count=9).shards
    spans = [(one.partition, one.start, one.end) for one in shards]
    assert spans == [("p0", 100, 110), ("p0", 110, 115), ("p1", 0, 3)]
    done(ledger, "n/0", *shards[1:])
    assert ledger.states()[0].committed == {"p0": 100, "p1": 3}
    done(ledger, "n/0", shards[0])
    assert ledger.states()[0].committed == {"p0": 115, "p1": 3}
    assert take(ledger).supply is Supply.WAIT
    assert not ledger.apply(ExtendStream("d", "p0", 90), 0.0).changed
    ledger.apply(CloseStream("d"), 0.0)
    assert take(ledger).supply is Supply.END
    assert isinstance(ledger.apply(ExtendStream("d", "p0", 200), 0.0).answer, EventRefused)
    assert ledger.ended


def test_tables_cannot_be_extended() -> None:
    ledger = a_ledger(Table(name="d", shard_size=10, size=1))
    assert isinstance(ledger.apply(ExtendStream("d", "p0", 1), 0.0).answer, EventRefused)
    assert isinstance(ledger.apply(CloseStream("d"), 0.0).answer, EventRefused)


def test_a_checkpoint_restores_into_an_empty_ledger_but_not_into_another_data_set() -> None:
    checkpoint = a_ledger(Table(name="d", shard_size=10, size=50)).checkpoint("d")
    assert checkpoint is not None
    empty = ShardLedger()
    assert empty.apply(RestorePosition(checkpoint), 0.0).changed
    assert len(drained(empty)) == 5
    other = a_ledger(Table(name="d", shard_size=10, size=51))
    assert isinstance(other.apply(RestorePosition(checkpoint), 0.0).answer, EventRefused)
    assert isinstance(empty.apply(RestorePosition(b"rubbish"), 0.0).answer, EventRefused)
    assert ShardLedger().checkpoint("d") is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["take", "done", "late", "fail", "progress", "die", "tick", "snapshot", "repeat"]
        ),
        st.integers(0, 2),
        st.integers(1, 4),
    ),
    max_size=60,
)


@given(
    steps=STEPS,
    size=st.integers(0, 40),
    shard_size=st.integers(1, 7),
    shuffle=st.sampled_from(Shuffle),
    epochs=st.integers(1, 3),
)
def test_random_events_lose_no_record(
    steps: list[tuple[str, int, int]], size: int, shard_size: int, shuffle: Shuffle, epochs: int
) -> None:
    table = Table(
        name="d", shard_size=shard_size, size=size, shuffle=shuffle, epochs=epochs, lease_s=10.0
    )
    history = History(table)
    for step, worker, number in steps:
        history.do(step, f"n{worker}/0", number)
    assert history.replayed() == history.ledger.snapshot()
    history.finish()
    state = history.ledger.states()[0]
    dead = sum(one.end - one.start for one in state.dead)
    assert state.done_records + dead == size * epochs
    assert len(history.processed) + dead >= size * epochs


class History:
    """Random events to one ledger, with what its workers saw and the journal."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.ledger = ShardLedger()
        self.journal: list[bytes] = []
        self.held: dict[str, list[Shard]] = {}
        self.forgotten: list[tuple[str, Shard]] = []
        self.processed: set[tuple[int, int]] = set()
        self.now = 0.0
        self.base = self.ledger.snapshot()
        self.apply(RegisterDataset(table))

    def apply(self, event: LedgerEvent) -> LedgerOutcome:
        outcome = self.ledger.apply(event, self.now)
        if outcome.changed:
            self.journal.append(msgspec.msgpack.encode((event, self.now)))
        return outcome

    def replayed(self) -> bytes:
        ledger = ShardLedger.from_snapshot(self.base)
        for line in self.journal:
            event, now = msgspec.msgpack.decode(line, type=tuple[LedgerEvent, float])
            assert ledger.apply(event, now).changed
        return ledger.snapshot()

    def work(self, shard: Shard, stop: int | None = None) -> None:
        places = list(records_of(self.table, shard))[:stop]
        self.processed |= {(shard.epoch, place) for place in places}

    def do(self, step: str, worker: str, number: int) -> None:
        held = self.held.setdefault(worker, [])
        match step:
            case "take":
                answer = self.apply(TakeShards("d", worker, count=number)).answer
                assert isinstance(answer, TakenShards)
                held += answer.shards
            case "done" if held:
                self.work(held[0])
                self.apply(ShardReport("d", worker, (held.pop(0).lease,)))
            case "repeat" if held:
                self.work(held[0])
                report = ShardReport("d", worker, (held.pop(0).lease,))
                self.apply(report)
                assert not self.apply(report).changed
            case "late" if self.forgotten:
                owner, shard = self.forgotten.pop()
                self.work(shard)
                self.apply(ShardReport("d", owner, (shard.lease,)))
            case "fail" if held:
                self.apply(
                    ShardReport("d", worker, failed=(ShardFailure(held.pop().lease, "bad"),))
                )
            case "progress" if held:
                self.work(held[0], number)
                position = held[0].start + number
                self.apply(
                    ShardReport("d", worker, progress=(ShardProgress(held[0].lease, position),))
                )
            case "die":
                self.apply(ReleaseWorker(worker))
                self.forgotten += [(worker, shard) for shard in held]
                held.clear()
            case "tick":
                self.now += 3.0 * number
                self.apply(ExpireLeases())
            case "snapshot":
                self.base = self.ledger.snapshot()
                self.journal.clear()
                self.ledger = ShardLedger.from_snapshot(self.base)
                self.now = 0.0
                self.apply(RenewLeases())

    def finish(self) -> None:
        for worker in list(self.held):
            self.do("die", worker, 1)
        for shard in drained(self.ledger, "last/0"):
            self.work(shard)


@given(
    size=st.integers(1, 60),
    shard_size=st.integers(1, 9),
    at=st.integers(0, 20),
    shuffle=st.sampled_from(Shuffle),
)
def test_a_checkpoint_at_any_time_holds_exactly_what_was_not_done(
    size: int, shard_size: int, at: int, shuffle: Shuffle
) -> None:
    table = Table(name="d", shard_size=shard_size, size=size, shuffle=shuffle)
    ledger = a_ledger(table)
    trained: Counter[int] = Counter()
    for turn in range(at):
        for shard in take(ledger, "a", count=2).shards:
            places = list(records_of(table, shard))
            if turn % 3 == 2:
                half = len(places) // 2
                progress = (ShardProgress(shard.lease, shard.start + half),)
                ledger.apply(ShardReport("d", "a", progress=progress), 0.0)
                trained.update(places[:half])
            else:
                done(ledger, "a", shard)
                trained.update(places)
    checkpoint = ledger.checkpoint("d")
    assert checkpoint is not None
    later = ShardLedger()
    later.apply(RestorePosition(checkpoint), 0.0)
    for shard in drained(later, "b"):
        trained.update(records_of(table, shard))
    assert trained == Counter(range(size))
