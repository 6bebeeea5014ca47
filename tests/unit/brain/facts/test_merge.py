"""Merging observations: the result does not depend on their order, nor on repetition (G6)."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brain_records import a_job, a_node_speed, a_pod, a_running_job, a_segment
from gangline.api.jobs.training_facts import ModelShapeFacts, StepSeconds
from gangline.brain.facts.records import Outcome, RoleSize, merge

FEW = st.integers(0, 3)
MAYBE = st.none() | FEW
WORD = st.sampled_from(["", "a", "b"])

JOBS = st.builds(
    lambda **changes: a_job(1, **changes),
    submitted_ms=FEW,
    started_ms=MAYBE,
    finished_ms=MAYBE,
    outcome=st.sampled_from(Outcome),
    cause=WORD,
    owner=WORD,
    restarts=FEW,
    complete=st.booleans(),
    observed_ms=FEW,
    roles=st.lists(
        st.builds(RoleSize, role=WORD, since_ms=FEW, replicas=FEW, memory_bytes=MAYBE), max_size=3
    ).map(tuple),
    model=st.none() | st.builds(ModelShapeFacts, params=MAYBE, layers=MAYBE),
)
PODS = st.builds(
    a_pod,
    started_ms=FEW,
    ended_ms=MAYBE,
    oom=st.booleans(),
    cause=WORD,
    peak_memory_bytes=MAYBE,
    cpu_p50_millis=MAYBE,
    cpu_max_millis=MAYBE,
    samples=FEW,
)
SEGMENTS = st.builds(
    a_segment,
    until=FEW,
    steps=FEW,
    step_seconds=st.builds(StepSeconds, st.just(1), st.floats(1, 3)),
)
SPEEDS = st.builds(a_node_speed, jobs=FEW, observed_ms=FEW, score=st.floats(1, 3))
MERGES = [
    pytest.param(JOBS, id="jobs"),
    pytest.param(PODS, id="pod runs"),
    pytest.param(SEGMENTS, id="segments"),
    pytest.param(SPEEDS, id="speeds of nodes"),
]


@pytest.mark.parametrize("records", MERGES)
@given(data=st.data())
def test_merge_is_associative_commutative_and_idempotent(
    records: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    # As the writer does it: a record alone is merged with itself.
    a, b, c = (merge(drawn, drawn) for drawn in (data.draw(records) for _ in range(3)))
    assert merge(a, a) == a
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(merge(a, b), a) == merge(a, b)


def test_end_counts_more_than_a_later_record_that_does_not_know_it() -> None:
    ended = a_job(1, observed_ms=5)
    stale = a_running_job(1, observed_ms=9)
    assert merge(stale, ended).outcome is Outcome.SUCCEEDED


def test_deletion_of_a_job_that_succeeded_leaves_it_succeeded() -> None:
    deleted = a_job(1, outcome=Outcome.DELETED, observed_ms=99)
    assert merge(a_job(1), deleted).outcome is Outcome.SUCCEEDED


def test_job_that_was_watched_to_its_end_stays_complete() -> None:
    relisted = a_job(1, complete=False, observed_ms=99)
    assert merge(a_job(1), relisted).complete


def test_running_job_is_not_complete() -> None:
    job = a_running_job(1, complete=True)
    assert not merge(job, job).complete


def test_later_record_of_a_running_job_counts_and_what_grows_stays() -> None:
    early = a_running_job(1, observed_ms=1, workers_asked=4, restarts=3)
    late = a_running_job(1, observed_ms=2, workers_asked=8, restarts=0)
    merged = merge(late, early)
    assert (merged.workers_asked, merged.restarts) == (8, 3)


def test_peak_of_a_pod_run_never_falls() -> None:
    high = a_pod(ended_ms=None, peak_memory_bytes=10, samples=1)
    low = a_pod(peak_memory_bytes=5, samples=9)
    merged = merge(high, low)
    assert (merged.peak_memory_bytes, merged.ended_ms) == (10, low.ended_ms)


def test_unknown_peak_does_not_replace_a_known_one() -> None:
    measured = a_pod(peak_memory_bytes=5)
    unknown = msgspec.structs.replace(measured, peak_memory_bytes=None, samples=99)
    assert merge(measured, unknown).peak_memory_bytes == 5
