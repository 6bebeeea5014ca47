"""Replies to requests that change nothing and never wait."""

from dataclasses import dataclass, field

from gangline.elastic.master.core import MasterCore
from gangline.elastic.progress import SaveCounts
from gangline.elastic.protocol import messages as msg


def answer_query(request: msg.Request, core: MasterCore, job: str, now: float) -> msg.Reply:
    """Answer a request about keys, shards, goodput or the job."""
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


def world_progress(core: MasterCore) -> WorldProgress:
    members = core.rendezvous.state.members
    beats = [beat for node, beat in core.heartbeats.items() if node in members]
    used = [beat.resources for beat in beats if beat.resources is not None]
    saved = [beat.checkpoint_step for beat in beats if beat.checkpoint_step is not None]
    return WorldProgress(
        steps_per_s=min((beat.steps_per_s for beat in beats if beat.steps_per_s), default=0.0),
        checkpoint_step=min(saved, default=None),
        saves=SaveCounts.merge_max(beat.saves for beat in beats),
        cpus=sum(each.cpus for each in used),
        memory_bytes=sum(each.memory_bytes for each in used),
    )


def state_summary(core: MasterCore, now: float) -> dict[str, str]:
    """Summarize the job for the ConfigMap, beside the state."""
    goodput, state = core.state.persistent.account.goodput(now), core.rendezvous.state
    pace = world_progress(core)
    parts = {name: round(seconds, 1) for name, seconds in sorted(goodput.parts_s.items())}
    return {
        "goodput": f"{goodput.share:.4f}",
        "wallSeconds": f"{goodput.wall_s:.1f}",
        "productiveSeconds": f"{goodput.productive_s:.1f}",
        "unproductive": ", ".join(f"{name} {seconds} s" for name, seconds in parts.items()),
        "step": "" if goodput.step is None else str(goodput.step),
        "stepsPerSecond": f"{pace.steps_per_s:.4g}",
        "checkpointStep": "" if pace.checkpoint_step is None else str(pace.checkpoint_step),
        "savesSkipped": str(pace.saves.skipped),
        "savesOvertaken": str(pace.saves.overtaken),
        "savesFailed": str(pace.saves.failed),
        "stepsLost": str(goodput.steps_lost),
        "restarts": str(goodput.restarts),
        "failures": str(goodput.failures),
        "round": str(state.round),
        "nodes": str(len(state.members)),
        "waitingNodes": str(len(state.waiting)),
        "cpus": f"{pace.cpus:.1f}",
        "memoryBytes": str(pace.memory_bytes),
        "lastEvent": core.state.persistent.events[-1].reason
        if core.state.persistent.events
        else "",
    }


def _status(core: MasterCore, job: str, events_after: int, now: float) -> msg.JobStatusReply:
    kept, state = core.state.persistent, core.rendezvous.state
    skipped = max(0, events_after + 1 - kept.first_event)
    return msg.JobStatusReply(
        job=job,
        round=state.round,
        world=None if state.is_broken else state.world,
        waiting=tuple(state.waiting),
        dead=tuple(state.gone),
        goodput=kept.account.goodput(now),
        events=tuple(kept.events[skipped:]),
        events_seen=kept.first_event + len(kept.events) - 1,
        datasets=tuple(one.name for one in core.state.ledger.states()),
    )


def _unknown(dataset: str) -> msg.RequestRefused:
    return msg.RequestRefused(reason="UnknownDataset", message=f"there is no data set {dataset}")
