"""Advice as published: what is written again, and which events follow."""

import msgspec
import pytest

from gangline.api.brain.job_advice import (
    APPLIED,
    HELD,
    OPEN,
    AdviceEvidence,
    AdviceItem,
    JobAdviceStatus,
)
from gangline.brain.advisers.advice import Advice, Reason, Unit, What
from gangline.brain.publication import (
    advice_item,
    changes,
    format_amount,
    settled,
    with_summary,
)

GIB = 2**30


def item(value: float = 11 * GIB, **more: object) -> AdviceItem:
    advice = Advice(
        what=What.MEMORY,
        role="worker",
        unit=Unit.BYTES,
        was=32 * GIB,
        value=value,
        reason=Reason(code="HighestPeak"),
    )
    made = advice_item(advice, f"memory {value}", AdviceEvidence(runs=3), OPEN)
    return msgspec.structs.replace(made, **more)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (11.3 * GIB, Unit.BYTES, "11.3Gi"),
        (350 * 2**20, Unit.BYTES, "350Mi"),
        (2000, Unit.MILLICORES, "2"),
        (250, Unit.MILLICORES, "250m"),
        (146, Unit.SECONDS, "146s"),
        (8, Unit.COUNT, "8"),
        (None, Unit.COUNT, ""),
    ],
)
def test_amounts_as_users_write_them(value: float | None, unit: Unit, text: str) -> None:
    assert format_amount(value, unit) == text


def test_small_changes_keep_the_stored_item() -> None:
    stored = item()
    for value in (11.1 * GIB, 10.5 * GIB, 11 * GIB):
        assert settled([stored], [item(value)]) == [stored]
    assert settled([stored], []) == []
    workers, more = (item(value, what="workers", unit="count") for value in (4.0, 5.0))
    assert settled([workers], [more]) == [more]


@pytest.mark.parametrize(
    "changed",
    [
        item(13 * GIB),
        item(state=HELD, held_because="cool-down"),
        item(reason="KilledAt"),
        item(was=float(16 * GIB)),
    ],
)
def test_other_changes_replace_it(changed: AdviceItem) -> None:
    assert settled([item()], [changed]) == [changed]


def test_each_change_has_one_event() -> None:
    def events(old: list[AdviceItem], new: list[AdviceItem]) -> list[str]:
        return [reason for reason, _ in changes(old, settled(old, new))]

    held = item(state=HELD, held_because="the job is held")
    assert events([], [item()]) == ["Advised"]
    assert events([item()], [item()]) == []
    assert events([item()], [item(11.1 * GIB)]) == []
    assert events([item()], [item(20 * GIB)]) == ["Advised"]
    assert events([item()], [held]) == ["AdviceHeld"]
    assert events([held], [held]) == []
    assert events([held], [item(state=APPLIED)]) == ["AdviceApplied"]
    assert events([item(state=APPLIED)], [item(state=APPLIED)]) == []


def test_amounts_in_the_reason_of_a_hold_are_no_change() -> None:
    texts = ("it saves 85.6 s and costs 60 s", "it saves 2.78 min and costs 60 s")
    first, later = (item(state=HELD, held_because=text) for text in texts)
    assert settled([first], [later]) == [first]
    assert list(changes([first], [later])) == []
    other = item(state=HELD, held_because="2 segments are known; 3 needed")
    assert [reason for reason, _ in changes([first], [other])] == ["AdviceHeld"]


def test_summary_has_the_first_item_and_all_fields() -> None:
    workers = item(4.0, what="workers", role="", unit="count", advised="4", now="2")
    status = with_summary(JobAdviceStatus(items=[workers, item()]))
    assert status.what == "workers, worker memory"
    assert (status.now, status.advised) == ("2", "4")
    assert with_summary(JobAdviceStatus()).what == ""
