"""Answers to requests that change nothing and need not wait. Pure."""

from gangline.elastic.master.core import Core
from gangline.elastic.protocol import messages as msg


def answer_to(wish: msg.Request, core: Core, job: str, now: float) -> msg.Reply:
    """Answer a question about keys, shards, the account of time or the job."""
    ledger = core.state.ledger
    match wish:
        case msg.KeyValueGet(keys=keys):
            return core.values_of(keys)
        case msg.GoodputWanted():
            return core.state.kept.account.goodput(now)
        case msg.StatusWanted(events_after=after):
            return _status(core, job, after, now)
        case msg.ShardCheckpointWanted(dataset=name):
            content = ledger.checkpoint(name)
            return _unknown(name) if content is None else msg.ShardCheckpoint(content=content)
        case msg.DatasetStateWanted(dataset=name):
            state = ledger.state(name)
            return _unknown(name) if state is None else msg.DatasetStateKnown(state=state)
        case _:
            return msg.Refused(reason="BadRequest", message=f"{type(wish).__name__} is no question")


def summary_of(core: Core, now: float) -> dict[str, str]:
    """Say in a few words how the job is: what stands in the ConfigMap beside the state."""
    goodput, state = core.state.kept.account.goodput(now), core.rendezvous.state
    parts = {name: round(seconds, 1) for name, seconds in sorted(goodput.parts_s.items())}
    return {
        "goodput": f"{goodput.share:.4f}",
        "wallSeconds": f"{goodput.wall_s:.1f}",
        "productiveSeconds": f"{goodput.productive_s:.1f}",
        "unproductive": ", ".join(f"{name} {seconds} s" for name, seconds in parts.items()),
        "step": "" if goodput.step is None else str(goodput.step),
        "stepsLost": str(goodput.steps_lost),
        "restarts": str(goodput.restarts),
        "failures": str(goodput.failures),
        "round": str(state.round),
        "nodes": str(len(state.members)),
        "waitingNodes": str(len(state.waiting)),
        "lastEvent": core.state.kept.events[-1].reason if core.state.kept.events else "",
    }


def _status(core: Core, job: str, events_after: int, now: float) -> msg.Status:
    kept, state = core.state.kept, core.rendezvous.state
    skipped = max(0, events_after + 1 - kept.first_event)
    return msg.Status(
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


def _unknown(dataset: str) -> msg.Refused:
    return msg.Refused(reason="UnknownDataset", message=f"there is no data set {dataset}")
