"""Progress reports of the present and the last attempt of a node."""

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gangline.elastic.agent import local_workers
from gangline.elastic.agent.hang_detector import RankStack
from gangline.elastic.agent.local_workers import LocalWorkers, RequestedSave
from gangline.elastic.agent.logs import WorkerFiles
from gangline.elastic.agent.membership.master_messages import EvictionSave
from gangline.elastic.agent.rendezvous import WorldSpec
from gangline.elastic.agent.settings import AgentSettings, WorkerCommand
from gangline.elastic.progress import PROGRESS_VARIABLE, StepReporter
from gangline.elastic.protocol import messages as msg
from gangline.elastic.save_request import SaveOrders, takes_orders


def group(folder: Path) -> Any:
    """A worker group of this process."""
    folder.mkdir()
    files = WorkerFiles(None, None, (), folder / "error.json", folder / "stacks.txt")
    worker = SimpleNamespace(files=files, process=SimpleNamespace(pid=os.getpid()))
    return SimpleNamespace(workers=[worker], exits=list, epoch=1)


def reporter(of: Any) -> StepReporter:
    [worker] = of.workers
    return StepReporter({"GANGLINE_PROGRESS_FILE": str(worker.files.progress_file)})


def world(attempt: int) -> WorldSpec:
    return WorldSpec(attempt, 0, 1, 0, 1, "host", 20_000, round=3)


def test_last_report_holds_steps_written_until_it_is_requested(tmp_path: Path) -> None:
    workers = LocalWorkers(AgentSettings(WorkerCommand((), True, "train.py"), 1), {})
    assert (workers.report().round, workers.report().step) == (0, None)
    first, second = group(tmp_path / "0"), group(tmp_path / "1")
    steps = reporter(first)
    workers.begin_attempt(first, world(0))
    steps.report_step(7)
    assert (workers.report().step, workers.report().usage is None) == (7, False)
    workers.end_attempt()
    steps.report_step(8)  # a worker may finish a step before the signal reaches it
    report = workers.report()
    assert (report.round, report.attempt, report.step) == (3, 0, 8)
    assert report.usage is not None, "the last one that was measured"
    steps.report_step(9)
    assert workers.report() is report, "it is read once"
    workers.begin_attempt(second, world(1))
    report = workers.report()
    assert (report.attempt, report.step) == (1, None)


async def test_stacks_are_collected_once_in_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RankStack] = []

    async def rank_stacks(*_: object) -> list[RankStack]:
        seen.append(RankStack(len(seen)))
        return seen[-1:]

    monkeypatch.setattr(local_workers, "rank_stacks", rank_stacks)
    workers = LocalWorkers(AgentSettings(WorkerCommand((), True, "train.py"), 1), {})
    of = group(tmp_path / "0")
    workers.begin_attempt(of, world(0))
    assert [*await workers.rank_stacks(), *await workers.rank_stacks()] == [RankStack(0)] * 2
    of.epoch = 2  # the rank that hung was replaced
    assert await workers.rank_stacks() == [RankStack(1)]


WAIT_S = 20.0


def command(content: str) -> tuple[str, ...]:
    """A saver that writes this result."""
    file = "pathlib.Path(os.environ['GANGLINE_FLUSH_RESULT'])"
    code = f"import os, pathlib; {file}.write_text({content!r})"
    return (sys.executable, "-S", "-c", code)


def worker(folder: Path) -> tuple[Path, SaveOrders]:
    folder.mkdir()
    progress = folder / "progress"
    return progress, SaveOrders({PROGRESS_VARIABLE: str(progress)})


async def test_storage_is_written_after_all_workers_have_saved(tmp_path: Path) -> None:
    workers = [worker(tmp_path / name) for name in ("0", "1")]
    for _, end in workers:
        end.announce()
    save = RequestedSave(command('{"a": 8, "b": 7}'), {})
    async with asyncio.TaskGroup() as group:
        task = group.create_task(save.run("first", WAIT_S, [path for path, _ in workers]))
        for _, end in workers:
            while (order := end.pending()) is None:
                await asyncio.sleep(0.005)
            assert not task.done()
            end.reply(order, 8)
    assert task.result() == 7
    assert all((path.parent / "save-request").exists() for path, _ in workers), "they wait there"
    save.withdraw()
    assert not any((path.parent / "save-request").exists() for path, _ in workers)


async def test_script_that_looks_for_no_requests_is_not_waited_for(tmp_path: Path) -> None:
    path, _ = worker(tmp_path / "0")
    assert not takes_orders(path)
    assert await RequestedSave(command('{"a": 5}'), {}).run("first", 600.0, [path]) == 5


class FastClock:
    """A monotonic clock that advances by ten seconds whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 10.0
        return self.now


async def test_worker_that_does_not_reply_gets_half_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, end = worker(tmp_path / "0")
    end.announce()
    clock = FastClock()
    monkeypatch.setattr(local_workers, "time", clock)
    assert await RequestedSave(command('{"a": 5}'), {}).run("first", 200.0, [path]) == 5
    assert 100 < clock.now < 200


async def test_save_that_is_not_in_storage_has_no_step() -> None:
    for content in ('{"a": 5, "b": null}', "{}", "[]", "nonsense"):
        assert await RequestedSave(command(content), {}).run("first", WAIT_S, []) is None
    assert await RequestedSave((), {}).run("first", WAIT_S, []) is None


async def test_save_that_takes_too_long_is_ended() -> None:
    slow = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
    assert await RequestedSave(slow, {}).run("first", 0.2, []) is None


class Workers:
    """Workers whose save ends when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.withdrawn = 0
        self.result: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def save_on_request(self, request: str, wait_s: float) -> int | None:
        self.asked.append(request)
        return await self.result

    def withdraw_request(self) -> None:
        self.withdrawn += 1


class Master:
    """Records what an agent reports."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, int | None]] = []

    async def call(self, message: msg.SaveFinished, *, timeout_s: float) -> msg.Acknowledged:
        self.reports.append((message.request, message.step))
        return msg.Acknowledged()


async def test_repeated_request_is_carried_out_once_and_answered_each_time() -> None:
    master, workers, tasks = Master(), Workers(), []

    def run(work: Coroutine[Any, Any, object]) -> None:
        tasks.append(asyncio.create_task(work))

    save = EvictionSave(master, 3, "i", run)  # type: ignore[arg-type]
    first = msg.SaveCheckpoint(request="first", wait_s=1)
    for _ in range(2):
        save.handle(workers, first)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert (workers.asked, master.reports) == (["first"], [])
    workers.result.set_result(9)
    await asyncio.gather(*tasks)
    save.handle(workers, first)  # type: ignore[arg-type]
    await asyncio.gather(*tasks)
    assert (workers.asked, master.reports) == (["first"], [("first", 9)] * 3)


async def test_only_the_present_request_is_withdrawn() -> None:
    workers = Workers()
    save = EvictionSave(Master(), 3, "i", lambda work: work.close())  # type: ignore[arg-type]
    save.handle(workers, msg.SaveCheckpoint(request="first"))  # type: ignore[arg-type]
    save.handle(workers, msg.SaveCheckpoint(request="older", is_withdrawn=True))  # type: ignore[arg-type]
    assert workers.withdrawn == 0
    save.handle(workers, msg.SaveCheckpoint(request="first", is_withdrawn=True))  # type: ignore[arg-type]
    assert workers.withdrawn == 1
    workers.result.set_result(None)
    await asyncio.sleep(0)
