"""Choices without I/O: which buffer, which step, which steps to retain, how often to save."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.agent.tuning_file import TuningFile
from gangline.elastic.checkpoint.restore.restore import (
    PartHolder,
    RestoreCandidate,
    incomplete_steps,
    restore_candidates,
)
from gangline.elastic.checkpoint.save_schedule import (
    AutoInterval,
    FailurePrior,
    TunedPrior,
    daly_interval,
)
from gangline.elastic.checkpoint.snapshot.ring import BufferChoice, BufferState, choose_buffer
from gangline.elastic.checkpoint.storage.commit import expired_steps
from gangline.elastic.protocol.messages import CheckpointValues, Tuning


def lost_share(interval_s: float, save_s: float, between_failures_s: float) -> float:
    """Return the share of time lost to saves and to repeated work, to first order."""
    return save_s / interval_s + (interval_s + save_s) / (2 * between_failures_s)


def a_slot(number: int, generation: int, **other: bool) -> BufferState:
    claims = {"complete": True, "awaits_storage": False, "locked": False} | other
    return BufferState(number, generation=generation, step=generation * 10, **claims)


@pytest.mark.parametrize(
    ("slots", "choice"),
    [
        pytest.param([a_slot(0, 0, complete=False)], BufferChoice(0, None), id="an empty one"),
        pytest.param([a_slot(0, 1)], None, id="never the only save there is"),
        pytest.param([a_slot(0, 1), a_slot(1, 2)], BufferChoice(0, None), id="the older one"),
        pytest.param(
            [a_slot(0, 1, locked=True), a_slot(1, 3), a_slot(2, 2)],
            BufferChoice(2, None),
            id="a third one while one is being written to storage",
        ),
        pytest.param([a_slot(0, 1, locked=True), a_slot(1, 2)], None, id="two are too few then"),
        pytest.param(
            [a_slot(0, 1, awaits_storage=True), a_slot(1, 2), a_slot(2, 3)],
            BufferChoice(1, None),
            id="one that waits for storage is spared",
        ),
        pytest.param(
            [a_slot(0, 1, locked=True), a_slot(1, 2, awaits_storage=True), a_slot(2, 3)],
            BufferChoice(1, 20),
            id="unless there is no other; with a warning",
        ),
    ],
)
def test_the_next_save_goes_to(slots: list[BufferState], choice: BufferChoice | None) -> None:
    assert choose_buffer(slots) == choice


@given(
    st.lists(
        st.builds(
            BufferState,
            number=st.integers(0, 9),
            complete=st.booleans(),
            generation=st.integers(0, 5),
            step=st.integers(0, 9),
            awaits_storage=st.booleans(),
            locked=st.booleans(),
        ),
        unique_by=lambda slot: slot.number,
        max_size=4,
    )
)
def test_neither_the_newest_save_nor_one_being_read_is_overwritten(
    slots: list[BufferState],
) -> None:
    chosen = choose_buffer(slots)
    if chosen is None:
        return
    taken = next(slot for slot in slots if slot.number == chosen.number)
    assert not taken.locked
    newest = max((slot.generation for slot in slots if slot.complete), default=-1)
    assert not (taken.complete and taken.generation == newest)


def a_holding(step: int, rank: int, plan: str = "p", holders: object = ((0,), (1,))) -> PartHolder:
    assert isinstance(holders, tuple)
    return PartHolder(step, plan, rank, f"node-{rank}", "", holders)


def test_newest_complete_step_comes_first_and_memory_before_storage() -> None:
    holdings = [a_holding(30, 0), a_holding(20, 0), a_holding(20, 1)]
    assert restore_candidates(holdings, [10, 20]) == [
        RestoreCandidate(20, "p"),
        RestoreCandidate(20, None),
        RestoreCandidate(10, None),
    ]
    assert incomplete_steps(holdings) == {30: "memory has no part of rank 1"}


def test_one_holder_of_a_part_is_enough() -> None:
    assert restore_candidates([a_holding(30, 1, holders=((0, 1),))], []) == [
        RestoreCandidate(30, "p")
    ]


def test_parts_of_different_plans_are_not_mixed() -> None:
    assert restore_candidates([a_holding(30, 0, "p"), a_holding(30, 1, "q")], []) == []


@pytest.mark.parametrize(
    ("keep", "keep_every", "gone"),
    [(0, 0, []), (2, 0, [10, 20, 30]), (1, 20, [10, 30]), (9, 0, [])],
)
def test_retention_removes(keep: int, keep_every: int, gone: list[int]) -> None:
    assert expired_steps([50, 10, 20, 30, 40], keep, keep_every) == gone


@given(st.floats(0.001, 10), st.floats(100, 1e6))
def test_no_nearby_interval_loses_less_than_the_best(save_s: float, between_s: float) -> None:
    best = daly_interval(save_s, between_s)
    loss = lost_share(best, save_s, between_s)
    assert loss <= lost_share(best * 1.5, save_s, between_s)
    assert loss <= lost_share(best / 1.5, save_s, between_s)


def test_interval_for_rare_failures_is_youngs_formula() -> None:
    assert daly_interval(1.0, 1e8) == pytest.approx(math.sqrt(2e8), rel=1e-3)


def test_a_job_that_fails_more_often_saves_more_often() -> None:
    calm, stormy = AutoInterval(observed_s=3600.0), AutoInterval(failures=9, observed_s=3600.0)
    assert stormy.interval_s() < calm.interval_s() / 2
    calm.record_save(100.0, 0.05)
    assert not calm.due(101.0)
    assert calm.due(100.0 + calm.interval_s())


def test_prior_of_the_tuning_is_replaced_by_observations() -> None:
    tuned = AutoInterval(save_s=1.0)
    tuned.prior = FailurePrior(1.0, 3 * 3600.0)
    assert tuned.interval_s() == pytest.approx(146, abs=1)
    tuned.failures, tuned.observed_s = 1000, 1000 * 60.0
    assert tuned.between_failures_s() == pytest.approx(70, abs=2)


def test_prior_is_read_from_the_file_of_the_agent_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    reader = TunedPrior({"GANGLINE_TUNING_FILE": str(path)})
    assert TunedPrior({}).changed() is None
    assert reader.changed() is None
    file = TuningFile(path, tunes_batch=False)
    file.apply(Tuning(version=1))
    assert reader.changed() is None, "no prior"
    file.apply(Tuning(version=2, checkpoint=CheckpointValues(2.0, 3600.0)))
    assert reader.changed() == FailurePrior(2.0, 3600.0)
    assert reader.changed() is None, "it is unchanged"
    path.write_text('{"checkpoint": {"failures": -1, "seconds": 1}}')
    assert reader.changed() is None
