"""Records are bounded, and two writers of one run agree."""

import itertools

from gangline.brain.facts.job_record import (
    MAX_ENTRIES,
    MAX_POINTS,
    Curves,
    JobRecord,
    Moment,
    TimelineEntry,
    merge_records,
    with_entries,
    with_explanation,
)


def curves(times: range, value: float = 1.0) -> Curves:
    table = Curves()
    for at_ms in times:
        table = table.with_point(at_ms, {"loss": value})
    return table


def test_many_points_become_means_of_neighbours_over_the_whole_time() -> None:
    table = Curves()
    for second in range(3 * MAX_POINTS):
        table = table.with_point(second * 1000, {"loss": float(second)})
    assert len(table.at_ms) <= MAX_POINTS
    assert table.at_ms[0] == 0
    assert table.at_ms[-1] >= (3 * MAX_POINTS - 5) * 1000
    [loss] = table.values.values()
    pairs = itertools.pairwise(value for value in loss if value is not None)
    assert all(before < after for before, after in pairs)


def test_value_that_begins_later_has_no_value_before() -> None:
    table = Curves().with_point(0, {"loss": 2.0}).with_point(5000, {"loss": 1.0, "lr": 0.1})
    assert table.values == {"loss": (2.0, 1.0), "lr": (None, 0.1)}
    assert table.with_point(1000, {"loss": 9.0}) == table  # a time before the last one


def test_successor_continues_curves_where_it_began() -> None:
    first, second = curves(range(0, 50_000, 5000)), curves(range(30_000, 90_000, 5000), 2.0)
    joined = second.after(first)
    assert joined.at_ms == tuple(range(0, 90_000, 5000))
    assert joined.values["loss"] == (*(1.0,) * 6, *(2.0,) * 12)


def test_records_of_two_writers_are_one_whichever_is_merged_first() -> None:
    submitted = TimelineEntry(what=Moment.SUBMITTED, at_ms=1)
    seen = TimelineEntry(what=Moment.RESTARTED, at_ms=5, number=1)
    explained = TimelineEntry(what=Moment.RESTARTED, at_ms=6, number=1, cause="Killed")
    first = with_entries(JobRecord(), [submitted, seen])
    second = with_explanation(with_entries(JobRecord(), [submitted, explained]), 7, "waits")
    for merged in (merge_records(first, second), merge_records(second, first)):
        assert merged.timeline == (submitted, explained)
        assert [explanation.text for explanation in merged.explanations] == ["waits"]


def test_long_timeline_keeps_its_begin_and_its_end() -> None:
    entries = [
        TimelineEntry(what=Moment.RESTARTED, at_ms=number, number=number)
        for number in range(1, 5 * MAX_ENTRIES)
    ]
    timeline = with_entries(JobRecord(), entries).timeline
    assert len(timeline) == MAX_ENTRIES
    assert (timeline[0].number, timeline[-1].number) == (1, 5 * MAX_ENTRIES - 1)
