"""The timeline of the demo, from lines of replicas, and its display."""

import io

import pytest
from rich.console import Console

from gangline.cli.commands.demo import JOB, REPLICAS, VICTIM, build_manifests
from gangline.cli.commands.demo import _example_folder as example_folder
from gangline.cli.demo.view import DemoTimeline, DemoView, summary_headline, summary_rows


class Clock:
    """A clock that only the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def observed(*, kill: bool = True, recovers: bool = True, accuracy: float = 0.97) -> DemoTimeline:
    """A demo of 100 steps whose worker is killed after step 40 of a checkpoint at 30."""
    clock = Clock()
    timeline = DemoTimeline(100, kill_planned=kill, clock=clock)
    clock.now = 101.0
    timeline.mark_cluster_ready()
    clock.now = 102.0
    timeline.mark_submitted()
    timeline.observe_line("master-0", "rank 0 of 3 on digits-master-0: starts at step 0")
    clock.now = 106.0
    timeline.observe_line("master-0", "step 1/100 loss 2.3")
    timeline.observe_line("worker-0", "step 40/100 loss 1.0")
    if kill:
        clock.now = 110.0
        timeline.mark_killed(VICTIM)
        timeline.observe_line("worker-0", "step 41/100 loss 1.0")
        timeline.observe_line("worker-0", "rank 1 lost another rank in step 43: reset by peer")
    if kill and recovers:
        timeline.observe_line("worker-1", "rank 2 of 3 on digits-worker-1: starts at step 30")
        clock.now = 117.5
        timeline.observe_line("worker-0", "step 31/100 loss 1.0")
    clock.now = 120.0
    timeline.observe_line("master-0", f"test accuracy {accuracy}")
    timeline.mark_ended("SUCCEEDED", 3)
    return timeline


def test_phases_are_measured_from_what_began_them() -> None:
    timeline = observed()
    times = (timeline.cluster_start_s, timeline.first_step_s, timeline.recovery_s, timeline.total_s)
    assert times == (1.0, 4.0, 7.5, 20.0)


def test_the_steps_between_checkpoint_and_kill_are_lost() -> None:
    timeline = observed()
    assert (timeline.last_before_kill, timeline.resumed_at, timeline.lost_steps) == (42, 30, 12)


def test_lines_written_before_the_kill_do_not_count_as_recovery() -> None:
    assert observed(recovers=False).recovery_s < 0


def test_the_worker_is_killed_once_and_not_before_its_time() -> None:
    timeline = DemoTimeline(100)
    timeline.observe_line("master-0", "step 39/100 loss 1.0")
    early = timeline.kill_is_due
    timeline.observe_line("master-0", "step 40/100 loss 1.0")
    due = timeline.kill_is_due
    timeline.mark_killed(VICTIM)
    assert (early, due, timeline.kill_is_due) == (False, True, False)


def test_only_a_good_network_that_recovered_is_a_success() -> None:
    timelines = [observed(), observed(recovers=False), observed(accuracy=0.9), observed(kill=False)]
    assert [timeline.succeeded for timeline in timelines] == [True, False, False, True]


def test_a_worker_that_could_not_be_killed_is_no_success() -> None:
    timeline = observed(kill=False)
    timeline.kill_planned = True
    assert not timeline.succeeded
    assert "no worker was found" in summary_headline(timeline)


def test_headline_names_the_failure() -> None:
    assert "0.9700" in summary_headline(observed())
    assert "no recovery" in summary_headline(observed(recovers=False))
    assert "expected 0.95" in summary_headline(observed(accuracy=0.9))
    assert "without a test accuracy" in summary_headline(DemoTimeline(100))


def test_milestones_that_never_happened_are_reported() -> None:
    assert dict(summary_rows(DemoTimeline(100)))["submission to the first step"] == "never"


def test_without_a_terminal_the_view_prints_lines_only() -> None:
    out = io.StringIO()
    view = DemoView(REPLICAS, Console(file=out, highlight=False, soft_wrap=True))
    with view.job_status(JOB):
        for step in range(1, 101):
            view.print_line("worker-1", f"step {step}/100 loss 0.5")
        view.print_line("worker-1", "x" * 500)
    view.print_summary(observed())
    lines = out.getvalue().splitlines()
    assert [line for line in lines if "step " in line and "|" in line] == [
        " worker-1 | step 50/100 loss 0.5",
        " worker-1 | step 100/100 loss 0.5",
    ]
    assert max(map(len, lines)) < 120
    assert "\x1b" not in out.getvalue()


def test_progress_has_step_total_loss_and_rate() -> None:
    timeline = observed(kill=False, recovers=False)
    progress = timeline.progress()
    assert progress is not None
    assert (progress.step, progress.total_steps, progress.loss) == (40, 100, 1.0)
    assert progress.steps_per_s == pytest.approx(39 / 14)


def test_example_is_submitted_unchanged_with_its_script() -> None:
    configuration, *objects = build_manifests(example_folder(), 7)
    assert "DistributedDataParallel" in configuration["data"]["digits.py"]
    job = objects[-1]
    assert job["metadata"]["name"] == JOB
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        command = replica["template"]["spec"]["containers"][0]["command"]
        assert command[2:4] == ["--steps", "7"]
