"""``benchmarks.scheduler.end_to_end``, stopped before its end, leaves no process behind."""

import ast
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

PATIENCE_S = 120.0
SIZES = ("--small", "--server", "embedded", "--nodes", "3", "--pods", "16", "--lost", "0")


def _running(pids: Mapping[str, int]) -> list[str]:
    return [name for name, pid in pids.items() if Path(f"/proc/{pid}/cmdline").exists()]


def test_a_benchmark_that_gets_sigterm_ends_its_server_kubelets_and_scheduler() -> None:
    root = Path(__file__).parents[3]
    pids: dict[str, int] = {}
    with (
        tempfile.TemporaryDirectory(prefix="gl") as short,
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scheduler.end_to_end", *SIZES],
            cwd=root,
            env=os.environ | {"TMPDIR": short},
            stdout=subprocess.PIPE,
            text=True,
        ) as benchmark,
    ):
        try:
            assert benchmark.stdout is not None
            line = next(text for text in benchmark.stdout if "processes: " in text)
            pids |= ast.literal_eval(re.sub(r".*processes: ", "", line))
            assert _running(pids) == ["API server", "kubelets", "scheduler"]
            benchmark.send_signal(signal.SIGTERM)
            assert benchmark.wait(PATIENCE_S) == 128 + signal.SIGTERM
            deadline = time.monotonic() + PATIENCE_S
            while _running(pids) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert _running(pids) == []
        finally:
            benchmark.kill()
            for name in _running(pids):
                os.kill(pids[name], signal.SIGKILL)
