"""Goodput and steps of an elastic job, from the ConfigMap in which its master stores its state.

The master stores them every few seconds while the job is young, and at least twice a minute later.
The age of a step is the one that the master reports, and the time since its report.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from gangline.api.figures import format_figure
from gangline.api.jobs.elastic import master_name
from gangline.api.resources import CONFIG_MAPS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, NotFound
from gangline.sdk.jobs import Job, JobState
from gangline.sdk.progress import Progress, format_clock
from gangline.sdk.restarts import LastRestart

_TRAINER = "elasticjob"
_PART = re.compile(r"(\w[\w -]*?) ([\d.]+) s")
"""A part of ``Goodput.unproductive``."""
MAX_READ = 20
"""Number of jobs whose steps a list reads; a screen shows few more."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Goodput of a job, at most half a minute old."""

    share: float
    """Productive fraction of the wall time, between 0 and 1."""
    wall_s: float
    productive_s: float
    unproductive: str = ""
    """Summary of the other time, such as ``restarting 4.2 s, starting 7.0 s``."""
    step: int | None = None
    steps_per_s: float = 0.0
    total_steps: int | None = None
    """The step with which the training ends; None if the script does not report it."""
    loss: float | None = None
    """The last loss that the script has reported."""
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Further numbers that the script has reported last, by name."""
    reported_at: datetime | None = None
    """Time of the master's report."""
    step_age_s: float = 0.0
    """How old the step was in the master's report."""
    last_restart: LastRestart | None = None
    checkpoint_step: int | None = None
    """The last step in a checkpoint."""
    saves_skipped: int = 0
    """Checkpoints that were skipped for lack of memory, since the last start of the workers."""
    saves_overtaken: int = 0
    """Checkpoints that newer ones replaced before they reached storage, since the last start."""
    saves_failed: int = 0
    """Failed uploads of checkpoints, since the last start."""
    steps_lost: int = 0
    """Steps that were repeated."""
    restarts: int = 0
    replaced: int = 0
    """How often ranks were replaced, or the world changed, while the others kept running."""
    replacement: str = ""
    """The last such event, such as ``rank 3 was replaced at step 812; 0.14 s, 1 step``."""
    failures: int = 0
    nodes: int = 0
    """Nodes of the world."""
    warm_nodes: int | None = None
    """Nodes that restart their workers without imports; None if that is disabled or not known."""

    @property
    def summary(self) -> str:
        """Goodput in one line."""
        text = f"{self.share:.1%} of {self.wall_s:.0f} s"
        if self.unproductive:
            text += f"; the rest: {self.unproductive}"
        return text

    @property
    def unproductive_s(self) -> Mapping[str, float]:
        """Seconds of the other time by what it was spent on, such as ``restarting``."""
        return {name: float(seconds) for name, seconds in _PART.findall(self.unproductive)}

    def age_s(self, now: datetime) -> float:
        """Return for how long the step has not changed."""
        since = (now - self.reported_at).total_seconds() if self.reported_at else 0.0
        return self.step_age_s + max(0.0, since)

    @property
    def left_s(self) -> float | None:
        """Estimated time until the last step; None if that is not known."""
        if self.step is None or not self.total_steps or not self.steps_per_s:
            return None
        return max(0, self.total_steps - self.step) / self.steps_per_s

    @property
    def progress(self) -> str:
        """Progress in one line; empty if the script does not report steps."""
        if self.step is None:
            return ""
        total = f" of {self.total_steps}" if self.total_steps else ""
        left = "" if self.left_s is None else f", {format_clock(self.left_s)} left"
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        saved = "" if self.checkpoint_step is None else f", checkpoint of {self.checkpoint_step}"
        lost = (
            (self.saves_skipped, "skipped"),
            (self.saves_overtaken, "overtaken"),
            (self.saves_failed, "failed"),
        )
        if some := [f"{number} {what}" for number, what in lost if number]:
            saved += f", of saves {', '.join(some)}"
        return f"{self.step}{total}, {format_figure(self.steps_per_s)}/s{left}{loss}{saved}"

    @property
    def as_progress(self) -> Progress:
        """The steps in the form of other jobs' reports."""
        step, total = self.step, self.total_steps
        done = None if step is None or not total else min(100, step * 100 // total)
        return Progress(done, self.left_s, reported_at=self.reported_at)

    @property
    def warmth(self) -> str:
        """Whether the next restart needs imports, in one line; empty if that is not known."""
        if self.warm_nodes is None:
            return ""
        return f"{self.warm_nodes} of {self.nodes} nodes restart without imports"


def has_goodput(job: Job) -> bool:
    """Return whether a job has a master, which accounts for its time and its steps."""
    return job.kind.trainer == _TRAINER


async def read_goodput(client: ApiClient, job: Job) -> Goodput | None:
    """Return the goodput of an elastic job; None if it is missing or may not be read."""
    if not has_goodput(job):
        return None
    try:
        stored = await client.get(CONFIG_MAPS, master_name(job.name), job.namespace)
    except (NotFound, Forbidden):
        return None
    return parse_goodput(stored.data)


async def with_steps(client: ApiClient, jobs: Sequence[Job]) -> Sequence[Job]:
    """Return jobs with the progress that the masters of running elastic jobs know, of the first
    ``MAX_READ`` of them.
    """
    running = [job for job in jobs if has_goodput(job) and job.state is JobState.RUNNING]
    read = running[:MAX_READ]
    accounts = await asyncio.gather(*(read_goodput(client, job) for job in read))
    steps = {
        job.uid: account.as_progress for job, account in zip(read, accounts, strict=True) if account
    }
    return [replace(job, progress=steps.get(job.uid, job.progress)) for job in jobs]


def parse_goodput(data: Mapping[str, str]) -> Goodput | None:
    """Parse the data of the ConfigMap; None before the first report."""
    if "goodput" not in data:
        return None

    def number(name: str) -> float:
        return optional(name) or 0.0

    def optional(name: str) -> float | None:
        with suppress(ValueError):
            return float(data[name]) if data.get(name) else None
        return None

    def integer(name: str) -> int | None:
        value = optional(name)
        return None if value is None else int(value)

    restart = None
    if data.get("restartStep"):  # the workers train again
        restart = LastRestart(
            replica=f"worker-{data.get('restartNode', '')}",
            cause=data.get("restartCause", ""),
            exit_code=integer("restartExitCode"),
            step=integer("restartStep"),
            seconds=optional("restartSeconds") or None,
            number=int(number("restartNumber")),
        )
    reported_at = None
    with suppress(ValueError):
        reported_at = datetime.fromisoformat(data["time"]) if data.get("time") else None

    return Goodput(
        share=number("goodput"),
        wall_s=number("wallSeconds"),
        productive_s=number("productiveSeconds"),
        unproductive=data.get("unproductive", ""),
        step=integer("step"),
        steps_per_s=number("stepsPerSecond"),
        total_steps=integer("totalSteps"),
        loss=optional("loss"),
        metrics=_metrics(data.get("metrics", "")),
        reported_at=reported_at,
        step_age_s=number("stepAgeSeconds"),
        last_restart=restart,
        checkpoint_step=integer("checkpointStep"),
        saves_skipped=int(number("savesSkipped")),
        saves_overtaken=int(number("savesOvertaken")),
        saves_failed=int(number("savesFailed")),
        steps_lost=int(number("stepsLost")),
        restarts=int(number("restarts")),
        replaced=int(number("replaced")),
        replacement=data.get("replacement", ""),
        failures=int(number("failures")),
        nodes=int(number("nodes")),
        warm_nodes=integer("warmNodes"),
    )


def _metrics(text: str) -> dict[str, float]:
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=dict[str, float]) if text else {}
    return {}


def goodput_data(account: Goodput) -> dict[str, Any]:
    """Return goodput as plain data, with the keys of ``gangline get -o json``."""
    return {
        "share": account.share,
        "wallSeconds": account.wall_s,
        "productiveSeconds": account.productive_s,
        "unproductive": account.unproductive,
        "step": account.step,
        "stepsPerSecond": account.steps_per_s,
        "totalSteps": account.total_steps,
        "secondsLeft": account.left_s,
        "loss": account.loss,
        "metrics": dict(account.metrics),
        "stepAgeSeconds": round(account.age_s(datetime.now(UTC)), 1),
        "checkpointStep": account.checkpoint_step,
        "savesSkipped": account.saves_skipped,
        "savesOvertaken": account.saves_overtaken,
        "savesFailed": account.saves_failed,
        "stepsLost": account.steps_lost,
        "restarts": account.restarts,
        "replaced": account.replaced,
        "replacement": account.replacement,
        "failures": account.failures,
        "nodes": account.nodes,
        "warmNodes": account.warm_nodes,
    }
