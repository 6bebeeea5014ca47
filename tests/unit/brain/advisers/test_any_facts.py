"""Advisers on arbitrary facts: no error, no number that is not one, and no rule that is broken."""

import math
from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.api.jobs.training_facts import (
    DISTURBED,
    GOOD,
    WARM_UP,
    ModelShapeFacts,
    SegmentFacts,
    StepSeconds,
)
from gangline.brain.advisers import rightsize, start
from gangline.brain.advisers.advice import Advice, What
from gangline.brain.advisers.similarity import is_larger, select_similar
from gangline.brain.advisers.view import AdviserView
from gangline.brain.advisers.workers import advise_workers
from gangline.brain.facts.belief import believe
from gangline.brain.facts.records import MemorySample, Outcome, PodRun, RoleSize, Run
from gangline.brain.models.throughput import fit_throughput, observations
from unit.brain.histories import GIB, HOUR, NOW, a_job, a_view

ODD = (0.0, -1.0, math.nan, math.inf, 1e300)


def maybe(random: Random, value: object, share: float = 0.2) -> object:
    return None if random.random() < share else value


def odd_time(random: Random) -> float:
    """Microseconds: mostly usual, sometimes impossible."""
    return random.choice(ODD) if random.random() < 0.1 else 10 ** random.uniform(2, 8)


def a_random_pod(random: Random) -> PodRun:
    amounts = [0, 1, 2**42, *(round(random.uniform(4, 16) * GIB) for _ in range(12))]
    millis = [0, 10**7, *(random.randrange(50, 9000) for _ in range(10))]
    values: dict[str, object] = {
        "role": random.choice(["worker", "worker", "master"]),
        "rank": random.randrange(4),
        "number": random.randrange(3),
        "started_ms": NOW - random.randrange(40 * 24) * HOUR,
        "ended_ms": maybe(random, NOW - random.randrange(-1, 30 * 24) * HOUR),
        "oom": random.random() < 0.15,
        "limit_memory_bytes": maybe(random, random.choice(amounts)),
        "peak_memory_bytes": maybe(random, random.choice(amounts)),
        "cpu_p50_millis": maybe(random, random.choice(millis)),
        "cpu_p95_millis": maybe(random, random.choice(millis)),
        "cpu_max_millis": maybe(random, random.choice(millis)),
        "samples": random.choice([0, 1, 60, 10**7]),
    }
    return PodRun(**values)  # type: ignore[arg-type]


def a_random_segment(random: Random) -> SegmentFacts:
    values: dict[str, object] = {
        "round": random.randrange(9),
        "since": NOW - random.randrange(1, 9000) * HOUR,
        "until": NOW - random.randrange(-5, 9000) * HOUR,
        "nodes": random.randrange(9),
        "procs": random.choice([0, 1, 2, 4, 8, 16, 64]),
        "micro_batch": maybe(random, random.choice([0, 1, 16, 32])),
        "accumulation": maybe(random, random.randrange(4)),
        "global_batch": maybe(random, random.choice([0, 64, 512])),
        "steps": random.choice([0, 1, 500]),
        "step_seconds": StepSeconds(1, odd_time(random)),
        "compute_seconds": maybe(random, odd_time(random)),
        "sync_seconds": maybe(random, odd_time(random)),
        "data_seconds": maybe(random, odd_time(random)),
        "quality": random.choice([GOOD, GOOD, GOOD, WARM_UP, DISTURBED]),
    }
    return SegmentFacts(**values)  # type: ignore[arg-type]


def a_random_role(random: Random, role: str) -> RoleSize:
    return RoleSize(
        role=role,
        since_ms=NOW - random.randrange(99) * HOUR,
        replicas=random.choice([0, 1, 4, 16]),
        cpu_millis=random.choice([None, 0, 100, 4000, 64_000]),
        memory_bytes=random.choice([None, 0, GIB, 12 * GIB, 64 * GIB]),
        gpus=random.choice([0, 1, 8]),
    )


def a_random_run(random: Random, uid: str) -> Run:
    job = a_job(
        uid,
        outcome=random.choice([*Outcome, *[Outcome.SUCCEEDED] * 12]),
        complete=random.random() < 0.9,
        started_ms=maybe(random, NOW - random.randrange(30 * 24) * HOUR),
        finished_ms=maybe(random, NOW - random.randrange(-1, 30 * 24) * HOUR, 0.1),
        workers_min=random.choice([None, 0, 1, 2]),
        workers_max=random.choice([None, 0, 1, 8, 64]),
        workers_asked=random.choice([None, 0, 2, 8]),
        unit=random.choice([0, 1, 1, 4]),
        roles=tuple(a_random_role(random, role) for role in random.choice(ROLES)),
        model=random.choice([None, ModelShapeFacts(params=10**9)]),
        owner=random.choice(["ada", "ada", "bob"]),
    )
    pods = tuple(a_random_pod(random) for _ in range(random.randrange(7)))
    # The collector drops impossible segments.
    drawn = (believe(a_random_segment(random), NOW)[0] for _ in range(random.randrange(9)))
    segments = tuple(segment for segment in drawn if segment is not None)
    return Run(job=job, pods=pods, segments=segments)


ROLES = [(), ("worker",), ("worker",), ("worker", "worker", "master")]


def a_random_view(seed: int) -> AdviserView:
    random = Random(seed)
    own = a_random_run(random, "new")
    past = [a_random_run(random, f"r{index}") for index in range(random.randrange(9))]
    begin = NOW - 30 * 60_000
    slope = random.choice([0, GIB // 10])
    samples = [
        MemorySample(
            role="worker",
            rank=0,
            at_ms=begin + minute * 60_000,
            memory_bytes=minute * slope + random.randrange(2**30),
        )
        for minute in range(random.choice([0, 3, 30]))
    ]
    base = a_view(
        own=own,
        largest_gib=random.choice([None, 0.0, 16.0, 512.0]),
        memory=samples,
        remaining_s=random.choice([None, 0.0, 3600.0, math.inf]),
        price=random.choice([0.0, 0.5, 1.0, 7.0]),
    )
    return msgspec.structs.replace(base, similar=select_similar(own, past, NOW))


def check(view: AdviserView, advice: Advice) -> None:
    for number in (advice.was, advice.value, advice.low, advice.high, advice.gain):
        assert number is None or math.isfinite(number)
    for argument in advice.reason.arguments.values():
        assert not isinstance(argument, float) or math.isfinite(argument)
    if advice.what in (What.MEMORY, What.CPU, What.WORKERS):
        assert advice.value is not None
        assert advice.value > 0  # 0 is never a size (B9)
    if advice.low is not None and advice.high is not None and advice.value is not None:
        assert advice.low <= advice.high
    lowered = advice.was is not None and advice.value is not None and advice.value < advice.was
    if advice.what in (What.MEMORY, What.CPU) and lowered:
        assert view.similar.runs
        assert view.similar.level <= 1
        assert not is_larger(view.run, view.similar.runs)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32))
def test_b10_any_facts_give_finite_positive_numbers_and_lower_only_on_good_evidence(
    seed: int,
) -> None:
    view = a_random_view(seed)
    for advice in [*rightsize.advise(view), *start.advise(view)]:
        check(view, advice)
    model = fit_throughput(observations(view.run.segments, NOW))
    for advice in advise_workers(view, model):
        check(view, advice)
