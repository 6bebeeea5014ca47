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
from gangline.brain.advisers.workers import best_size, floor_of, possible_sizes
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
    hot = [server for server in servers if _is_hot(server)]
    if not hot:
        return [*_advise_idle(view, servers), *_more_workers(view, servers)]
    worst = max(hot, key=_recent)
    others = [_recent(server) for server in servers if server is not worst]
    if others and _recent(worst) > SKEW * fmean(others):
        return _move_one(view, worst, fmean(_share(s) for s in servers if s is not worst))
    return _more_for_all(view, servers)


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
        return [
            Advice(
                what=What.WARNING,
                role=PS,
                rank=server.rank,
                target="NoNodeForServer",
                reason=because("NoNodeForServer", **arguments),
                evidence=(view.run.job.uid,),
            )
        ]
    reason = because("SkewedServer", others=others, **arguments)
    return [_cpu_advice(view, was, min(wanted, millis), reason, rank=server.rank)]


def _more_for_all(view: AdviserView, servers: Sequence[ServerUse]) -> list[Advice]:
    was = max(server.cpu_limit_millis or 0 for server in servers)
    memory = max(server.memory_limit_bytes or 0 for server in servers)
    used = fmean(_share(server) for server in servers)
    wanted = math.ceil(was * used / TARGET * SKEW)
    value = view.cluster.most_free_for(len(servers), memory, wanted)
    if value is None:
        return []
    limits: Arguments = {} if value == wanted else {"wanted": wanted, "free": value}
    if value > was:
        return [_cpu_advice(view, was, value, because("HotServers", used=used, **limits))]
    present = _present(view)
    if present is None:
        return []
    workers = max(math.floor(present.nodes * TARGET / used), view.run.job.workers_min or 1)
    if workers >= present.nodes:
        return []
    target = used * workers / present.nodes
    return [
        Advice(
            what=What.WORKERS,
            role="worker",
            was=present.nodes,
            value=workers,
            reason=because("HotServersFewerWorkers", used=used, target=target, **limits),
            evidence=(view.run.job.uid,),
            # Workers wait for the servers: without some of them as much is done.
            gain=present.nodes / workers - 1,
            gain_low=0.0,
        )
    ]


def _present(view: AdviserView) -> SegmentFacts | None:
    """The last good segment. Programs without an agent report no batch."""
    return next((s for s in reversed(view.run.segments) if s.quality == GOOD), None)


def _more_workers(view: AdviserView, servers: Sequence[ServerUse]) -> list[Advice]:
    """The largest number whose last workers still bring their share, and make no server hot."""
    present, used = _present(view), max(map(_share, servers))
    if present is None:
        return []
    measured = {segment.nodes for segment in view.run.segments if segment.quality == GOOD}
    choices = _choices(view, present, used, len(measured))
    floor = floor_of(view.cluster.price)
    best = best_size(choices, present.nodes, floor)
    if best.value <= present.nodes:
        return []
    return [
        Advice(
            what=What.WORKERS,
            role="worker",
            was=present.nodes,
            value=best.value,
            low=present.nodes,
            high=max(choice.value for choice in choices),
            reason=because(
                "MoreServedWorkers",
                used=used,
                rate=1 / present.step_seconds.mean,
                sizes=len(measured),
                goodput=best.goodput - 1,
                goodput_low=best.low - 1,
                goodput_high=best.high - 1,
                then=used * best.goodput,
            ),
            evidence=(view.run.job.uid,),
            confidence=Confidence.MEDIUM if best.value in measured else Confidence.LOW,
            gain=best.goodput - 1,
            gain_low=best.low - 1,
            extrapolated=best.value not in measured,
            floor=floor,
            choices=tuple(choice for choice in choices if choice.value >= present.nodes),
        )
    ]


def _choices(view: AdviserView, present: SegmentFacts, used: float, sizes: int) -> list[Choice]:
    """Throughput of each possible size up to where servers are at 0.85, relative to now."""
    now = present.nodes
    own, shared = _worker_times(view.run.segments, present, used, sizes)
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


def _worker_times(
    segments: Sequence[SegmentFacts], present: SegmentFacts, used: float, sizes: int
) -> tuple[float, float]:
    """Return ``a`` and ``b`` in seconds."""
    if sizes < 2:
        step_s = present.step_seconds.mean
        return present.nodes * step_s * (1 - min(used, 1.0)), step_s * min(used, 1.0)
    good = [segment for segment in segments if segment.quality == GOOD]
    # Relative errors count, by steps.
    times = np.array([s.nodes * s.step_seconds.mean for s in good])
    roots = np.sqrt([s.steps for s in good]) / times
    rows = np.array([[1.0, s.nodes] for s in good]) * roots[:, None]
    own, shared = nnls(rows, times * roots).x
    return float(own), float(shared)


def _advise_idle(view: AdviserView, servers: Sequence[ServerUse]) -> list[Advice]:
    rest_s = expected_rest_s(view)
    if rest_s is None or rest_s <= IDLE_REST_S:
        return []
    if any(len(server.cpu_millis) < IDLE_MINUTES for server in servers):
        return []
    peak = max(
        max(server.cpu_millis[-IDLE_MINUTES:]) / (server.cpu_limit_millis or 1)
        for server in servers
    )
    if peak >= IDLE:
        return []
    was = max(server.cpu_limit_millis or 0 for server in servers)
    value = math.ceil(was * peak / TARGET)
    return [_cpu_advice(view, was, value, because("IdleServers", used=peak))]


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
        advice.append(
            Advice(
                what=What.PS_MEMORY,
                role=PS,
                rank=server.rank,
                unit=Unit.BYTES,
                was=limit,
                value=math.ceil(value),
                reason=reason,
                evidence=(view.run.job.uid,),
            )
        )
    return advice


def _cpu_advice(
    view: AdviserView, was: int, value: int, reason: Reason, rank: int | None = None
) -> Advice:
    return Advice(
        what=What.PS_CPU,
        role=PS,
        rank=rank,
        unit=Unit.MILLICORES,
        was=was,
        value=value,
        reason=reason,
        evidence=(view.run.job.uid,),
        confidence=Confidence.MEDIUM,
    )
