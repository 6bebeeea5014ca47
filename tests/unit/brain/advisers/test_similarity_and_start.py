"""Which runs a job is compared with, and the values that it starts with."""

import msgspec
import pytest

from brain_records import a_segment
from gangline.api.jobs.training_facts import ModelShapeFacts, SegmentFacts, StepSeconds
from gangline.brain.advisers import start
from gangline.brain.advisers.advice import Confidence, What
from gangline.brain.advisers.similarity import select_similar, similarity_level
from gangline.brain.facts.records import Image, RoleSize, Run
from unit.brain.histories import (
    DAY,
    GIB,
    HOUR,
    NOW,
    a_job,
    a_run,
    a_view,
    asking,
    the,
)

JOB = Run(job=a_job(spec_digest="spec"))
IMAGE_OF_ANOTHER_PROJECT = Image(repository="registry/other")


def model(billions: float, sequence: int | None = None) -> ModelShapeFacts:
    return ModelShapeFacts(params=round(billions * 1e9), sequence=sequence)


GPU = RoleSize(role="worker", since_ms=0, replicas=1, gpus=8, gpu_model="H100")
A100 = msgspec.structs.replace(GPU, gpu_model="A100")
OF_ONE_BILLION = Run(job=a_job(model=model(1.0)))
ON_GPUS = Run(job=a_job(model=model(7.0, 4096), roles=(GPU,)))


def elsewhere(billions: float, sequence: int, gpu: RoleSize = GPU) -> dict[str, object]:
    return {"namespace": "b", "model": model(billions, sequence), "roles": (gpu,)}


@pytest.mark.parametrize(
    ("job", "changes", "level"),
    [
        pytest.param(JOB, {"spec_digest": "spec"}, 0, id="same specification"),
        pytest.param(JOB, {}, 1, id="same family"),
        pytest.param(JOB, {"command_digest": "x"}, 2, id="other command"),
        pytest.param(JOB, {"owner": "bob"}, 2, id="A7: other owner"),
        pytest.param(JOB, {"owner": "bob", "spec_digest": "spec"}, 2, id="A7: owner, same spec"),
        pytest.param(JOB, {"stem": "x"}, None, id="other name, size of the model unknown"),
        pytest.param(JOB, {"kind": "PyTorchJob"}, None, id="other kind"),
        pytest.param(JOB, {"namespace": "b"}, None, id="other namespace"),
        pytest.param(JOB, {"cluster": "b", "spec_digest": "spec"}, None, id="other cluster"),
        pytest.param(JOB, {"image": IMAGE_OF_ANOTHER_PROJECT}, None, id="other image"),
        pytest.param(OF_ONE_BILLION, {"stem": "x", "model": model(1.2)}, 3, id="nearly the size"),
        pytest.param(OF_ONE_BILLION, {"stem": "x", "model": model(1.3)}, None, id="larger model"),
        pytest.param(OF_ONE_BILLION, {"stem": "x"}, None, id="unknown model"),
        pytest.param(ON_GPUS, elsewhere(8.0, 4096), 4, id="nearest model on the same GPU"),
        pytest.param(ON_GPUS, elsewhere(7.0, 16384), None, id="longer sequence"),
        pytest.param(ON_GPUS, elsewhere(8.0, 4096, A100), None, id="other GPU"),
    ],
)
def test_a7_levels_of_similarity(job: Run, changes: dict[str, object], level: int | None) -> None:
    assert similarity_level(job, a_run("past", **changes)) == level


def test_a2_two_runs_are_too_few_where_a_further_level_has_more() -> None:
    job = Run(job=a_job(model=model(1.0)))
    family = [a_run(f"f{i}", model=model(1.0)) for i in range(2)]
    others = [a_run(f"o{i}", stem="x", model=model(1.1)) for i in range(12)]
    chosen = select_similar(job, [*others, *family], NOW)
    assert chosen.level == 3
    assert len(chosen.runs) == 14
    assert {run.job.uid for run in chosen.runs[:2]} == {"f0", "f1"}
    third = select_similar(job, [*others, *family, a_run("f2")], NOW)
    assert (third.level, len(third.runs)) == (1, 3)


def test_one_run_of_the_same_specification_is_enough() -> None:
    chosen = select_similar(JOB, [a_run("p", spec_digest="spec")], NOW)
    assert (chosen.level, len(chosen.runs)) == (0, 1)


def test_a3_nothing_similar_and_no_shape_gives_no_start_values() -> None:
    job = a_job(workers_min=1, workers_max=8, workers_asked=2, roles=(asking(None),))
    assert start.advise(a_view(job=job)) == []


def test_a4_shape_of_a_model_gives_a_prior_of_low_confidence() -> None:
    shape = ModelShapeFacts(layers=32, hidden=4096, heads=32, sequence=4096, vocab=32000)
    role = RoleSize(role="worker", since_ms=0, replicas=2, gpus=8)
    advice = the(start.advise(a_view(job=a_job(model=shape, roles=(role,)))), What.MEMORY)
    assert advice.confidence is Confidence.LOW
    assert advice.reason.code == "SizingPrior"
    assert advice.reason.arguments["parameters"] == pytest.approx(6.6e9, rel=0.05)
    assert advice.low is not None
    assert advice.value is not None
    assert advice.low < advice.value
    plenty = msgspec.structs.replace(role, memory_bytes=128 * GIB)
    assert start.advise(a_view(job=a_job(model=shape, roles=(plenty,)))) == []


def test_started_job_gets_no_start_values() -> None:
    shape = model(7.0)
    assert start.advise(a_view(job=a_job(model=shape, roles=(asking(None),)))) != []
    started = a_job(model=shape, roles=(asking(None),), started_ms=NOW - HOUR)
    assert start.advise(a_view(job=started)) == []


def segment_at(procs: int, step_s: float, batch: int = 256) -> SegmentFacts:
    return a_segment(
        round=procs, since=NOW - DAY, until=NOW - DAY + HOUR, nodes=procs, procs=procs,
        micro_batch=batch // procs, accumulation=1, global_batch=batch, steps=500,
        step_seconds=StepSeconds(1, step_s), compute_seconds=None, device_model="",
    )  # fmt: skip


def scaling_run(uid: str, procs: int, exchange_s: float) -> Run:
    """Computing takes 1 s in all, shared by the processes; an exchange takes a constant time."""
    step = 1.0 / procs + (exchange_s if procs > 1 else 0.0)
    role = RoleSize(role="worker", since_ms=0, replicas=procs)
    return a_run(uid, segments=[segment_at(procs, step)], roles=(role,))


ELASTIC = {"workers_min": 1, "workers_max": 16, "workers_asked": 2}


def test_start_count_follows_the_model_of_the_family() -> None:
    good = [scaling_run(f"r{n}", n, 0.005) for n in (1, 2, 4, 8)]
    poor = [scaling_run(f"r{n}", n, 0.5) for n in (1, 2, 4, 8)]
    many = the(start.advise(a_view(good, job=a_job(**ELASTIC))), What.WORKERS)
    assert many.reason.code == "BestGoodput"
    assert many.value == 16  # twice the largest that was seen
    assert many.gain is not None
    assert many.gain > 1.0
    few = the(start.advise(a_view(poor, job=a_job(**ELASTIC))), What.WORKERS)
    assert few.value == 1


def test_w6_start_count_stays_within_the_sizes_that_were_seen() -> None:
    runs = [
        a_run(
            f"r{batch}",
            segments=[segment_at(4, batch / 1024, batch)],
            roles=(RoleSize(role="worker", since_ms=0, replicas=4),),
        )
        for batch in (128, 256, 512)
    ]
    advice = the(start.advise(a_view(runs, job=a_job(**ELASTIC))), What.WORKERS)
    assert advice.reason.code == "KeptCount"
    assert advice.value == 4


def test_count_that_runs_kept_respects_the_unit_and_the_bounds() -> None:
    runs = [
        a_run(f"r{i}", roles=(RoleSize(role="worker", since_ms=0, replicas=n),))
        for i, n in enumerate([5, 7, 7, 9, 30])
    ]
    job = a_job(workers_min=2, workers_max=12, workers_asked=2, unit=4)
    advice = the(start.advise(a_view(runs, job=job)), What.WORKERS)
    assert advice.value == 8
    fixed = a_job(workers_min=4, workers_max=4, workers_asked=4)
    assert start.advise(a_view(runs, job=fixed)) == []
