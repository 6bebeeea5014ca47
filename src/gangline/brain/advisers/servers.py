"""Parameter servers: one that is hot, all that are hot, memory that grows, servers that idle.

Hot is CPU of at least 0.9 of the limit in three of the last five minutes. If one is hot and the
others are not, only that one moves, to more CPU. If all are, all move to more CPU where the nodes
have it free; else fewer workers, so that servers are at 0.85. While none is hot, workers are added
as long as throughput grows with them. A server without a known limit or use is neither hot nor
idle: there is no advice for it.

A server runs until the one in its place does, so the new one needs free CPU and memory beside it.

Throughput of ``w`` asynchronous workers is ``w / (a + b w)`` steps a second: ``a`` is a worker's
own time for a step, ``b`` what each step takes of the servers, one worker after the other. Where
one size was run only, ``b`` is the servers' CPU use: at full use they make no more steps.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from gangline.api.jobs.elastic import PS
from gangline.api.jobs.training_facts import GOOD, SegmentFacts
from gangline.brain.advisers.advice import (
    Advice,
    Arguments,
    Choice,
    Confidence,
    Reason,
    Unit,
    What,
    because,
)
from gangline.brain.advisers.view import AdviserView, ServerUse, expected_rest_s
from gangline.brain.advisers.workers import best_size, floor_of, possible_sizes, worker_advice
from gangline.brain.models.nnls import nnls
from gangline.brain.models.trend import fit_trend

HOT, HOT_MINUTES, OF_MINUTES = 0.9, 3, 5
SKEW = 1.5
TARGET = 0.85
IDLE, IDLE_MINUTES = 0.4, 60
IDLE_REST_S = 3600.0
_MEMORY_MARGIN = 1.15
_UNCERTAIN = (2.0, 1.3)
"""Factor of ``b`` at the lower end of a range: where one size was run, and where several were."""


def advise_servers(view: AdviserView) -> list[Advice]:
    """Advise CPU and memory of parameter servers, and the number of workers that they serve."""
    if view.run.job.strategy != "ps":
        return []
    return [*_advise_cpu(view), *_advise_memory(view)]


def _advise_cpu(view: AdviserView) -> list[Advice]:
    servers = [server for server in view.servers if server.cpu_limit_millis and server.cpu_millis]
    if not servers or len(servers) < len(view.servers):
        return []
    # Programs without an agent report no batch.
    good = [segment for segment in view.run.segments if segment.quality == GOOD]
    hot = [server for server in servers if _is_hot(server)]
    if not hot:
        return [*_advise_idle(view, servers), *_more_workers(view, good, max(map(_share, servers)))]
    worst = max(hot, key=_recent)
    others = [server for server in servers if server is not worst]
    if others and _recent(worst) > SKEW * fmean(map(_recent, others)):
        return _move_one(view, worst, fmean(map(_share, others)))
    return _more_for_all(view, servers, good)


def _recent(server: ServerUse) -> float:
    """Millicores, the mean of the last minutes."""
    return fmean(server.cpu_millis[-OF_MINUTES:])


def _share(server: ServerUse) -> float:
    return _recent(server) / (server.cpu_limit_millis or 1)


def _is_hot(server: ServerUse) -> bool:
    limit = server.cpu_limit_millis or 1
    last = server.cpu_millis[-OF_MINUTES:]
    return sum(use >= HOT * limit for use in last) >= HOT_MINUTES


def _move_one(view: AdviserView, server: ServerUse, others: float) -> list[Advice]:
    """Its load at the limit is cut off, so it needs more than it uses: half as much again."""
    was, wanted = server.cpu_limit_millis or 0, math.ceil(SKEW * _recent(server) / TARGET)
    free = view.cluster.most_free(server.memory_limit_bytes or 0)
    if free is None or wanted <= was:
        return []
    best, millis = free
    arguments: Arguments = {"rank": server.rank, "node": server.node, "used": _share(server)}
    if millis < wanted:
        arguments |= {"wanted": wanted, "free": millis, "best": best or "no node"}
    if millis <= was:
        reason = because("NoNodeForServer", **arguments)
        return [_advice(view, What.WARNING, reason, rank=server.rank, target=reason.code)]
    reason = because("SkewedServer", others=others, **arguments)
    return [_cpu(view, was, min(wanted, millis), reason, rank=server.rank)]


def _more_for_all(
    view: AdviserView, servers: Sequence[ServerUse], good: Sequence[SegmentFacts]
) -> list[Advice]:
    was = max(server.cpu_limit_millis or 0 for server in servers)
    memory = max(server.memory_limit_bytes or 0 for server in servers)
    used = fmean(map(_share, servers))
    wanted = math.ceil(was * used / TARGET * SKEW)
    value = view.cluster.most_free_for(len(servers), memory, wanted)
    if value is None:
        return []
    limits: Arguments = {} if value == wanted else {"wanted": wanted, "free": value}
    if value > was:
        return [_cpu(view, was, value, because("HotServers", used=used, **limits))]
    now = good[-1].nodes if good else 0
    workers = max(math.floor(now * TARGET / used), view.run.job.workers_min or 1)
    if workers >= now:
        return []
    reason = because("HotServersFewerWorkers", used=used, target=used * workers / now, **limits)
    # Workers wait for the servers: without some of them as much is done.
    fewer = Choice(value=workers, goodput=1.0, low=workers / now, high=1.0)
    return [worker_advice(now, fewer, (), reason, evidence=(view.run.job.uid,))]


def _more_workers(view: AdviserView, good: Sequence[SegmentFacts], used: float) -> list[Advice]:
    """The largest number whose last workers still bring their share, and make no server hot."""
    if not good:
        return []
    present, measured = good[-1], {segment.nodes for segment in good}
    choices = _choices(view, good, used, len(measured))
    floor = floor_of(view.cluster.price)
    best = best_size(choices, present.nodes, floor)
    if best.value <= present.nodes:
        return []
    reason = because(
        "MoreServedWorkers",
        used=used,
        rate=1 / present.step_seconds.mean,
        sizes=len(measured),
        goodput=best.goodput - 1,
        goodput_low=best.low - 1,
        goodput_high=best.high - 1,
        then=used * best.goodput,
    )
    return [
        worker_advice(
            present.nodes,
            best,
            choices,
            reason,
            low=present.nodes,
            high=max(choice.value for choice in choices),
            evidence=(view.run.job.uid,),
            confidence=Confidence.MEDIUM if best.value in measured else Confidence.LOW,
            extrapolated=best.value not in measured,
            floor=floor,
        )
    ]


def _choices(
    view: AdviserView, good: Sequence[SegmentFacts], used: float, sizes: int
) -> list[Choice]:
    """Throughput of each possible size up to where servers are at 0.85, relative to now."""
    now = good[-1].nodes
    own, shared = _worker_times(good, used, sizes)
    slower = min(shared * _UNCERTAIN[sizes > 1], (own + shared * now) / now)

    def relative(size: int, each: float) -> float:
        """With ``own`` so that the present size has its measured time."""
        rest = own + (shared - each) * now
        return (size / now) * (rest + each * now) / (rest + each * size)

    choices = []
    for size in sorted({*possible_sizes(view.run.job), now}):
        goodput, ends = relative(size, shared), (relative(size, slower), relative(size, 0.0))
        if size <= now or used * goodput <= TARGET:
            choices.append(Choice(value=size, goodput=goodput, low=min(ends), high=max(ends)))
    return choices


def _worker_times(good: Sequence[SegmentFacts], used: float, sizes: int) -> tuple[float, float]:
    """Return ``a`` and ``b`` in seconds."""
    times = np.array([s.nodes * s.step_seconds.mean for s in good])
    if sizes < 2:
        shared = good[-1].step_seconds.mean * min(used, 1.0)
        return float(times[-1]) - good[-1].nodes * shared, shared
    # Relative errors count, by steps.
    roots = np.sqrt([s.steps for s in good]) / times
    rows = np.array([[1.0, s.nodes] for s in good]) * roots[:, None]
    own, shared = nnls(rows, times * roots).x
    return float(own), float(shared)


def _advise_idle(view: AdviserView, servers: Sequence[ServerUse]) -> list[Advice]:
    rest_s = expected_rest_s(view)
    is_short = any(len(server.cpu_millis) < IDLE_MINUTES for server in servers)
    if rest_s is None or rest_s <= IDLE_REST_S or is_short:
        return []
    hours = [(max(one.cpu_millis[-IDLE_MINUTES:]), one.cpu_limit_millis or 1) for one in servers]
    peak, was = max(used / limit for used, limit in hours), max(limit for _, limit in hours)
    value = math.ceil(was * peak / TARGET)
    reason = because("IdleServers", used=peak)
    return [_cpu(view, was, value, reason)] if peak < IDLE else []


def _advise_memory(view: AdviserView) -> list[Advice]:
    """Embeddings grow with the distinct records; memory is raised before it ends."""
    rest_s = expected_rest_s(view)
    advice = []
    for server in view.servers:
        limit, uses = server.memory_limit_bytes, server.memory_bytes
        trend = fit_trend([60.0 * minute for minute in range(len(uses))], uses)
        if limit is None or rest_s is None or trend is None or not trend.grows:
            continue
        left_s = (limit - uses[-1]) / trend.slope
        if left_s >= rest_s:
            continue
        value = (uses[-1] + trend.slope * rest_s) * _MEMORY_MARGIN
        nodes = [node.free for node in view.cluster.nodes]
        free = [memory for cpu, memory in nodes if cpu >= (server.cpu_limit_millis or 0)]
        value = min(value, max(free, default=0)) if nodes else value
        if value <= limit:
            continue
        reason = because(
            "ServerMemoryGrows",
            rank=server.rank,
            hourly=trend.slope * 3600,
            left=max(left_s, 0.0),
            rest=rest_s,
        )
        memory = {"unit": Unit.BYTES, "was": limit, "value": math.ceil(value)}
        advice.append(_advice(view, What.PS_MEMORY, reason, rank=server.rank, **memory))
    return advice


def _cpu(view: AdviserView, was: int, value: int, reason: Reason, **rank: int) -> Advice:
    amounts = {"unit": Unit.MILLICORES, "was": was, "value": value}
    return _advice(view, What.PS_CPU, reason, **amounts, **rank)


def _advice(view: AdviserView, what: What, reason: Reason, **values: Any) -> Advice:
    return Advice(what=what, role=PS, reason=reason, evidence=(view.run.job.uid,), **values)
