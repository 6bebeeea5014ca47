"""Delays of status writes: changes are merged and yield to pod creations, for a bounded time."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gangline.operator.urgency import (
    CROWD_LOOKS_S,
    LOOK_AGAIN_S,
    MINOR_EVERY_S,
    MINOR_WAITS_S,
    START_WAITS_S,
    look_again,
    minor_waits,
    start_waits,
)

SECONDS = st.floats(0, 100)


def test_that_a_job_runs_waits_half_a_second_for_the_rest_of_its_pods() -> None:
    assert start_waits(0) == START_WAITS_S
    assert start_waits(START_WAITS_S) is None


def test_minor_news_is_stored_once_a_second() -> None:
    assert minor_waits(0, math.inf, crowded=False) == MINOR_EVERY_S
    assert minor_waits(MINOR_EVERY_S, math.inf, crowded=False) is None
    assert minor_waits(5, 0.25, crowded=False) == MINOR_EVERY_S - 0.25


def test_in_a_crowd_it_gives_way_and_is_seldom_looked_at() -> None:
    assert minor_waits(MINOR_EVERY_S, math.inf, crowded=True) == CROWD_LOOKS_S
    assert minor_waits(MINOR_WAITS_S - 1, math.inf, crowded=True) == 1
    assert minor_waits(MINOR_WAITS_S, math.inf, crowded=True) is None
    assert (look_again(crowded=True), look_again(crowded=False)) == (CROWD_LOOKS_S, LOOK_AGAIN_S)


@given(SECONDS, SECONDS, st.booleans())
def test_delayed_change_is_stored_when_requeued_as_requested(
    waited_s: float, since_stored_s: float, crowded: bool
) -> None:
    looks = 0
    while (wait_s := minor_waits(waited_s, since_stored_s, crowded=crowded)) is not None:
        assert wait_s > 0
        # A computer's clock advances in steps, so the measured wait is a little longer.
        waited_s, since_stored_s = waited_s + wait_s + 1e-6, since_stored_s + wait_s + 1e-6
        looks += 1
    assert looks <= MINOR_WAITS_S / CROWD_LOOKS_S + 2
