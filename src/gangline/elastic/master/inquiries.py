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
