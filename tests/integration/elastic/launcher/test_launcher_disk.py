"""A disk that is full when workers are restarted."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

HELD = """
    import os, sys, time
    from gangline.elastic.progress import StepReporter
    print("up", os.environ["TORCHELASTIC_RESTART_COUNT"], os.getpid(), flush=True)
    reporter, step = StepReporter(), 0
    while not os.path.exists(sys.argv[1]):
        step += 1
        reporter.report_step(step)
        time.sleep(0.05)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m,nr_inodes=100", "tmpfs", str(folder)]
    subprocess.run(["mount", *options], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Fill the disk."""
    with suppress(OSError), (disk / "filled").open("wb") as file:
        while True:
            file.write(bytes(4096))
    with suppress(OSError):
        for number in range(1000):
            (disk / f"folder{number}").mkdir()
    assert os.statvfs(disk).f_ffree == 0


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_costs_files_of_output_and_no_training(launch, script, disk, tmp_path):
    end = tmp_path / "end"
    run = launch("--no-standby", "--log-dir", disk, "--tee", 3, script(HELD), end, TMPDIR=str(disk))
    run.until("up 0 ")
    (logs,) = disk.iterdir()
    fill(disk)
    for attempt in range(2):
        run.until(f"up {attempt} ")
        found = re.findall(rf"up {attempt} (\d+)\n", run.output)
        os.kill(int(found[0]), signal.SIGKILL)
    run.until("up 2 ")
    end.touch()
    assert run.wait() == 0, run.output
    assert "the output of this attempt is not written to files" in run.output
    assert not [*Path("/dev/shm").glob(f"{logs.name}*")], "no file remains in memory"


PRINTS = """
    import os, sys, time
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print("up", attempt, file=sys.stderr, flush=True)
    while not os.path.exists(sys.argv[1]):
        print("x" * 4096, flush=True)
        time.sleep(0.05)
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_full_disk_of_logs_is_reported_and_the_next_attempt_prints_to_the_console(
    launch, script, disk, tmp_path
):
    end = tmp_path / "end"
    run = launch("--no-standby", "--log-dir", disk, "--redirects", 1, script(PRINTS), end)
    run.until("up 0")
    fill(disk)
    run.until("up 1")
    run.until("xxxx")
    end.touch()
    assert run.wait() == 0, run.output
    assert re.search(r"DiskFull \(exit code 1\): A disk is full", run.output), run.output
    run.until(f"the disk of {disk}")
