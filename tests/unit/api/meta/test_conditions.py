"""Conditions: when the transition time moves, and when nothing changes."""

from datetime import UTC, datetime, timedelta

from gangline.api.meta.conditions import (
    MAX_MESSAGE_LENGTH,
    find_condition,
    is_condition_true,
    remove_condition,
    set_condition,
)
from gangline.api.meta.objects import Condition

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
READY = Condition(type="Ready", status="True", reason="Up", message="all well")


def test_a_new_condition_goes_to_the_end_with_the_time():
    conditions = set_condition([Condition(type="Other")], READY, NOW)
    assert [condition.type for condition in conditions] == ["Other", "Ready"]
    assert conditions[1].last_transition_time == NOW


def test_another_reason_leaves_the_transition_time():
    before = set_condition([], READY, NOW)
    after = set_condition(before, Condition(type="Ready", status="True", reason="Better"), LATER)
    assert (after[0].reason, after[0].last_transition_time) == ("Better", NOW)


def test_the_same_condition_changes_nothing():
    before = set_condition([], READY, NOW)
    assert set_condition(before, READY, LATER) == before


def test_a_long_message_is_cut_and_stays_the_same_when_set_again():
    long = Condition(type="Ready", status="False", message="x" * (MAX_MESSAGE_LENGTH + 1))
    before = set_condition([], long, NOW)
    assert len(before[0].message) == MAX_MESSAGE_LENGTH
    assert set_condition(before, long, LATER) == before


def test_conditions_are_found_and_removed_by_type():
    conditions = set_condition([], READY, NOW)
    assert is_condition_true(conditions, "Ready")
    assert not is_condition_true(conditions, "Other")
    assert find_condition(remove_condition(conditions, "Ready"), "Ready") is None
