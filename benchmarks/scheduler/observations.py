"""What a run with many pods is measured by: their times, the server's requests, the scheduler."""

import asyncio
import contextlib
import math
import os
import re
import signal
import socket
import subprocess
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import NamedTuple

from benchmarks.cluster.servers import GANGLINE
from benchmarks.scheduler.fake_kubelets import BOUND, REMOVED, RUNNING, PodSeen

PATIENCE_S = 300.0
"""Without any progress for this time the benchmark ends. The first list of 100,000 pods is one
step.
"""
STREAMS = ("watch", "connect", "page")
"""Verbs whose requests last as long as the client wants, and pages that are no API."""


class Timeline:
    """When each pod was created, bound and running, and which were removed."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.created: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self.running: dict[str, float] = {}
        self.removed: dict[str, float] = {}
        self.nodes: dict[str, str] = {}
        """Nodes of the pods that are on one."""
        self._progress = asyncio.Event()
        self._has_ended = False
        # In a thread: a message about 100,000 pods is larger than what a pipe holds at a time.
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._receive, args=(loop,), daemon=True).start()

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass on what the kubelets report, until their process or the benchmark ends."""
        with contextlib.suppress(EOFError, OSError, RuntimeError):
            while True:
                loop.call_soon_threadsafe(self._add, self._pipe.recv())
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._has_ended = True
        self._progress.set()

    def _add(self, seen: list[PodSeen]) -> None:
        for change, key, node, at in seen:
            match change:
                case "bound":
                    self.bound.setdefault(key, at)
                    self.nodes[key] = node
                case "running":
                    self.running.setdefault(key, at)
                case "removed":
                    self.removed[key] = at
                    self.nodes.pop(key, None)
        self._progress.set()

    async def wait(self, change: str, keys: Iterable[str]) -> float:
        """Wait until all of these pods have been seen so; return when the last one was.

        Raises:
            TimeoutError: nothing has changed for ``PATIENCE_S``.
            ConnectionError: the kubelets have ended.
        """
        table = {BOUND: self.bound, RUNNING: self.running, REMOVED: self.removed}[change]
        awaited = list(keys)
        left = list(awaited)
        while True:
            while left and left[-1] in table:
                left.pop()
            if not left:
                return max(table[key] for key in awaited)
            self._progress.clear()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._progress.wait()
            except TimeoutError:
                missing = [key for key in left if key not in table]
                some = ", ".join(missing[:3])
                raise TimeoutError(f"{len(missing)} pods not {change}, such as {some}") from None
            if self._has_ended:
                raise ConnectionError("the process of the kubelets has ended")

    def waits(self, table: Mapping[str, float], keys: Iterable[str]) -> list[float]:
        """Seconds from the creation of the pods that are in ``table`` to what it records."""
        return sorted(table[key] - self.created[key] for key in keys if key in table)


def share(values: Sequence[float], part: float) -> float:
    """A quantile of sorted values; not a number if there are none."""
    return values[min(len(values) - 1, int(len(values) * part))] if values else math.nan


class Histograms:
    """Durations of requests by verb, as an API server counts them."""

    def __init__(self, text: str) -> None:
        self.counts: dict[str, Counter[float]] = {}
        names = ("gangline_apiserver_request_seconds", "apiserver_request_duration_seconds")
        starts = tuple(f"{name}_bucket{{" for name in names)
        for line in text.splitlines():
            if not line.startswith(starts):
                continue
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            verb = labels["verb"].lower()
            if verb not in STREAMS:
                counts = self.counts.setdefault(verb, Counter())
                counts[float(labels["le"])] += int(float(line.rsplit(" ", 1)[1]))

    def since(self, before: "Histograms") -> dict[str, tuple[int, float, float]]:
        """Number of requests since then, and p50 and p99 in seconds, by verb."""
        shown = {}
        for verb, now in sorted(self.counts.items()):
            counts = now - before.counts.get(verb, Counter())
            if counts:
                total = counts[math.inf]
                shown[verb] = total, _quantile(counts, total / 2), _quantile(counts, total * 0.99)
        return shown


def _quantile(counts: Mapping[float, int], rank: float) -> float:
    """The value of this rank; it is taken to be distributed evenly within its bucket."""
    below, least = 0, 0.0
    for bound in sorted(counts):
        if counts[bound] >= rank:
            inside = (rank - below) / max(1, counts[bound] - below)
            return least + inside * (bound - least) if math.isfinite(bound) else least
        below, least = counts[bound], bound
    return least


class Usage(NamedTuple):
    """What the processes have used, and the scheduler has done, at one moment."""

    at: float
    processor_s: dict[str, float]
    requests: Histograms
    scheduler: dict[str, float]
    """Its counters: ``bindings``, ``cycles``, ``cycle_s``, ``apply_s``."""


@dataclass(slots=True)
class Measured:
    """The figures of one phase."""

    took_s: float = 0.0
    processor_ms: dict[str, float] = field(default_factory=dict)
    """Processor time of each process for each pod that was bound."""
    requests: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    bindings: float = 0.0
    deciding_s: float = 0.0
    """Time in cycles, without the start of their bindings."""

    @property
    def worst_p99(self) -> float:
        """The largest p99 of a verb."""
        return max((p99 for _, _, p99 in self.requests.values()), default=math.nan)


class SchedulerProcess:
    """Our scheduler in a process, as in production; may be started again."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._kubeconfig, self._log = kubeconfig, log
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [*GANGLINE, "scheduler", "--metrics-bind-address", f"127.0.0.1:{self._port}"],
                env=os.environ | {"KUBECONFIG": str(self._kubeconfig)},
                stdout=output,
                stderr=output,
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def last_lines(self) -> str:
        """The end of its log; empty if it was not started."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text().splitlines()[-20:])

    def started(self) -> str:
        """The line that it has logged about its last start."""
        lines = [line for line in self._log.read_text().splitlines() if "started" in line]
        return lines[-1] if lines else ""

    def metrics(self) -> str:
        """Its metrics; empty while it does not serve them yet."""
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{self._port}/metrics"
            with urllib.request.urlopen(url, timeout=30) as answer:
                return answer.read().decode()
        return ""

    def counters(self) -> dict[str, float]:
        """What it has done so far."""
        prefix = "gangline_scheduler_"
        names = {
            f"{prefix}bindings_total": "bindings",
            f"{prefix}decision_seconds_count": "cycles",
            f"{prefix}decision_seconds_sum": "cycle_s",
            f'{prefix}cycle_phase_seconds_sum{{phase="apply"}}': "apply_s",
        }
        values = dict.fromkeys(names.values(), 0.0)
        for line in self.metrics().splitlines():
            name, _, value = line.rpartition(" ")
            if name in names:
                values[names[name]] = float(value)
        return values

    def watch_restarts(self) -> dict[str, int]:
        """How often its watches were restarted, by kind and cause."""
        pattern = r'gangline_watch_restarts_total\{cause="(\w+)",kind="(\w+)"\} (\S+)'
        return {
            f"{kind} {cause}": int(float(count))
            for cause, kind, count in re.findall(pattern, self.metrics())
        }


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory of a process now, and its maximum."""
    status = Path(f"/proc/{pid}/status").read_text()
    now, peak = (re.findall(rf"{name}:\s+(\d+)", status)[0] for name in ("VmRSS", "VmHWM"))
    return int(now) / 1024, int(peak) / 1024
