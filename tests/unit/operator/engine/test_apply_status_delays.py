"""Delays of status writes: changes are merged and yield to pod creations, for a bounded time."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gangline.operator.engine.apply import (
    CREATED_REQUEUE_S,
    MINOR_STATUS_INTERVAL_S,
    MINOR_STATUS_MAX_DELAY_S,
    RUNNING_STATUS_DELAY_S,
    SATURATED_REQUEUE_S,
    minor_status_delay,
    requeue_delay,
    running_status_delay,
)

SECONDS = st.floats(0, 100)


def test_that_a_job_runs_waits_half_a_second_for_the_rest_of_its_pods() -> None:
    assert running_status_delay(0) == RUNNING_STATUS_DELAY_S
    assert running_status_delay(RUNNING_STATUS_DELAY_S) is None


def test_minor_status_change_is_stored_once_a_second() -> None:
    assert minor_status_delay(0, math.inf, is_saturated=False) == MINOR_STATUS_INTERVAL_S
    assert minor_status_delay(MINOR_STATUS_INTERVAL_S, math.inf, is_saturated=False) is None
    assert minor_status_delay(5, 0.25, is_saturated=False) == MINOR_STATUS_INTERVAL_S - 0.25


def test_in_a_crowd_it_gives_way_and_is_seldom_looked_at() -> None:
    assert (
        minor_status_delay(MINOR_STATUS_INTERVAL_S, math.inf, is_saturated=True)
        == SATURATED_REQUEUE_S
    )
    assert minor_status_delay(MINOR_STATUS_MAX_DELAY_S - 1, math.inf, is_saturated=True) == 1
    assert minor_status_delay(MINOR_STATUS_MAX_DELAY_S, math.inf, is_saturated=True) is None
    assert (requeue_delay(is_saturated=True), requeue_delay(is_saturated=False)) == (
        SATURATED_REQUEUE_S,
        CREATED_REQUEUE_S,
    )


@given(SECONDS, SECONDS, st.booleans())
def test_delayed_change_is_stored_when_requeued_as_requested(
    waited_s: float, since_stored_s: float, crowded: bool
) -> None:
    looks = 0
    while (
        wait_s := minor_status_delay(waited_s, since_stored_s, is_saturated=crowded)
    ) is not None:
        assert wait_s > 0
        # A computer's clock advances in steps, so the measured wait is a little longer.
        waited_s, since_stored_s = waited_s + wait_s + 1e-6, since_stored_s + wait_s + 1e-6
        looks += 1
    assert looks <= MINOR_STATUS_MAX_DELAY_S / SATURATED_REQUEUE_S + 2
