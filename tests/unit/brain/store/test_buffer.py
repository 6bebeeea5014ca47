"""The buffer of facts: bounded, merged, and nothing is lost between taking and discarding."""

from brain_records import a_job, a_running_job, a_segment
from gangline.brain.facts.records import Outcome, Run
from gangline.brain.store.batch import MAX_FACTS, Fact, FactBuffer, SegmentFact, batches, facts_of


def segment(number: int, **changes: int) -> SegmentFact:
    return SegmentFact("cluster", "uid-1", a_segment(number, **changes))


def test_observations_of_one_thing_are_one_fact() -> None:
    buffer = FactBuffer()
    buffer.put([a_running_job(1), segment(1), a_job(1), segment(1)])
    [job, fact] = buffer.take(10)
    assert getattr(job, "outcome", None) is Outcome.SUCCEEDED
    assert fact == segment(1)


def test_ten_thousand_facts_are_kept() -> None:
    buffer = FactBuffer()
    buffer.put(segment(n) for n in range(MAX_FACTS))
    assert (len(buffer), buffer.dropped) == (MAX_FACTS, 0)


def test_full_buffer_drops_its_oldest_facts_and_counts_them_but_no_job() -> None:
    buffer = FactBuffer(capacity=3)
    buffer.put([a_job(1), segment(1), segment(2), segment(3), segment(4)])
    assert buffer.take(9) == [a_job(1), segment(3), segment(4)]
    assert buffer.dropped == 2


def test_fact_that_changed_while_it_was_written_stays() -> None:
    buffer = FactBuffer()
    buffer.put([segment(1), segment(2)])
    taken = buffer.take(10)
    buffer.put([segment(1, steps=999)])
    buffer.discard(taken)
    assert buffer.take(10) == [segment(1, steps=999)]


def test_batches_have_jobs_first_and_at_most_five_hundred_rows() -> None:
    facts: list[Fact] = [segment(n) for n in range(1200)]
    facts += [a_job(n) for n in range(300)]
    made = list(batches(facts))
    assert sum(map(len, made)) == len(facts)
    assert max(map(len, made)) <= 500
    assert made[0][0] == a_job(0)


def test_facts_of_a_run_name_their_job() -> None:
    facts = list(facts_of(Run(job=a_job(1), segments=(a_segment(1),))))
    assert facts == [a_job(1), segment(1)]
