"""What became of an elastic job's time: what its master keeps beside its state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gangline.api.elastic import master_name
from gangline.api.resources import CONFIG_MAPS
from gangline.kube.client import Client
from gangline.kube.errors import Forbidden, NotFound
from gangline.sdk.jobs import Job

_TRAINER = "elasticjob"


@dataclass(frozen=True, slots=True)
class Goodput:
    """The account, as it stood up to half a minute ago."""

    share: float
    """The productive share of the wall time, between 0 and 1."""
    wall_s: float
    productive_s: float
    unproductive: str = ""
    """What the rest went into, such as ``restarting 4.2 s, starting 7.0 s``."""
    step: int | None = None
    steps_per_s: float = 0.0
    checkpoint_step: int | None = None
    """The last step that checkpoints hold."""
    saves_skipped: int = 0
    """Checkpoints for which no memory was free, since the workers' last start."""
    saves_overtaken: int = 0
    """Checkpoints that newer ones kept from storage, since then."""
    saves_failed: int = 0
    """Times that storage did not take a checkpoint, since then."""
    steps_lost: int = 0
    """Steps that were made a second time."""
    restarts: int = 0
    failures: int = 0

    @property
    def words(self) -> str:
        """The account in one line."""
        told = f"{self.share:.1%} of {self.wall_s:.0f} s"
        if self.unproductive:
            told += f"; the rest: {self.unproductive}"
        return told

    @property
    def pace(self) -> str:
        """How far the job is, in one line; empty when its script does not say."""
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


async def goodput_of(client: Client, job: Job) -> Goodput | None:
    """Return an elastic job's account; None when it has none that we may read."""
    if job.kind.trainer != _TRAINER:
        return None
    try:
        kept = await client.get(CONFIG_MAPS, master_name(job.name), job.namespace)
    except (NotFound, Forbidden):
        return None
    return goodput(kept.data)


def goodput(words: Mapping[str, str]) -> Goodput | None:
    """Read what a master wrote; None when it has written nothing yet."""
    if "goodput" not in words:
        return None

    def number(name: str) -> float:
        try:
            return float(words.get(name, "") or 0)
        except ValueError:
            return 0.0

    return Goodput(
        share=number("goodput"),
        wall_s=number("wallSeconds"),
        productive_s=number("productiveSeconds"),
        unproductive=words.get("unproductive", ""),
        step=int(number("step")) if words.get("step") else None,
        steps_per_s=number("stepsPerSecond"),
        checkpoint_step=int(number("checkpointStep")) if words.get("checkpointStep") else None,
        saves_skipped=int(number("savesSkipped")),
        saves_overtaken=int(number("savesOvertaken")),
        saves_failed=int(number("savesFailed")),
        steps_lost=int(number("stepsLost")),
        restarts=int(number("restarts")),
        failures=int(number("failures")),
    )


def goodput_data(account: Goodput) -> dict[str, Any]:
    """Return an account as plain data."""
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
    }
