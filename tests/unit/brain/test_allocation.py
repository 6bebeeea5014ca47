"""Division of devices among jobs: against exhaustive search, placement, give-back, prices."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.brain.advisers.advice import Choice
from gangline.brain.allocation import (
    Allocation,
    AllocationJob,
    EntitledGang,
    Option,
    PriceState,
    allocate,
    allocation_advice,
    change_factor,
    divide,
    fair_sizes,
    give_back,
    give_back_advice,
    goodput_of,
    lost_share,
    speedup,
    update_price,
)
from unit.brain.histories import checked


def make_job(
    key: str, devices: int, serial: float = 0.1, high: int = 12, unit: int = 1, **changes: object
) -> AllocationJob:
    """A job of workers with ``unit`` devices, whose goodput follows Amdahl."""
    workers = devices // unit
    choices = tuple(
        choice(n // unit, n / (1 + serial * (n - 1))) for n in range(unit, high + 1, unit)
    )
    values = {"minimum": 1, "maximum": high // unit, "queue": "q", "nodes": ("n",) * workers}
    values |= changes
    return AllocationJob(key=key, workers=workers, devices=unit, choices=choices, **values)  # type: ignore[arg-type]


def choice(workers: int, goodput: float) -> Choice:
    return Choice(value=workers, goodput=goodput, low=goodput, high=goodput)


def one_node(free: int) -> dict[str, int]:
    return {"n": free}


def loss(jobs: Sequence[AllocationJob], sizes: Sequence[int], fair: dict[str, float]) -> float:
    total = 0.0
    for job, size in zip(jobs, sizes, strict=True):
        value = speedup(job, size, fair[job.key])
        total += 1 / value if value else float("inf")
    return total


def test_c1_allocation_is_as_good_as_exhaustive_search() -> None:
    random = np.random.default_rng(5)
    for _ in range(2000):
        jobs = []
        count = int(random.integers(1, 7))
        most = {1: 6, 2: 6, 3: 6, 4: 4}.get(count, 3)
        for index in range(count):
            size = int(random.integers(1, 3))
            goodputs = np.sort(random.uniform(0.5, 4.0, 6))
            jobs.append(
                AllocationJob(
                    key=f"j{index}",
                    workers=size,
                    devices=1,
                    minimum=1,
                    maximum=int(random.integers(size, most + 1)),
                    queue="q",
                    nodes=("n",) * size,
                    rest_s=float(random.uniform(100, 10_000)),
                    choices=tuple(choice(n + 1, float(goodputs[n])) for n in range(6)),
                )
            )
        used = sum(job.used for job in jobs)
        spare = int(random.integers(0, 13 - used))
        entitled = {"q": float(random.integers(used, 13))}
        fair = fair_sizes(jobs, entitled)
        allocation = allocate(jobs, one_node(spare), entitled)
        sizes = [allocation.sizes[job.key] for job in jobs]
        assert sum(sizes) <= used + spare
        possible = [range(job.minimum, job.maximum + 1) for job in jobs]
        losses = [
            {size: loss([job], [size], fair) for size in of_job}
            for job, of_job in zip(jobs, possible, strict=True)
        ]
        best = min(
            sum(map(dict.__getitem__, losses, sizes))
            for sizes in product(*possible)
            if sum(sizes) <= used + spare
        )
        assert loss(jobs, sizes, fair) == pytest.approx(best, rel=1e-9)


@settings(max_examples=200)
@given(
    options=st.lists(
        st.lists(
            st.tuples(st.integers(1, 6), st.floats(0, 10, allow_nan=False)), min_size=1, max_size=4
        ),
        min_size=1,
        max_size=4,
    ),
    capacity=st.integers(0, 14),
)
def test_division_is_exact_for_any_losses(
    options: list[list[tuple[int, float]]], capacity: int
) -> None:
    named = {f"j{i}": [Option(0, *option) for option in group] for i, group in enumerate(options)}
    division = divide(named, capacity)
    possible = [
        sum(option.loss for option in option)
        for option in product(*named.values())
        if sum(option.devices for option in option) <= capacity
    ]
    if division is None:
        assert not possible
        return
    chosen = division.values()
    assert sum(option.devices for option in chosen) <= capacity
    assert sum(option.loss for option in chosen) == pytest.approx(min(possible))


def test_c2_the_least_loss_gives_back_and_only_if_it_suffices() -> None:
    jobs = [
        make_job("bad", 8, serial=0.9, minimum=2, nodes=("a",) * 8),
        make_job("good", 8, serial=0.0, minimum=2, nodes=("b",) * 8),
        make_job("fixed", 8, serial=0.9, minimum=2, nodes=("c",) * 8, fixed=True),
    ]
    nodes = dict.fromkeys("abc", 0)
    gang = EntitledGang(key="team/gang", pods=6, unit=1)
    assert give_back(jobs, nodes, gang) == {"bad": 2}
    both = give_back(jobs, nodes, EntitledGang(key="team/gang", pods=8, unit=1))
    assert both == {"bad": 2, "good": 6}
    assert give_back(jobs, nodes, EntitledGang(key="team/gang", pods=13, unit=1)) is None
    assert give_back(jobs, one_node(8), EntitledGang(key="team/gang", pods=8, unit=1)) == {}


def test_c2_devices_on_other_nodes_do_not_help_a_pod_of_four() -> None:
    jobs = [
        make_job("spread", 4, serial=0.9, nodes=("a", "b", "c", "d")),
        make_job("packed", 4, serial=0.0, minimum=0, nodes=("e",) * 4),
    ]
    nodes = dict.fromkeys("abcd", 0) | {"e": 1}
    sizes = give_back(jobs, nodes, EntitledGang(key="team/gang", pods=1, unit=4))
    assert sizes is not None
    assert sizes["packed"] == 1


def test_c4_shares_follow_the_entitlement_of_queues() -> None:
    jobs = [
        make_job("a", 4, queue="large", high=32),
        make_job("b", 4, queue="small", high=32),
        make_job("c", 4, queue="small", high=32),
    ]
    fair = fair_sizes(jobs, {"large": 24.0, "small": 8.0})
    assert fair == pytest.approx({"a": 24.0, "b": 4.0, "c": 4.0})
    even = [make_job("a", 4, 0.0, 32, queue="large"), make_job("b", 4, 0.0, 32, queue="small")]
    allocation = allocate(even, one_node(24), {"large": 24.0, "small": 8.0})
    sizes = allocation.sizes
    # The sum of fair / size is least where sizes follow the root of the fair shares.
    assert sizes == {"a": 20, "b": 12}


def test_a_job_at_its_largest_size_leaves_its_share_to_its_queue() -> None:
    jobs = [make_job("a", 2, high=3), make_job("b", 2, high=32), make_job("c", 2, queue="other")]
    fair = fair_sizes(jobs, {"q": 20.0})
    assert fair == pytest.approx({"a": 3.0, "b": 17.0, "c": 1.0})


def test_c5_devices_that_no_pod_fits_on_are_not_given() -> None:
    nodes = {"a": 3, "b": 3, "c": 2}
    allocation = allocate([make_job("a", 4, high=12, unit=4)], nodes, {"q": 12.0})
    assert allocation.sizes["a"] == 1
    allocation = allocate([make_job("a", 3, high=12, unit=3)], nodes, {"q": 12.0})
    assert allocation.sizes["a"] == 3


def test_what_does_not_fit_one_job_goes_to_another() -> None:
    jobs = [make_job("a", 4, high=12, unit=4, serial=0.0), make_job("b", 1, serial=0.3)]
    allocation = allocate(jobs, {"x": 3, "y": 3}, {"q": 16.0})
    assert allocation.sizes == {"a": 1, "b": 7}


def test_a_job_near_its_end_keeps_its_size() -> None:
    ending = make_job("a", 2, rest_s=70.0)
    assert change_factor(ending) < 0.1
    allocation = allocate([ending], one_node(8), {"q": 12.0})
    assert allocation.sizes["a"] == 2
    long = make_job("a", 2, rest_s=36_000.0)
    assert allocate([long], one_node(8), {"q": 12.0}).sizes["a"] == 10


def test_a_fixed_job_and_one_without_a_curve_keep_their_sizes() -> None:
    fixed = make_job("a", 2, fixed=True)
    unknown = AllocationJob(key="b", workers=2, devices=1, minimum=1, maximum=8, choices=())
    allocation = allocate([fixed, unknown], one_node(8), {"q": 12.0})
    assert [allocation.sizes[key] for key in "ab"] == [2, 2]


def test_allocations_are_advice_with_sentences() -> None:
    jobs = [make_job("a", 2), make_job("b", 8, serial=0.9, minimum=1)]
    allocation = allocate(jobs, one_node(2), {"q": 12.0})
    advice = allocation_advice(jobs, allocation, 0.4)
    assert advice["a"].reason.code == "SpareDevices"
    assert advice["b"].reason.code == "OthersGainMore"
    gang = EntitledGang(key="team/gang", pods=2, unit=1)
    advice |= give_back_advice(jobs, {"b": 6}, gang)
    assert advice["b"].urgent
    for item in advice.values():
        checked(item)


def test_lost_share_and_goodput_between_sizes() -> None:
    job = make_job("a", 4, serial=0.0, high=12, unit=2)
    assert goodput_of(job, 1.5) == pytest.approx(3.0)
    assert goodput_of(job, 7) is None
    assert lost_share(job, 1) == pytest.approx(0.5)


def test_only_sizes_of_the_choices_are_given_whatever_the_devices_of_a_worker() -> None:
    """Two nodes at a time, of two devices each."""
    choices = tuple(choice(workers, float(workers)) for workers in (2, 4, 6))
    job = AllocationJob(
        key="a", workers=2, devices=2, minimum=2, maximum=6, choices=choices, queue="q"
    )
    allocation = allocate([job], one_node(6), {"q": 12.0})
    advice = allocation_advice([job], allocation, 0.0)["a"]
    assert (advice.was, advice.value) == (2, 4)
    assert give_back([job], one_node(0), EntitledGang(key="g", pods=1, unit=2)) is None


def test_size_that_was_cut_to_what_can_be_placed_is_advised() -> None:
    choices = tuple(choice(workers, float(workers)) for workers in (2, 4, 6))
    job = AllocationJob(key="a", workers=2, devices=1, minimum=2, maximum=6, choices=choices)
    cut = Allocation(sizes={"a": 3}, fair={"a": 2.0}, refused=0.0)
    assert allocation_advice([job], cut, 0.0)["a"].value == 3


def test_the_price_follows_refused_uses_slowly_and_falls_to_zero_when_devices_idle() -> None:
    state = update_price(PriceState(), 0.8, 0, 0)
    assert state.price == pytest.approx(0.8)
    state = update_price(state, 0.0, 0, 600_000)
    assert state.price == pytest.approx(0.8 / np.e)
    state = update_price(state, 0.8, 3, 660_000)
    assert state.price > 0
    state = update_price(state, 0.8, 3, 961_000)
    assert state.price == 0
    state = update_price(state, 0.8, 0, 1_000_000)
    assert 0 < state.price < 0.8
