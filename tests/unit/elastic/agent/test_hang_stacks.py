"""Stacks of hanging workers; those of mute workers are read with py-spy."""

import asyncio
import json
import os
import signal
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gangline.elastic.agent import hang_stacks as py_spy_module
from gangline.elastic.agent.hang_detector import (
    STOPPED,
    StackLocation,
    hang_failure,
    parse_stack_location,
)
from gangline.elastic.agent.hang_stacks import collect_stacks, describe_evidence, rank_stacks
from gangline.elastic.agent.logs import WorkerFiles
from gangline.elastic.agent.process import STACKS_SIGNAL, start_process
from gangline.elastic.agent.worker_group import Worker

MuteMaker = Callable[[str], None]


def frame(function: str, line: int, file: str = "/home/me/train.py") -> dict[str, Any]:
    return {
        "name": function, "filename": file, "module": None, "short_filename": "train.py",
        "line": line, "locals": None,
    }  # fmt: skip


def thread(name: str | None, *frames: dict[str, Any]) -> dict[str, Any]:
    return {
        "pid": 7, "thread_id": 140001, "thread_name": name, "os_thread_id": None, "active": True,
        "owns_gil": False, "frames": list(frames), "process_info": None,
    }  # fmt: skip


SEEN = [
    thread("MainThread", frame("load_batch", 30), frame("<module>", 99)),
    thread("loader", frame("wait", 5, "/lib/threading.py")),
]
"""Output of py-spy: innermost frames first, the main thread anywhere."""


@pytest.fixture
def py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MuteMaker:
    """Put a program named py-spy on the path."""

    def make(script: str) -> None:
        program = tmp_path / "bin" / "py-spy"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return make


def py_spy_script(tmp_path: Path, threads: Any) -> str:
    (tmp_path / "reply").write_text(json.dumps(threads))
    return f'echo "$@" > {tmp_path}/asked; cat {tmp_path}/reply'


class StoppedGroup:
    """Workers of an attempt."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers
        self.answer = ""
        """Stacks that the workers write on request."""

    def request_stacks(self) -> None:
        for worker in self.workers:
            worker.process.signal_process(STACKS_SIGNAL)
            worker.files.stacks_file.write_text(self.answer)


@asynccontextmanager
async def stopped(folder: Path) -> AsyncIterator[Any]:
    """A group with one worker, which is stopped."""
    files = folder / "attempt_0" / "0"
    files.mkdir(parents=True)
    process = start_process(["sleep", "1000"], os.environ)
    process.signal_process(signal.SIGSTOP)
    worker_files = WorkerFiles(None, None, (), files / "error.json", files / "stacks.txt")
    yield StoppedGroup([Worker(3, 0, process, worker_files)])
    process.signal_process(signal.SIGKILL)
    await process.ended


async def test_stacks_of_mute_worker_are_read_with_py_spy(
    tmp_path: Path, py_spy: MuteMaker
) -> None:
    py_spy(py_spy_script(tmp_path, SEEN))
    async with stopped(tmp_path) as group:
        [seen] = (await collect_stacks(group, 0.2)).values()
        assert seen.is_mute
        assert parse_stack_location(seen.text) == StackLocation(
            "/home/me/train.py", 30, "load_batch"
        )
        pid = group.workers[0].process.pid
        asked = (tmp_path / "asked").read_text().split()
        assert asked == ["dump", "--nonblocking", "--json", "--pid", str(pid)]
        files = tmp_path / "attempt_0" / "0"
        assert [path.name for path in files.iterdir()] == ["stacks.txt"]
        assert (files / "stacks.txt").read_text() == seen.text


async def test_mute_worker_is_blamed_though_it_waits_in_torch(
    tmp_path: Path, py_spy: MuteMaker
) -> None:
    py_spy(
        py_spy_script(tmp_path, [thread(None, frame("all_reduce", 7, "/x/torch/distributed/c.py"))])
    )
    async with stopped(tmp_path) as group:
        [stack] = await rank_stacks(group, 0.2, "here")
    assert not stack.waits
    failure = hang_failure([stack], 60, "Stacks are there.")
    assert failure.explanation.endswith("for 60 s. Stacks are there.")
    assert failure.message == (
        f"rank 3 on here is {STOPPED}, at /x/torch/distributed/c.py:7 in all_reduce"
    )
    assert failure.cause == "Stopped"


@pytest.mark.parametrize(
    ("script", "warning"),
    [
        pytest.param("echo no rights >&2; exit 1", "no rights", id="it fails"),
        pytest.param("echo gibberish", "process", id="it prints something else"),
        pytest.param("exec sleep 1000", "process", id="it does not end"),
    ],
)
async def test_failing_py_spy_gives_no_stack(
    tmp_path: Path,
    py_spy: MuteMaker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    script: str,
    warning: str,
) -> None:
    py_spy(script)
    monkeypatch.setattr(py_spy_module, "PY_SPY_TIMEOUT_S", 0.5 if "sleep" in script else 60.0)
    async with stopped(tmp_path) as group:
        [stack] = await rank_stacks(group, 0.1, "here")
    assert (stack.where, stack.is_mute) == ("", True)
    assert warning in caplog.text


async def test_py_spy_is_optional(tmp_path: Path) -> None:
    assert await py_spy_module.py_spy_stacks(os.getpid(), tmp_path, {"PATH": str(tmp_path)}) == ""


async def test_flight_records_are_awaited_and_named(tmp_path: Path) -> None:
    async with stopped(tmp_path) as group:
        files = tmp_path / "attempt_0" / "0"
        assert (
            describe_evidence(group, is_permanent=True)
            == f"Stacks of this node are in {files.parent}."
        )
        group.answer = "Current thread (most recent call first):\n"
        group.answer += '  File "/home/me/train.py", line 30 in load_batch\n'
        pipe = files / "flight_recorder_3.pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

        def dump() -> None:
            assert os.read(reader, 1) == b"1"
            # As NCCL's watchdog does, which polls its pipe rarely.
            asyncio.get_running_loop().call_later(
                0.3, (files / "nccl_trace_rank_3").write_bytes, b"records"
            )
            asyncio.get_running_loop().remove_reader(reader)

        asyncio.get_running_loop().add_reader(reader, dump)
        [stack] = await rank_stacks(group, 60.0, "here")
        assert (stack.where, stack.is_mute) == ("/home/me/train.py:30 in load_batch", False)
        os.close(reader)
        evidence = describe_evidence(group, is_permanent=False)
    assert evidence.startswith(
        f"Stacks and NCCL's flight records of this node are in {files.parent}"
    )
    assert evidence.endswith("(--log-dir keeps them).")
