"""Advice and states of the guard for tests: everything allows an action unless changed."""

from collections.abc import Sequence
from typing import Any

import msgspec

from brain_records import a_segment
from gangline.api.jobs.training_facts import SegmentFacts, StepSeconds
from gangline.brain.advisers.advice import (
    Advice,
    Baseline,
    Choice,
    GuardAction,
    Reason,
    Verdict,
    What,
)
from gangline.brain.facts.records import Mode
from gangline.brain.guard.policy import AdviceStreak, ClusterState, GuardJobState, Permission

NOW = 100_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE
ALLOWED = Permission(mode=Mode.APPLY, named=frozenset({"memory", "cpu", "batch"}))


def make_advice(was: float = 4, value: float = 8, gain: float = 0.5, **changes: Any) -> Advice:
    """Advice for workers with goodput that grows evenly."""
    step = 1 if value > was else -1
    sizes = range(round(was), round(value) + step, step)

    def goodput(size: int) -> float:
        return 1.0 if value == was else 1 + gain * (size - was) / (value - was)

    choices = tuple(
        Choice(value=n, goodput=goodput(n), low=0.95 * goodput(n), high=1.05 * goodput(n))
        for n in sizes
    )
    advice = Advice(
        what=What.WORKERS,
        role="worker",
        was=was,
        value=value,
        gain=gain,
        gain_low=0.95 * (1 + gain) - 1,
        choices=choices,
        reason=Reason(code="MoreWorkersGain"),
    )
    return msgspec.structs.replace(advice, **changes)


def make_job(advice: Advice | None = None, **changes: Any) -> GuardJobState:
    """A job that runs for ten hours, with a stable advice."""
    streaks = ()
    if advice is not None:
        streaks = (
            AdviceStreak(key=advice.key, value=advice.value, count=3, since_ms=NOW - 2 * MINUTE),
        )
    job = GuardJobState(
        uid="u",
        family="f",
        started_ms=NOW - 10 * HOUR,
        last_segment_ms=NOW - MINUTE,
        streaks=streaks,
        restart_cost_s=60.0,
        remaining_s=10 * 3600.0,
        gpus=8,
    )
    return msgspec.structs.replace(job, **changes)


def make_cluster(**changes: Any) -> ClusterState:
    """A leader with a clock that agrees, in a quiet cluster."""
    state = ClusterState(leader=True, knows_time=True, gpus=1000)
    return msgspec.structs.replace(state, **changes)


def make_action(**changes: Any) -> GuardAction:
    """A growth from 4 to 8 workers that was made five hours ago and kept."""
    action = GuardAction(
        id=1,
        job="u",
        family="f",
        what=What.WORKERS,
        role="worker",
        at_ms=NOW - 5 * HOUR,
        before=4,
        after=8,
        predicted=Choice(value=8, goodput=1.4, low=1.2, high=1.6),
        floor=0.5,
        baseline=Baseline(mean=0.0, count=6, m2=0.0),
        verdict=Verdict.KEPT,
        judged_ms=NOW - 4 * HOUR,
        cost_ms=MINUTE,
    )
    return msgspec.structs.replace(action, **changes)


def make_segments(
    rates: Sequence[float], since_ms: int, nodes: int = 8, **changes: Any
) -> list[SegmentFacts]:
    """Segments of five minutes, one after the other, with records per second."""
    fields = {"nodes": nodes, "procs": nodes, "micro_batch": 125, "global_batch": 1000} | changes
    return [
        a_segment(
            since=since_ms + index * 5 * MINUTE,
            until=since_ms + (index + 1) * 5 * MINUTE,
            step_seconds=StepSeconds(1, 1000 / rate),
            **fields,
        )
        for index, rate in enumerate(rates)
    ]
