"""Data loader, micro-batch and global batch."""

from collections.abc import Sequence

import msgspec
import pytest

from gangline.api.jobs.training_facts import SegmentFacts, StepSeconds
from gangline.brain.advisers.advice import Advice, Confidence, What
from gangline.brain.advisers.batch import advise_batch
from gangline.brain.advisers.view import AdviserView, DevicePeak
from gangline.brain.facts.records import PodRun, Run, Wishes
from gangline.brain.models.throughput import fit_throughput, observations
from unit.brain.histories import a_job, asking, checked

GIB = 2**30


def make_segments(
    data: float = 0.0, noise: float | None = None, loaders: int | None = None
) -> list[SegmentFacts]:
    """Four ranks on two nodes, shares of 48 records; a rank runs 6 micro-steps of 8, or 4 of 12."""
    segments = []
    for index, micro in enumerate([12, 12, 12, 8, 8, 8]):
        step_s = 48 / micro * (0.2 + 0.02 * micro)
        segments.append(
            SegmentFacts(
                round=index, since=index * 300_000, until=(index + 1) * 300_000,
                nodes=2, procs=4, micro_batch=micro, accumulation=48 // micro,
                global_batch=192, steps=500, step_seconds=StepSeconds(1, step_s),
                compute_seconds=0.9 * step_s, sync_seconds=0.1 * step_s, data_seconds=data * step_s,
                grad_sqr=None if noise is None else 1.0, grad_var=noise, loader_workers=loaders,
            )
        )  # fmt: skip
    return segments


def make_view(
    segments: Sequence[SegmentFacts], *, cpu_millis: int = 12_000, **changes: object
) -> AdviserView:
    job = a_job(roles=(asking(None, cpu_millis, replicas=2),))
    pods = tuple(
        PodRun(role="worker", rank=n, number=0, node=f"n{n}", started_ms=0, peak_memory_bytes=GIB)
        for n in range(2)
    )
    view = AdviserView(now_ms=2_000_000, run=Run(job=job, segments=tuple(segments), pods=pods))
    return msgspec.structs.replace(view, **changes)


def advice_for(view: AdviserView, what: What) -> list[Advice]:
    model = fit_throughput(observations(view.run.segments, view.now_ms))
    return [checked(item) for item in advise_batch(view, model) if item.what is what]


@pytest.mark.parametrize(
    ("waits", "loaders", "values"),
    [
        pytest.param(0.3, 3, [5], id="T1: half as many more"),
        pytest.param(0.3, 5, [6], id="T1: requests limit"),
        pytest.param(0.3, 6, [], id="T1: requests are used"),
        pytest.param(0.3, None, [], id="not known"),
        pytest.param(0.09, 4, [], id="nothing waits"),
    ],
)
def test_loader_processes(waits: float, loaders: int | None, values: list[int]) -> None:
    view = make_view(make_segments(data=waits, loaders=loaders))
    assert [item.value for item in advice_for(view, What.LOADER_WORKERS)] == values


def peak(batch: int, used: float, model: str = "A100", *, oom: bool = False) -> DevicePeak:
    return DevicePeak(
        gpu_model=model,
        micro_batch=batch,
        peak_bytes=round(used * 40 * GIB),
        memory_bytes=40 * GIB,
        oom=oom,
    )


def test_t2_the_next_divisor_that_fits_is_advised() -> None:
    view = make_view(make_segments(), device_peaks=(peak(8, 0.60), peak(12, 0.75)))
    (advice,) = advice_for(view, What.MICRO_BATCH)
    assert (advice.was, advice.value) == (12, 16)
    assert advice.reason.arguments["predicted"] == pytest.approx(0.90)
    assert advice.gain is not None
    assert advice.gain > 0


@pytest.mark.parametrize(
    "peaks",
    [
        pytest.param((peak(12, 0.75),), id="one measurement"),
        pytest.param((peak(8, 0.70), peak(12, 0.86)), id="too little is free"),
        pytest.param((peak(8, 0.50), peak(12, 0.80)), id="more than 0.92"),
        pytest.param((peak(8, 0.6), peak(16, 0.95, oom=True), peak(12, 0.75)), id="ran out before"),
    ],
)
def test_t2_what_may_not_fit_is_not_advised(peaks: tuple[DevicePeak, ...]) -> None:
    assert advice_for(make_view(make_segments(), device_peaks=peaks), What.MICRO_BATCH) == []


def test_t2_without_a_smaller_one_that_ran_the_half_is_advised() -> None:
    view = make_view(make_segments(), device_peaks=(peak(24, 1.0, oom=True),))
    (advice,) = advice_for(view, What.MICRO_BATCH)
    assert (advice.was, advice.value, advice.confidence) == (24, 12, Confidence.LOW)
    assert advice_for(view, What.MEMORY) == []


def test_t2_a_job_that_runs_with_less_since_then_is_left_alone() -> None:
    segments = make_segments()
    short = msgspec.structs.replace(peak(64, 1.0, oom=True), at_ms=segments[-1].until - 1)
    assert advice_for(make_view(segments, device_peaks=(short,)), What.MICRO_BATCH) == []
    again = msgspec.structs.replace(short, at_ms=segments[-1].until + 1)
    assert advice_for(make_view(segments, device_peaks=(again,)), What.MICRO_BATCH) != []


def test_t3_each_device_model_has_a_configuration() -> None:
    peaks = (peak(8, 0.60), peak(12, 0.75), peak(6, 0.5, "V100"), peak(8, 0.6, "V100"))
    advice = advice_for(make_view(make_segments(), device_peaks=peaks), What.MICRO_BATCH)
    assert {item.target: item.value for item in advice} == {"A100": 16, "V100": 12}
    assert len({item.key for item in advice}) == 2


def noisy_view(noise: float | None, **wishes: object) -> AdviserView:
    slow_exchange = [
        msgspec.structs.replace(
            s,
            step_seconds=StepSeconds(1, 2 * s.step_seconds.mean),
            sync_seconds=s.step_seconds.mean,
        )
        for s in make_segments(noise=noise)
    ]
    view = make_view(slow_exchange)
    values = {"max_global_batch": 4 * 192, "learning_rate_rule": "adascale"} | wishes
    job = msgspec.structs.replace(view.run.job, wishes=Wishes(**values))  # type: ignore[arg-type]
    return msgspec.structs.replace(view, run=msgspec.structs.replace(view.run, job=job))


def test_w14_a_larger_global_batch_with_a_rule_where_noise_allows_it() -> None:
    view = noisy_view(10.0 * 192)
    (advice,) = advice_for(view, What.GLOBAL_BATCH)
    assert advice.value is not None
    assert 192 < advice.value <= 4 * 192
    assert advice.reason.arguments["rule"] == "adascale"


@pytest.mark.parametrize(
    ("noise", "wishes"),
    [
        (None, {}),
        (1920.0, {"max_global_batch": None}),
        (1920.0, {"learning_rate_rule": ""}),
        (1.0, {}),
    ],
)
def test_w14_never_without_noise_a_bound_and_a_rule(noise: float | None, wishes: dict) -> None:
    assert advice_for(noisy_view(noise, **wishes), What.GLOBAL_BATCH) == []


def test_w14_global_batch_shrinks_again_where_the_noise_has_fallen() -> None:
    """The user began with 192 records; four times as many lose by now."""
    view = noisy_view(20.0)
    grown = [
        msgspec.structs.replace(s, global_batch=4 * 192, accumulation=(s.accumulation or 1) * 4)
        for s in view.run.segments[-6:]
    ]
    run = msgspec.structs.replace(view.run, segments=(*view.run.segments[:6], *grown))
    (advice,) = advice_for(msgspec.structs.replace(view, run=run), What.GLOBAL_BATCH)
    assert advice.reason.code == "NoiseNeedsSmallerBatch"
    assert advice.value is not None
    assert 192 <= advice.value < 4 * 192
