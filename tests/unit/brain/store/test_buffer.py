"""The buffer of facts: bounded, merged, and nothing is lost between taking and discarding."""

from brain_records import a_job, a_running_job, a_segment, job_fact
from gangline.brain.facts.records import Outcome
from gangline.brain.store.context import Fact, FactBuffer


def segment(number: int, **changes: int) -> Fact:
    return Fact("cluster", "uid-1", a_segment(number, **changes))


def test_observations_of_one_thing_are_one_fact() -> None:
    buffer = FactBuffer()
    buffer.put([job_fact(a_running_job(1)), segment(1), job_fact(a_job(1)), segment(1)])
    [job, fact] = buffer.take(10)
    assert getattr(job.record, "outcome", None) is Outcome.SUCCEEDED
    assert fact == segment(1)


def test_full_buffer_drops_its_oldest_facts_and_counts_them_but_no_job() -> None:
    buffer = FactBuffer(capacity=3)
    buffer.put([job_fact(a_job(1)), segment(1), segment(2), segment(3), segment(4)])
    assert buffer.take(9) == [job_fact(a_job(1)), segment(3), segment(4)]
    assert buffer.dropped == 2


def test_fact_that_changed_while_it_was_written_stays() -> None:
    buffer = FactBuffer()
    buffer.put([segment(1), segment(2)])
    taken = buffer.take(10)
    buffer.put([segment(1, steps=999)])
    buffer.discard(taken)
    assert buffer.take(10) == [segment(1, steps=999)]
