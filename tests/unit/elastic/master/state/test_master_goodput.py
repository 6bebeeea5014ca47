"""The parts of goodput add up, and lost work is not productive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.master.state.goodput import GoodputAccount
from gangline.elastic.protocol.messages import Heartbeat, NodePhase


def test_training_is_productive_and_the_rest_is_named() -> None:
    account = GoodputAccount()
    account.change_phase(0.0, NodePhase.WAITING)
    account.change_phase(10.0, NodePhase.STARTING)
    account.change_phase(15.0, NodePhase.TRAINING)
    goodput = account.goodput(115.0)
    assert (goodput.wall_s, goodput.productive_s) == (115.0, 100.0)
    assert goodput.parts_s == {"waiting": 10.0, "starting": 5.0}


def test_repeated_steps_are_lost_time() -> None:
    account = GoodputAccount()
    account.change_phase(0.0, NodePhase.TRAINING)
    account.record_step(0)
    account.change_phase(100.0, NodePhase.TRAINING)
    account.record_step(100)
    account.record_step(60)  # back to the last checkpoint
    goodput = account.goodput(100.0)
    assert goodput.parts_s["lost"] == pytest.approx(40.0)
    assert goodput.productive_s == pytest.approx(60.0)
    assert goodput.steps_lost == 40


def beat(attempt: int, **fields: object) -> Heartbeat:
    return Heartbeat(node_id=0, round=1, attempt=attempt, phase=NodePhase.TRAINING, **fields)


def test_time_spent_in_other_phases_is_no_training() -> None:
    account = GoodputAccount()
    account.change_phase(0.0, NodePhase.TRAINING)
    account.change_phase(100.0, NodePhase.TRAINING)
    account.book_heartbeat(
        beat(0, step=90, first_step=1, spent_s={"starting": 8.0, "checkpoint": 1.0})
    )
    account.book_heartbeat(
        beat(0, step=90, first_step=1, spent_s={"starting": 8.0, "checkpoint": 3.0})
    )
    goodput = account.goodput(100.0)
    assert goodput.parts_s == {"waiting": 0.0, "starting": 8.0, "checkpoint": 3.0}
    assert goodput.productive_s == pytest.approx(89.0)


def test_repeated_steps_are_counted_from_the_first_step_of_the_next_attempt() -> None:
    account = GoodputAccount()
    account.change_phase(0.0, NodePhase.TRAINING)
    account.change_phase(100.0, NodePhase.TRAINING)
    account.book_heartbeat(beat(0, step=100, first_step=1))
    account.change_phase(130.0, NodePhase.TRAINING)
    # The first word of the new attempt comes late: it has passed the old one's last step already.
    account.book_heartbeat(beat(1, step=120, first_step=91))
    goodput = account.goodput(130.0)
    assert (goodput.steps_lost, goodput.restarts, goodput.step) == (10, 1, 120)
    assert goodput.parts_s["lost"] == pytest.approx(13.0)  # ten of a hundred steps in 130 s
    account.book_heartbeat(beat(0, step=100, first_step=1))  # late
    assert account.goodput(130.0) == goodput


def test_time_without_a_master_counts_for_the_current_phase() -> None:
    account = GoodputAccount()
    account.change_phase(0.0, NodePhase.TRAINING)
    account.book_downtime(30.0)
    assert account.goodput(10.0).productive_s == 40.0


_MOVES = st.lists(
    st.tuples(
        st.floats(0, 1000),
        st.sampled_from(
            [NodePhase.TRAINING, NodePhase.WAITING, NodePhase.RESTARTING, "something else"]
        ),
        st.none() | st.integers(0, 500),
        st.integers(0, 3),
        st.dictionaries(st.sampled_from(["starting", "checkpoint", "no word"]), st.floats(0, 2000)),
    )
)


@given(_MOVES)
def test_the_parts_always_add_up(
    moves: list[tuple[float, str, int | None, int, dict[str, float]]],
) -> None:
    account, now = GoodputAccount(), 0.0
    account.change_phase(now, NodePhase.WAITING)
    for passed, phase, step, attempt, spent in moves:
        now += passed
        account.change_phase(now, phase)
        account.book_heartbeat(beat(attempt, step=step, first_step=step, spent_s=spent))
    goodput = account.goodput(now)
    assert goodput.wall_s == pytest.approx(now)
    assert goodput.productive_s + sum(goodput.parts_s.values()) == pytest.approx(now)
    assert goodput.productive_s >= 0
    assert 0 <= goodput.share <= 1
