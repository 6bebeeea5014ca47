"""Node checks and a lost master: ``gangline run`` compared with dlrover-run, over gloo.

All nodes are processes of this machine, so four of them share its processors. A node is made faulty
by a module that every interpreter of that node imports; it breaks the check process. Figures are
medians. The cost of a check is the difference between a start with it and one without, in turn.
DLRover is measured with one node; four of its nodes do not pass their check here.

    python -m benchmarks.elastic.faults [RUNS] [RUNS OF DLROVER]
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks import results
from benchmarks.elastic.recovery import DLROVER, Job

RUNS, DLROVER_RUNS = 7, 3
CHECK = "--network-check"
FAULTY = 2
BROKEN = """
import gangline.elastic.nodecheck.worker as worker

def compute(self):
    raise RuntimeError("the device fell off the bus")

worker.Tester.compute = compute
"""


def started_alone(kind: str, folder: str, *flags: str) -> float:
    """Seconds to the first step of one node of two workers."""
    job = Job(kind, folder)
    try:
        begun = job.start_alone(*flags)
        return job.until("first", begun, 2) - begun
    finally:
        job.end()


def started_together(
    folder: str, nodes: str, world: int, *flags: str, faulty: Mapping[str, str]
) -> float:
    """Seconds to the first step of ``world`` of four nodes of one worker.

    The third node gets the variables in ``faulty``.
    """
    job = Job("gangline", folder)
    try:
        begun = job.start_node(nodes, *flags, hosts=True)
        for number in range(1, 4):
            variables = faulty if number == FAULTY else {}
            job.start_node(nodes, *flags, hosts=False, variables=variables)
        return job.until("first", begun, world) - begun
    finally:
        job.end()


def killed_while_the_master_is_gone(folder: str) -> float:
    """Seconds to the first step of two nodes after a kill while the master is stopped."""
    job = Job("gangline", folder)
    try:
        job.train_on_two("2")
        # A stopped master is unreachable for all others, and is not restarted.
        master = child_of(job.launchers[0].pid, "elastic.master")
        os.kill(master, signal.SIGSTOP)
        try:
            killed = time.time()
            os.kill(job.pid(1), signal.SIGKILL)
            return job.again(killed) - killed
        finally:
            os.kill(master, signal.SIGCONT)
    finally:
        job.end()


def child_of(parent: int, text: str) -> int:
    """The child process whose command line contains this text."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return next(int(one) for one in children if text in Path(f"/proc/{one}/cmdline").read_text())


def imported() -> float:
    """Seconds that a process needs to import torch."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - begin


def one_checked(kind: str, folder: str, runs: int) -> results.Figure:
    """A check of one node of two workers."""
    bare, checked = [], []
    for _ in range(runs):
        bare.append(started_alone(kind, folder))
        checked.append(started_alone(kind, folder, CHECK))
    show(f"{kind}: first step of one node, without a check and with it", bare, checked)
    return results.Figure(
        "start of one node with a check until its first step",
        "s",
        statistics.median(checked),
        {"without a check": statistics.median(bare)},
    )


def four_checked(folder: str, runs: int) -> float:
    """A check of four nodes of one worker, and of four with a faulty one.

    Returns the median seconds to the first step with a faulty node.
    """
    bare, checked, thrown = [], [], []
    broken = Path(folder) / "broken"
    broken.mkdir(exist_ok=True)
    (broken / "sitecustomize.py").write_text(BROKEN)
    for _ in range(runs):
        bare.append(started_together(folder, "4", 4, faulty={}))
        checked.append(started_together(folder, "4", 4, CHECK, faulty={}))
        variables = {"PYTHONPATH": str(broken)}
        thrown.append(started_together(folder, "3:4", 3, CHECK, faulty=variables))
    show("first step of four nodes, without a check and with it", bare, checked)
    show("first step of the other three when one of four is faulty", thrown)
    return statistics.median(thrown)


def show(what: str, *figures: list[float]) -> None:
    """Print medians with their range, and by how much the second exceeds the first."""
    parts = [
        f"{statistics.median(one):.2f} s ({min(one):.2f} to {max(one):.2f})" for one in figures
    ]
    added = ""
    if len(figures) > 1:
        more = statistics.median(b - a for a, b in zip(*figures, strict=True))
        added = f"; the check adds {more:.2f} s"
    print(f"{what}: {', '.join(parts)}{added}", flush=True)


def main() -> None:
    given = [int(text) for text in sys.argv[1:]]
    runs, theirs = (given[n] if len(given) > n else d for n, d in ((0, RUNS), (1, DLROVER_RUNS)))
    with tempfile.TemporaryDirectory() as folder:
        show("importing torch, one process alone", [imported() for _ in range(runs)])
        gone = [killed_while_the_master_is_gone(folder) for _ in range(runs)]
        show("worker killed, 2 nodes, the master unreachable", gone)
        figures = {"checked": one_checked("gangline", folder, runs)}
        if DLROVER:
            one_checked("dlrover-run", folder, theirs)
        faulty = four_checked(folder, runs)
    figures |= {
        "master_gone": results.Figure(
            "two nodes, a worker is killed while the master is stopped: until both train again",
            "s",
            statistics.median(gone),
        ),
        "faulty_node": results.Figure(
            "one of four nodes is faulty: from the start to the first step of the other three",
            "s",
            faulty,
        ),
    }
    conditions = f"gloo; medians of {runs} runs; the nodes are processes of one machine"
    results.write("elastic_faults", conditions, figures, results.training_versions())


if __name__ == "__main__":
    main()
