"""Parameter servers: one that is hot, all that are hot, memory that grows, servers that idle.

Hot is CPU of at least 0.9 of the limit in three of the last five minutes. If one is hot and the
others are not, only that one moves, to more CPU. If all are, they get more CPU where a node has it;
else fewer workers, so that servers are at 0.85. A server without a known limit or use is neither
hot nor idle: there is no advice for it.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from gangline.brain.advisers.advice import Advice, Confidence, Reason, Unit, What, because
from gangline.brain.advisers.view import ServerUse, View, expected_rest_s
from gangline.brain.advisers.workers import present_segment
from gangline.brain.models.trend import fit_trend

HOT, HOT_MINUTES, OF_MINUTES = 0.9, 3, 5
SKEW = 1.5
TARGET = 0.85
IDLE, IDLE_MINUTES = 0.4, 60
IDLE_REST_S = 3600.0
_MEMORY_MARGIN = 1.15


def advise_servers(view: View) -> list[Advice]:
    """Advise CPU and memory of parameter servers, or fewer workers."""
    if view.run.job.strategy != "ps":
        return []
    return [*_advise_cpu(view), *_advise_memory(view)]


def _advise_cpu(view: View) -> list[Advice]:
    servers = [server for server in view.servers if server.cpu_limit_millis and server.cpu_millis]
    if not servers or len(servers) < len(view.servers):
        return []
    hot = [server for server in servers if _is_hot(server)]
    if not hot:
        return _advise_idle(view, servers)
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


def _move_one(view: View, server: ServerUse, others: float) -> list[Advice]:
    """Its load at the limit is cut off, so it needs more than it uses: half as much again."""
    largest, was = view.cluster.largest_cpu_millis, server.cpu_limit_millis or 0
    value = math.ceil(SKEW * _recent(server) / TARGET)
    value = value if largest is None else min(value, largest)
    if value <= was:
        return []
    reason = because(
        "SkewedServer", rank=server.rank, node=server.node, used=_share(server), others=others
    )
    return [_cpu_advice(view, was, value, reason, rank=server.rank)]


def _more_for_all(view: View, servers: Sequence[ServerUse]) -> list[Advice]:
    largest = view.cluster.largest_cpu_millis
    was = max(server.cpu_limit_millis or 0 for server in servers)
    used = fmean(_share(server) for server in servers)
    value = math.ceil(was * used / TARGET * SKEW)
    if largest is not None and value <= largest:
        return [_cpu_advice(view, was, value, because("HotServers", used=used))]
    present = present_segment(view.run)
    if largest is None or present is None:
        return []
    least = view.run.job.workers_min or 1
    workers = max(math.floor(present.nodes * TARGET / used), least)
    if workers >= present.nodes:
        return []
    target = used * workers / present.nodes
    return [
        Advice(
            what=What.WORKERS,
            role="worker",
            was=present.nodes,
            value=workers,
            reason=because("HotServersFewerWorkers", used=used, target=target),
            evidence=(view.run.job.uid,),
            # Workers wait for the servers: without some of them as much is done.
            gain=present.nodes / workers - 1,
            gain_low=0.0,
        )
    ]


def _advise_idle(view: View, servers: Sequence[ServerUse]) -> list[Advice]:
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


def _advise_memory(view: View) -> list[Advice]:
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
        largest = view.cluster.largest_memory_bytes
        value = value if largest is None else min(value, largest)
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
                role="ps",
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
    view: View, was: int, value: int, reason: Reason, rank: int | None = None
) -> Advice:
    return Advice(
        what=What.PS_CPU,
        role="ps",
        rank=rank,
        unit=Unit.MILLICORES,
        was=was,
        value=value,
        reason=reason,
        evidence=(view.run.job.uid,),
        confidence=Confidence.MEDIUM,
    )
