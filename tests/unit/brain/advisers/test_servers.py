"""Parameter servers: one hot, all hot, growing, idle, unknown."""

from collections.abc import Sequence

import msgspec
import pytest

from gangline.api.jobs.training_facts import SegmentFacts, StepSeconds
from gangline.brain.advisers.advice import Advice, What
from gangline.brain.advisers.servers import advise_servers
from gangline.brain.advisers.view import AdviserView, ClusterView, ServerUse
from gangline.brain.facts.records import NodeCapacity, Run
from unit.brain.histories import a_job, checked

GIB = 2**30


def server(rank: int, shares: Sequence[float], **changes: object) -> ServerUse:
    use = ServerUse(
        rank=rank,
        node=f"n{rank}",
        cpu_limit_millis=10_000,
        memory_limit_bytes=16 * GIB,
        cpu_millis=tuple(round(10_000 * share) for share in shares),
    )
    return msgspec.structs.replace(use, **changes)


HOT, COOL = server(0, [0.97] * 5), server(1, [0.3] * 5)


def make_view(
    servers: Sequence[ServerUse], largest: int = 64_000, **changes: object
) -> AdviserView:
    job = a_job(strategy="ps", workers_min=2)
    segment = SegmentFacts(
        round=0, since=0, until=1, nodes=40, procs=40, micro_batch=8, steps=9,
        step_seconds=StepSeconds(1, 1e-06),
    )  # fmt: skip
    nodes = (NodeCapacity(name="n0", cpu_millis=largest, memory_bytes=128 * GIB),)
    view = AdviserView(
        now_ms=0,
        run=Run(job=job, segments=(segment,)),
        cluster=ClusterView(nodes=nodes),
        servers=tuple(servers),
        remaining_s=6 * 3600.0,
    )
    return msgspec.structs.replace(view, **changes)


def advise(view: AdviserView) -> list[Advice]:
    return [checked(item) for item in advise_servers(view)]


def test_p2_even_load_gets_more_cores_else_fewer_workers() -> None:
    servers = [server(n, [0.95] * 5) for n in range(3)]
    (advice,) = advise(make_view(servers))
    assert (advice.what, advice.rank) == (What.PS_CPU, None)
    (advice,) = advise(make_view(servers, largest=12_000))
    assert (advice.what, advice.was, advice.value) == (What.WORKERS, 40, 35)


@pytest.mark.parametrize(
    "servers",
    [
        pytest.param([server(0, [0.97, 0.97, 0.5, 0.5, 0.5]), COOL], id="P1: two hot minutes"),
        pytest.param([HOT, server(1, [0.3] * 5, cpu_limit_millis=None)], id="P3: no limit"),
        pytest.param([HOT, server(1, [0.3] * 5, cpu_millis=())], id="P3: no use"),
        pytest.param([server(0, [0.1] * 60, cpu_limit_millis=None)], id="P3: idle, no limit"),
        pytest.param([server(0, [0.1] * 60, cpu_millis=())], id="P3: idle, no use"),
    ],
)
def test_servers_that_are_neither_hot_nor_idle(servers: list[ServerUse]) -> None:
    assert advise(make_view(servers)) == []


def test_p4_growing_memory_is_raised_before_it_ends() -> None:
    uses = tuple(round(12 * GIB + GIB * minute / 60) for minute in range(60))
    view = make_view([server(0, [0.5] * 5, memory_bytes=uses)])
    (advice,) = advise(view)
    assert advice.what is What.PS_MEMORY
    assert advice.reason.arguments["left"] == pytest.approx(3 * 3600, rel=0.05)
    assert advice.value == pytest.approx(19 * 1.15 * GIB, rel=0.05)
    soon = msgspec.structs.replace(view, remaining_s=3600.0)
    assert advise(soon) == []


def test_idle_servers_are_smaller_from_their_next_move_on() -> None:
    idle = [server(n, [0.2] * 60) for n in range(2)]
    (advice,) = advise(make_view(idle))
    assert advice.reason.code == "IdleServers"
    assert advice.value is not None
    assert advice.value < 10_000
    assert advise(make_view(idle, remaining_s=1800.0)) == []
    assert advise(make_view([server(0, [0.2] * 59)])) == []


def with_job(view: AdviserView, **changes: object) -> AdviserView:
    job = msgspec.structs.replace(view.run.job, **changes)
    return msgspec.structs.replace(view, run=msgspec.structs.replace(view.run, job=job))


def test_choices_end_at_the_advised_workers() -> None:
    view = make_view([server(0, [0.2] * 5)])
    (advice,) = advise(with_job(view, workers_min=40, workers_max=400))
    assert advice.value is not None
    assert 40 < advice.value < (advice.high or 0)
    assert advice.choices[-1].value == advice.value


def test_other_jobs_have_no_servers() -> None:
    assert advise(with_job(make_view([HOT, COOL]), strategy="allreduce")) == []
