"""Replies to requests that change nothing and never wait, and the Prometheus metrics.

The age of the last complete checkpoint begins when a training step is reported without one, or when
the saved step advances. It is in memory only: after a restart of the master it begins again.
"""

import json
from dataclasses import dataclass, field
from datetime import datetime

from gangline.api.figures import plain_number
from gangline.elastic.master.state.core import MasterCore
from gangline.elastic.master.state.goodput import Restart
from gangline.elastic.progress import SaveCounts
from gangline.elastic.protocol import messages as msg


class CheckpointAge:
    """Follows the steps and the saves of one job, and what its workers last reported of them."""

    def __init__(self) -> None:
        self.save_s: float | None = None
        self.interval_s: float | None = None
        """Planned time between two checkpoints; None: the workers do not report it."""
        self.total_steps: int | None = None
        self.loss: float | None = None
        self.metrics: dict[str, float] = {}
        """Further numbers of the script, by name."""
        self.replaced, self.replacement = 0, ""
        self._step: int | None = None
        self._since: float | None = None
        self._last_step: tuple[int | None, float] = (None, 0.0)
        """The last step, and when it was first seen."""

    def observe_report(self, report: msg.NodeReport) -> None:
        if report.save_s is not None:
            self.save_s = report.save_s
        if report.save_interval_s is not None:
            self.interval_s = report.save_interval_s
        if report.total_steps is not None:
            self.total_steps = report.total_steps
        if report.loss is not None:
            self.loss = report.loss
        if report.metrics:
            self.metrics = dict(report.metrics)
        if report.replaced:
            self.replaced, self.replacement = report.replaced, report.replacement

    def observe_steps(self, step: int | None, saved_step: int | None, now: float) -> None:
        if saved_step is not None and saved_step != self._step:
            self._step, self._since = saved_step, now
        elif self._since is None and step is not None:
            self._since = now
        if step != self._last_step[0]:
            self._last_step = step, now

    def step_age_s(self, now: float) -> float:
        """Return for how long the step has not changed."""
        return max(0.0, now - self._last_step[1])

    def age_s(self, now: float) -> float | None:
        """Return the age in seconds; None before the first step."""
        return None if self._since is None else max(0.0, now - self._since)


def answer_query(request: msg.Request, core: MasterCore, job: str, now: float) -> msg.Reply:
    ledger = core.state.ledger
    match request:
        case msg.KeyValueGet(keys=keys):
            return core.read_values(keys)
        case msg.GoodputRequest():
            return core.state.persistent.account.goodput(now)
        case msg.JobStatusRequest(events_after=after):
            return _status(core, job, after, now)
        case msg.ShardCheckpointRequest(dataset=name):
            content = ledger.checkpoint(name)
            return _unknown(name) if content is None else msg.ShardCheckpointReply(content=content)
        case msg.DatasetStateRequest(dataset=name):
            state = ledger.state(name)
            return _unknown(name) if state is None else msg.DatasetStateReply(state=state)
        case _:
            return msg.RequestRefused(
                reason="BadRequest", message=f"{type(request).__name__} is no query"
            )


@dataclass(frozen=True, slots=True)
class WorldProgress:
    """Progress of the world, from the last heartbeats of its members."""

    steps_per_s: float = 0.0
    checkpoint_step: int | None = None
    """Lowest step that a complete checkpoint of any reporting member holds."""
    saves: SaveCounts = field(default_factory=SaveCounts)
    cpus: float = 0.0
    memory_bytes: int = 0
    warm_nodes: int | None = None
    """Nodes that restart their workers without imports; None if no node reports that."""


def world_progress(core: MasterCore) -> WorldProgress:
    members = core.rendezvous.state.members
    heartbeats = [heartbeat for node, heartbeat in core.heartbeats.items() if node in members]
    used = [heartbeat.resources for heartbeat in heartbeats if heartbeat.resources is not None]
    warm = [usage.is_warm for usage in used if usage.is_warm is not None]
    saved = [
        heartbeat.checkpoint_step
        for heartbeat in heartbeats
        if heartbeat.checkpoint_step is not None
    ]
    return WorldProgress(
        steps_per_s=min(
            (heartbeat.steps_per_s for heartbeat in heartbeats if heartbeat.steps_per_s),
            default=0.0,
        ),
        checkpoint_step=min(saved, default=None),
        saves=SaveCounts.merge_max(heartbeat.saves for heartbeat in heartbeats),
        cpus=sum(usage.cpus for usage in used),
        memory_bytes=sum(usage.memory_bytes for usage in used),
        warm_nodes=sum(warm) if warm else None,
    )


def state_summary(
    core: MasterCore, now: float, checkpoints: CheckpointAge, time: datetime
) -> dict[str, str]:
    """Return the state for clients; ``time`` is that of the report, from which they see its age."""
    account, state = core.state.persistent.account, core.rendezvous.state
    goodput, pace = account.goodput(now), world_progress(core)
    checkpoints.observe_steps(goodput.step, pace.checkpoint_step, now)
    restart = account.restart or Restart()
    parts = {name: round(seconds, 1) for name, seconds in sorted(goodput.parts_s.items())}
    return {
        "goodput": f"{goodput.share:.4f}",
        "wallSeconds": f"{goodput.wall_s:.1f}",
        "productiveSeconds": f"{goodput.productive_s:.1f}",
        "unproductive": ", ".join(f"{name} {seconds} s" for name, seconds in parts.items()),
        "step": _text(goodput.step),
        "stepAgeSeconds": f"{checkpoints.step_age_s(now):.0f}",
        "totalSteps": _text(checkpoints.total_steps),
        "loss": "" if checkpoints.loss is None else f"{checkpoints.loss:.6g}",
        "metrics": json.dumps(checkpoints.metrics) if checkpoints.metrics else "",
        "stepsPerSecond": plain_number(pace.steps_per_s, 4),
        "checkpointStep": _text(pace.checkpoint_step),
        "savesSkipped": str(pace.saves.skipped),
        "savesOvertaken": str(pace.saves.overtaken),
        "savesFailed": str(pace.saves.failed),
        "stepsLost": str(goodput.steps_lost),
        "restarts": str(goodput.restarts),
        "replaced": str(checkpoints.replaced),
        "replacement": checkpoints.replacement,
        "failures": str(goodput.failures),
        "restartCause": restart.cause,
        "restartNode": _text(restart.node),
        "restartExitCode": _text(restart.exit_code),
        "restartStep": _text(restart.step),
        "restartSeconds": f"{restart.seconds:.1f}",
        "restartNumber": str(restart.number),
        "round": str(state.round),
        "nodes": str(len(state.members)),
        "waitingNodes": str(len(state.waiting)),
        "warmNodes": _text(pace.warm_nodes),
        "cpus": f"{pace.cpus:.1f}",
        "memoryBytes": str(pace.memory_bytes),
        "lastEvent": core.state.persistent.events[-1].reason
        if core.state.persistent.events
        else "",
        "time": time.isoformat(timespec="seconds"),
    }


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _status(core: MasterCore, job: str, events_after: int, now: float) -> msg.JobStatusReply:
    persistent, state = core.state.persistent, core.rendezvous.state
    skipped = max(0, events_after + 1 - persistent.first_event)
    return msg.JobStatusReply(
        job=job,
        round=state.round,
        world=None if state.is_broken else state.world,
        waiting=tuple(state.waiting),
        dead=tuple(state.gone),
        goodput=persistent.account.goodput(now),
        events=tuple(persistent.events[skipped:]),
        events_seen=persistent.first_event + len(persistent.events) - 1,
        datasets=tuple(one.name for one in core.state.ledger.states()),
    )


def _unknown(dataset: str) -> msg.RequestRefused:
    return msg.RequestRefused(reason="UnknownDataset", message=f"there is no data set {dataset}")


def metrics_page(
    core: MasterCore, now: float, checkpoints: CheckpointAge | None = None, queue: str = ""
) -> bytes:
    """Return the metrics page: numbers only, no content of the job."""
    # The import is slow; only a master that is scraped needs it.
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    goodput = core.state.persistent.account.goodput(now)
    state = core.rendezvous.state

    def gauge(name: str, text: str, value: float) -> None:
        Gauge(f"gangline_master_{name}", text, registry=registry).set(value)

    if queue:
        Gauge(
            "gangline_master_queue", "1, with the job's queue as label.", ["queue"],
            registry=registry,
        ).labels(queue).set(1)  # fmt: skip
    gauge("goodput_ratio", "Productive share of the job's wall time.", goodput.share)
    gauge("wall_seconds", "The job's wall time so far.", goodput.wall_s)
    gauge("productive_seconds", "Time spent in steps that were not lost.", goodput.productive_s)
    parts = Gauge(
        "gangline_master_unproductive_seconds",
        "Time that was not productive, by phase.",
        ["phase"],
        registry=registry,
    )
    for phase, seconds in goodput.parts_s.items():
        parts.labels(phase).set(seconds)
    gauge("step", "The last step reported.", goodput.step or 0)
    pace = world_progress(core)
    gauge("steps_per_second", "Speed of the slowest node.", pace.steps_per_s)
    gauge("checkpoint_step", "The last step of a complete checkpoint.", pace.checkpoint_step or 0)
    for name, text, number in (
        ("skipped", "Saves for which no memory was free", pace.saves.skipped),
        ("overtaken", "Saves that newer ones replaced before their upload", pace.saves.overtaken),
        ("failed", "Failed writes of a checkpoint to storage", pace.saves.failed),
    ):
        gauge(f"checkpoint_saves_{name}", f"{text}, since the workers' last start.", number)
    if checkpoints is not None:
        if (age_s := checkpoints.age_s(now)) is not None:
            text = "Time since a new step was completely saved, in memory or in storage."
            gauge("checkpoint_age_seconds", text, age_s)
        if checkpoints.interval_s is not None:
            text = "Time between two checkpoints, as the workers plan it."
            gauge("checkpoint_interval_seconds", text, checkpoints.interval_s)
        if checkpoints.save_s is not None:
            text = "Time for which a save stops training; a running mean."
            gauge("checkpoint_save_seconds", text, checkpoints.save_s)
    gauge("workers_cpus", "Processors that the workers use.", pace.cpus)
    gauge("workers_memory_bytes", "Memory that the workers use.", pace.memory_bytes)
    gauge("steps_lost", "Steps that were repeated.", goodput.steps_lost)
    gauge("restarts", "Worlds formed after the first.", goodput.restarts)
    gauge("failures", "Failures of workers that agents reported.", goodput.failures)
    gauge("round", "The round of the last world.", state.round)
    gauge("members", "Nodes in the world.", len(state.members))
    gauge("warm_nodes", "Nodes that restart their workers without imports.", pace.warm_nodes or 0)
    gauge("waiting_nodes", "Nodes that wait for a world.", len(state.waiting))
    gauge("gone_nodes", "Nodes that died or left.", len(state.gone))
    for name, text in (
        ("leased", "Leased shards."),
        ("done_shards", "Shards that are done."),
        ("done_records", "Records that are done."),
    ):
        family = Gauge(f"gangline_master_{name}", text, ["dataset"], registry=registry)
        for dataset in core.state.ledger.states():
            family.labels(dataset.name).set(getattr(dataset, name))
    return generate_latest(registry)
