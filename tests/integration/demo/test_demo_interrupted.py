"""A demo that ends in any way at any time leaves nothing on the machine.

Takes 60 s: the demo runs until it is interrupted, at several moments.
"""

import random
import select
import signal
from pathlib import Path

import pytest

from gangline.cli.errors import ExitCode
from integration.demo.demo_process import demo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WHILE_PYTHON_STARTS = {ExitCode.INTERRUPTED, -signal.SIGINT}
"""Before our first line runs, the signal ends Python itself; shells report 130 for that too."""


def pause(seed: int, most_s: float) -> None:
    """Wait for a pseudo-random time that is the same in every run."""
    select.select([], [], [], random.Random(seed).uniform(0.0, most_s))


@pytest.mark.parametrize("seed", range(4))
def test_ctrl_c_during_the_start_leaves_nothing(tmp_path: Path, seed: int) -> None:
    with demo(tmp_path) as running:
        pause(seed, 2.0)
        processes = running.descendants()
        running.signal_all(signal.SIGINT)
        assert running.ended() in WHILE_PYTHON_STARTS, running.said
        assert running.left_behind(processes) == []
        assert not running.folder.exists()


@pytest.mark.parametrize("seed", range(2))
def test_ctrl_c_during_the_submission_leaves_nothing(tmp_path: Path, seed: int) -> None:
    with demo(tmp_path) as running:
        running.until("Training: ")
        pause(seed, 1.5)
        processes = running.descendants()
        running.signal_all(signal.SIGINT)
        assert running.ended() == ExitCode.INTERRUPTED, running.said
        assert running.left_behind(processes) == []
        assert not running.folder.exists()


def test_ctrl_c_twice_during_the_training_does_not_cut_the_clean_up_short(tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        running.until("step 50/")
        processes = running.descendants()
        running.signal_all(signal.SIGINT)
        running.until("Interrupted")
        running.signal_all(signal.SIGINT)
        pause(1, 0.1)
        running.signal_all(signal.SIGINT)
        assert running.ended() == ExitCode.INTERRUPTED, running.said
        assert "Traceback" not in running.said
        assert running.left_behind(processes) == []
        assert not running.folder.exists()


def test_a_termination_after_the_kill_leaves_nothing(tmp_path: Path) -> None:
    with demo(tmp_path, "--steps", "100") as running:
        running.until("Killed the process of worker-1")
        pause(2, 1.0)
        processes = running.descendants()
        running.process.send_signal(signal.SIGTERM)
        assert running.ended() == ExitCode.INTERRUPTED, running.said
        assert running.left_behind(processes) == []
        assert not running.folder.exists()


def test_ctrl_c_during_the_clean_up_does_not_stop_it(tmp_path: Path) -> None:
    with demo(tmp_path, "--steps", "10", "--keep-going") as running:
        running.until("starts at step")
        processes = running.descendants()
        running.until("Cleaning up")
        running.signal_all(signal.SIGINT)
        # The demo may have finished already, and then prints its result.
        assert running.ended() in {ExitCode.INTERRUPTED, ExitCode.JOB_FAILED}, running.said
        assert running.left_behind(processes) == []
        assert not running.folder.exists()


def test_after_a_kill_no_process_lives_and_the_next_demo_removes_the_rest(tmp_path: Path) -> None:
    with demo(tmp_path) as killed:
        killed.until("starts at step")
        processes = killed.descendants()
        killed.process.kill()
        killed.ended()
        left = [thing for thing in killed.left_behind(processes) if thing.startswith("process")]
        assert left == []
        assert killed.folder.exists()
        with demo(tmp_path) as following:
            following.until(f"Removed the remains of {killed.folder.name}")
            following.signal_all(signal.SIGINT)
            assert following.ended() == ExitCode.INTERRUPTED, following.said
        assert killed.left_behind(processes) == []
        assert not killed.folder.exists()
