"""Minutes of each node: complete ones, the same for all, of the present world only."""

from gangline.api.jobs.training_facts import RankFacts
from gangline.elastic.master.segments.windows import MAX_RANKS, WINDOWS, WindowTable, select_ranks
from gangline.elastic.protocol.messages import NodeReport

WALL_MS = 1_700_000_000_000


def train(table: WindowTable, minutes: int, nodes: int = 4, round_: int = 1) -> None:
    """A report every ten seconds; node 3 computes longer in each minute."""
    for tenth in range(minutes * 6):
        for node in range(nodes):
            compute = 1.3 if node == 3 else 1.0
            report = NodeReport(
                pod=f"pod-{node}", compute_s=compute, sync_s=1.5 - compute, device_model="A100"
            )
            table.observe(round_, node, node, report, 5, tenth * 10.0)


def test_complete_minutes_are_published_without_the_first() -> None:
    table = WindowTable()
    train(table, minutes=4)
    windows = table.facts(3 * 60.0 + 30.0, WALL_MS)
    assert windows.since_ms == WALL_MS - 150_000
    assert [rank.name for rank in windows.ranks] == ["pod-0", "pod-1", "pod-2", "pod-3"]
    assert [rank.compute_seconds for rank in windows.ranks] == [(1.0, 1.0)] * 3 + [(1.3, 1.3)]
    assert windows.ranks[3].sync_seconds == (0.2, 0.2)
    assert windows.ranks[3].device_model == "A100"


def test_only_the_last_minutes_are_kept() -> None:
    table = WindowTable()
    train(table, minutes=20)
    windows = table.facts(19 * 60.0 + 1.0, WALL_MS)
    assert len(windows.ranks[0].compute_seconds) == WINDOWS


def test_another_world_begins_anew_and_one_node_has_nothing_to_compare_with() -> None:
    table = WindowTable()
    train(table, minutes=4)
    train(table, minutes=4, nodes=1, round_=2)
    assert table.facts(200.0, WALL_MS).ranks == ()


def test_a_node_that_was_silent_for_a_minute_has_a_gap() -> None:
    table = WindowTable()
    report = NodeReport(pod="a", compute_s=1.0)
    for minute in range(4):
        table.observe(1, 0, 0, report, 5, minute * 60.0)
        if minute != 2:
            table.observe(1, 1, 1, report, 5, minute * 60.0)
    windows = table.facts(239.0, WALL_MS)
    assert windows.ranks[1].compute_seconds == (1.0, None)
    assert windows.ranks[1].sync_seconds == ()


def test_large_jobs_keep_the_slowest_and_an_even_selection() -> None:
    ranks = [
        RankFacts(
            name=str(rank),
            rank=rank,
            compute_seconds=(1.0 + (rank == 700) + rank * 1e-6,),
            sync_seconds=(0.5 - 0.4 * (rank == 300),),
        )
        for rank in range(1000)
    ]
    chosen = select_ranks(ranks)
    assert len(chosen) == MAX_RANKS
    assert {300, 700} <= {rank.rank for rank in chosen}
    middle = sorted(rank.compute_seconds[0] or 0 for rank in chosen)[MAX_RANKS // 2]
    assert abs(middle - 1.0005) < 0.0003
    assert {300, 700} <= {rank.rank for rank in select_ranks(chosen, 8)}
