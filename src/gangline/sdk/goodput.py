"""Goodput of an elastic job, from the ConfigMap in which its master stores its state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gangline.api.jobs.elastic import master_name
from gangline.api.resources import CONFIG_MAPS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, NotFound
from gangline.sdk.jobs import Job

_TRAINER = "elasticjob"


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
    def progress(self) -> str:
        """Progress in one line; empty if the script does not report steps."""
        if self.step is None:
            return ""
        saved = "" if self.checkpoint_step is None else f", checkpoint of {self.checkpoint_step}"
        lost = (
            (self.saves_skipped, "skipped"),
            (self.saves_overtaken, "overtaken"),
            (self.saves_failed, "failed"),
        )
        if some := [f"{number} {what}" for number, what in lost if number]:
            saved += f", of saves {', '.join(some)}"
        return f"{self.step}, {self.steps_per_s:.3g}/s{saved}"

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


def parse_goodput(data: Mapping[str, str]) -> Goodput | None:
    """Parse the data of the ConfigMap; None before the first report."""
    if "goodput" not in data:
        return None

    def number(name: str) -> float:
        try:
            return float(data.get(name, "") or 0)
        except ValueError:
            return 0.0

    return Goodput(
        share=number("goodput"),
        wall_s=number("wallSeconds"),
        productive_s=number("productiveSeconds"),
        unproductive=data.get("unproductive", ""),
        step=int(number("step")) if data.get("step") else None,
        steps_per_s=number("stepsPerSecond"),
        checkpoint_step=int(number("checkpointStep")) if data.get("checkpointStep") else None,
        saves_skipped=int(number("savesSkipped")),
        saves_overtaken=int(number("savesOvertaken")),
        saves_failed=int(number("savesFailed")),
        steps_lost=int(number("stepsLost")),
        restarts=int(number("restarts")),
        failures=int(number("failures")),
        nodes=int(number("nodes")),
        warm_nodes=int(number("warmNodes")) if data.get("warmNodes") else None,
    )


def goodput_data(account: Goodput) -> dict[str, Any]:
    """Return goodput as plain data, with the keys of ``gangline get -o json``."""
    return {
        "share": account.share,
        "wallSeconds": account.wall_s,
        "productiveSeconds": account.productive_s,
        "unproductive": account.unproductive,
        "step": account.step,
        "stepsPerSecond": account.steps_per_s,
        "checkpointStep": account.checkpoint_step,
        "savesSkipped": account.saves_skipped,
        "savesOvertaken": account.saves_overtaken,
        "savesFailed": account.saves_failed,
        "stepsLost": account.steps_lost,
        "restarts": account.restarts,
        "failures": account.failures,
        "nodes": account.nodes,
        "warmNodes": account.warm_nodes,
    }
