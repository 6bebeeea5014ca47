"""The view that is drawn again while a job runs, and what it says of the progress."""

import io
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from gangline.cli.render.live_view import (
    LiveView,
    PlainView,
    can_update_rows,
    format_progress,
    format_restart,
)
from gangline.cli.render.log_lines import LogLineWriter
from gangline.sdk.goodput import Goodput
from gangline.sdk.jobs import Job, JobState, Replica
from gangline.sdk.kinds import JOB_KINDS
from gangline.sdk.logs import LogLine
from gangline.sdk.restarts import LastRestart

NOW = datetime(2026, 11, 20, tzinfo=UTC)
KILL = LastRestart("worker-1", "Killed", 137, 175, 0.8, number=1)


def running() -> Job:
    """A job of two workers that run beside a master, which is none of them."""
    replicas = (
        Replica("train-master-0", "dlrover-master", 0, "Running", False),
        *(Replica(f"train-worker-{i}", "worker", i, "Running", i == 0) for i in range(2)),
    )
    return Job(
        JOB_KINDS[0], "train", "team", "uid", JobState.RUNNING, "", replicas, 2, 0, NOW,
        roles=(("worker", 2),),
    )  # fmt: skip


def progress(step: int, **more: object) -> Goodput:
    return replace(Goodput(0.9, 10.0, 9.0, step=step, steps_per_s=5.0, total_steps=450), **more)


def rows(text: str) -> list[str]:
    """Return what a terminal has at the end: of rows that are erased only what replaced them."""
    screen, at = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            at += 1
            screen += [""] * (at + 1 - len(screen))
        elif part.endswith("A") and part.startswith("\x1b"):
            at -= int(part[2:-1])
        elif part == "\x1b[2K":
            screen[at] = ""
        elif not part.startswith("\x1b") and part != "\r":
            screen[at] += part
    return [row.rstrip() for row in screen if row.strip()]


def test_lines_scroll_above_bars_and_status_which_vanish_at_the_end() -> None:
    out = io.StringIO()
    view = LiveView("train", Console(file=out, force_terminal=True, width=110, height=20))
    writer = LogLineWriter(marked=True)
    writer.view = view
    with view.live:
        view.show(running(), progress(171, loss=0.25))
        writer.write(LogLine("1", "worker-0", "first"))
        writer.write(LogLine("2", "worker-0", " 50%|#", is_bar=True))
        view.show(running(), progress(176, loss=0.25), KILL)
        writer.write(LogLine("3", "worker-1", "\x1b[2Jsecond\x1b[31m"))
        view.live.refresh()
        shown = rows(out.getvalue())
        writer.write(LogLine("4", "worker-0", "100%|##"))
    assert shown[:4] == [
        "[worker-0] first",
        "worker-1 was killed (SIGKILL); all ranks continue at step 175; 0.8 s",
        "[worker-1] second",
        "[worker-0]  50%|#",
    ]
    assert "step 176 of 450, 5 a second, 0:55 left, loss 0.25" in shown[4]
    assert "━" in shown[4]
    assert rows(out.getvalue()) == [*shown[:3], "[worker-0] 100%|##"]


def test_status_shows_the_age_of_a_step_that_does_not_change() -> None:
    out = io.StringIO()
    view = LiveView("train", Console(file=out, force_terminal=True, width=110, height=20))
    with view.live:
        view.show(running(), progress(175, step_age_s=42.0))
        view.live.refresh()
        assert "step 175 of 450, 5 a second, 0:55 left, 42 s ago" in rows(out.getvalue())[-1]


def test_without_a_terminal_lines_tell_changes_only(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView("train")
    writer = LogLineWriter(marked=True)
    for step in range(1, 451):
        view.show(running(), progress(step), KILL if step > 100 else None)
        writer.write(LogLine("2", "worker-0", f"{step}%|#", is_bar=True))
    writer.write(LogLine("3", "worker-0", "100%|##"))
    out, err = capsys.readouterr()
    assert out == "[worker-0] 100%|##\n"
    assert "\x1b" not in err
    lines = err.splitlines()
    assert lines[0] == "train runs: 2 of 2 replicas"
    assert [line for line in lines if "SIGKILL" in line] == [format_restart(KILL)]
    steps = [int(line.split()[3]) for line in lines if " trains: step " in line]
    assert steps == [1, *range(45, 451, 45)]


@pytest.mark.parametrize(
    ("term", "is_terminal", "is_live"),
    [("xterm", True, True), ("dumb", True, False), ("xterm", False, False)],
)
def test_rows_are_drawn_again_only_on_terminals_that_can(
    monkeypatch: pytest.MonkeyPatch, term: str, is_terminal: bool, is_live: bool
) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal  # type: ignore[method-assign]
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")  # colours are not rows
    assert can_update_rows(stream) == is_live


@pytest.mark.parametrize(
    ("restart", "text"),
    [
        (KILL, "worker-1 was killed (SIGKILL); all ranks continue at step 175; 0.8 s"),
        (
            replace(KILL, cause="ModuleMissing", exit_code=1, step=None, seconds=None),
            "worker-1 failed (ModuleMissing, exit 1), and was started again",
        ),
        (
            replace(KILL, cause="OutOfMemory"),
            "worker-1 exceeded its memory limit; all ranks continue at step 175; 0.8 s",
        ),
        (
            replace(KILL, cause="NodeLost", exit_code=None),
            "worker-1 was lost; all ranks continue at step 175; 0.8 s",
        ),
    ],
)
def test_restart_is_one_line_with_its_cause(restart: LastRestart, text: str) -> None:
    assert format_restart(restart) == text


SHORT = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


def job(state: JobState, reason: str = "", running: int = 0, restarts: int = 0) -> Job:
    replicas = tuple(
        Replica(f"hello-worker-{index}", "worker", index, "Running", False, restarts=restarts)
        for index in range(running)
    )
    return Job(JOB_KINDS[0], "hello", "team", "uid", state, reason, replicas, 3, 0, NOW)


@pytest.mark.parametrize(
    ("state", "parts"),
    [
        (job(JobState.QUEUING, SHORT), [SHORT, "gangline explain hello -n team", "--gpus N"]),
        (job(JobState.PENDING), ["0 of 3 replicas run"]),
        (job(JobState.PENDING, running=3), ["starts: all 3 replicas run"]),
        (job(JobState.PENDING, "worker-0: ErrImagePull"), ["worker-0: ErrImagePull"]),
        (job(JobState.RUNNING, running=2, restarts=1), ["2 of 3 replicas, 2 restarts"]),
        (job(JobState.RESTARTING, "worker-1: Killed"), ["restarts: worker-1: Killed"]),
        (job(JobState.SUSPENDED), ["gangline resume hello -n team"]),
        (
            job(JobState.SUSPENDED, "PyTorchJob hello resumes when its former pods have ended."),
            ["is resumed, and waits"],
        ),
    ],
)
def test_progress_says_what_happens_and_what_helps(state: Job, parts: list[str]) -> None:
    text = format_progress(state)
    assert [part for part in parts if part not in text] == []


def test_gpus_are_advised_only_where_they_are_short() -> None:
    assert "--gpus" not in format_progress(job(JobState.QUEUING, "2 Insufficient cpu."))


def test_each_change_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView("hello")
    first = job(JobState.PENDING)
    for each in (first, first, replace(first, state=JobState.RUNNING), first):
        view.show(each)
    view.show(job(JobState.SUCCEEDED))
    printed = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in printed] == ["is", "runs:", "is"]
