"""Progress reports of the present and the last attempt of a node."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gangline.elastic.agent.local_workers import LocalWorkers
from gangline.elastic.agent.logs import WorkerFiles
from gangline.elastic.agent.rendezvous import WorldSpec
from gangline.elastic.agent.settings import AgentSettings, WorkerCommand
from gangline.elastic.progress import StepReporter


def group(folder: Path) -> Any:
    """A worker group of this process."""
    folder.mkdir()
    files = WorkerFiles(None, None, (), folder / "error.json", folder / "stacks.txt")
    worker = SimpleNamespace(files=files, process=SimpleNamespace(pid=os.getpid()))
    return SimpleNamespace(workers=[worker], exits=list)


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
