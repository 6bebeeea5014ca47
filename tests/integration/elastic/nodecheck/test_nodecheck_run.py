"""The node check with real processes: matrices and all-reduce over gloo."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.elastic.nodecheck.interpreters import idle_interpreters
from gangline.elastic.nodecheck.result import CheckWorkload
from gangline.elastic.nodecheck.run import (
    WORKER,
    CheckReport,
    CheckSettings,
    LocalExchange,
    run_check,
)
from gangline.elastic.protocol.messages import CheckRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKLOAD = CheckWorkload(
    matrix_size=64, matrix_repeats=2, collective_bytes=4096, collective_repeats=2
)

BROKEN = """
import os, time
from gangline.elastic.nodecheck import worker
tested = worker.Tester.compute
def compute(self):
    {fault}
worker.Tester.compute = compute
main = worker.main
"""


async def checked(
    nodes: int,
    modules: dict[int, str],
    *,
    local_world_size: int = 1,
    all_together: bool = False,
) -> list[CheckReport]:
    exchange = LocalExchange()

    async def one(node: int) -> CheckReport:
        settings = CheckSettings(
            request=CheckRequest(node_id=node, nodes=nodes, all_together=all_together),
            local_world_size=local_world_size,
            workload=WORKLOAD,
            module=modules.get(node, WORKER),
        )
        async with idle_interpreters(local_world_size) as interpreters:
            return await run_check(settings, exchange, interpreters)

    return await asyncio.gather(*(one(node) for node in range(nodes)))


Faulty = Callable[[str], str]


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faulty:
    """Write a module that tests as others do, but for a fault."""

    def write(fault: str) -> str:
        (tmp_path / "broken.py").write_text(BROKEN.format(fault=fault))
        monkeypatch.syspath_prepend(tmp_path)
        return "broken"

    return write


async def test_healthy_processes_of_a_node_pass_and_are_measured() -> None:
    [report] = await checked(1, {}, local_world_size=2)
    assert report.verdict.passed
    [outcome] = report.results
    assert outcome.compute_s > 0
    assert outcome.bandwidth == pytest.approx(4096 / outcome.collective_s, rel=1)
    assert outcome.device.startswith("cpu process")


async def test_a_node_that_fails_is_found_and_the_others_train_on(
    faulty: Faulty,
) -> None:
    module = faulty("raise RuntimeError('the device fell off the bus')")
    reports = await checked(4, {2: module}, all_together=True)
    assert [one.verdict.passed for one in reports] == [True, True, False, True]
    faulty_nodes = reports[0].verdict.faulty
    assert [*faulty_nodes] == [2]
    assert "node 2 failed compute on cpu process 0" in faulty_nodes[2]
    assert "the device fell off the bus" in faulty_nodes[2]
    assert len(reports[0].results) >= 2
