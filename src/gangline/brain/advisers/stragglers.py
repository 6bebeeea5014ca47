"""Slow ranks, slow nodes: which node to check, and which to leave after a check.

A rank is slow if its own time exceeds the median by 10 % and its robust z-score is at least 3.5, in
five of six windows of a minute, among the ranks of one device model. Fewer than four ranks have no
usable median: they are compared with the history of their nodes only. If many ranks are slow, the
cause is the network, the data or the job, and no node is blamed.

With exchanges the ranks wait for each other, and compute times that contain a part of an exchange
look equal; the slow rank is then the one that waits least. So the own time of a rank is the time of
the step without its wait, wherever waits are reported.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, TypeVar

from gangline.brain.advisers.advice import Advice, Arguments, Confidence, Reason, What, because
from gangline.brain.advisers.view import AdviserView
from gangline.brain.facts.records import NodeSpeed, RankSpeed

K = TypeVar("K")
T = TypeVar("T")

SLOW = 0.10
Z = 3.5
WINDOWS, NEEDED = 6, 5
LEAST_RANKS = 4
GROUP_SHARE = 0.25
"""Share of slow ranks above which no node is the cause."""
NODE_FACTOR = 0.9
NODE_JOBS = 3
HALF_LIFE_DAYS = 7.0
CHECK_AGE_MS = 3600 * 1000
_HISTORY_DAYS = 30


def advise_stragglers(view: AdviserView) -> list[Advice]:
    """Advise checks of slow nodes, evictions after a check, or name what else is slow."""
    by_model = _group_by(view.rank_speeds, lambda speed: speed.gpu_model)
    return [item for speeds in by_model.values() for item in _advise_ranks(view, speeds)]


def _group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def node_factor(speeds: Iterable[NodeSpeed], today: int) -> tuple[float, int]:
    """Return a node's speed against the median of its jobs, and the number of these jobs.

    Days count by their jobs and by half after each week. 1.0 is the median, 0.9 is slower.
    """
    recent = [speed for speed in speeds if today - speed.day <= _HISTORY_DAYS]
    weights = [s.jobs * 0.5 ** (max(today - s.day, 0) / HALF_LIFE_DAYS) for s in recent]
    total = sum(weight * s.score for weight, s in zip(weights, recent, strict=True))
    return (total / sum(weights) if any(weights) else 1.0), sum(s.jobs for s in recent)


def node_scores(speeds: Iterable[RankSpeed]) -> dict[str, float]:
    """Return the speed of each node of one job against the median of its ranks.

    1.0 is the median, 0.9 is slower. Nodes of one device model are compared, at least four ranks.
    """
    scores: dict[str, list[float]] = defaultdict(list)
    for group in _group_by(speeds, lambda speed: speed.gpu_model).values():
        nodes = {speed.rank: speed.node for speed in group}
        for window in _windows(group):
            if len(window) < LEAST_RANKS:
                continue
            middle = median(window.values())
            for rank, own in window.items():
                scores[nodes[rank]].append(middle / own)
    return {node: median(ratios) for node, ratios in scores.items()}


def suspected_nodes(speeds: Iterable[NodeSpeed], today: int) -> dict[str, tuple[float, int]]:
    """Return the nodes below 0.9 in at least three jobs, or with a failed check.

    With the factor and the number of jobs of each, as ``node_factor`` does.
    """
    suspected = {}
    for node, days in sorted(_group_by(speeds, lambda speed: speed.node).items()):
        factor, jobs = node_factor(days, today)
        failed = sum(day.checks_failed for day in days if today - day.day <= HALF_LIFE_DAYS)
        if (factor < NODE_FACTOR and jobs >= NODE_JOBS) or failed:
            suspected[node] = factor, jobs
    return suspected


def _advise_ranks(view: AdviserView, speeds: Sequence[RankSpeed]) -> list[Advice]:
    windows = _windows(speeds)[-WINDOWS:]
    ranks = {rank for window in windows for rank in window}
    nodes = {speed.rank: speed.node for speed in speeds}
    if len(ranks) < LEAST_RANKS:
        return _by_history(view, {nodes[rank]: rank for rank in ranks})
    if len(windows) < NEEDED:
        return []
    group = _slow_group(windows, ranks)
    if group > GROUP_SHARE * len(ranks):
        return [_advice(None, because("SlowGroup", slow=group, ranks=len(ranks)))]
    advice = []
    for rank in sorted(ranks):
        slower, node = _slow_in(windows, rank), nodes[rank]
        if slower is None:
            continue
        known: Arguments = {"rank": rank, "node": node, "slower": slower, "ranks": len(ranks)}
        checks = [
            check.slow
            for check in view.node_checks
            if check.node == node and view.now_ms - check.at_ms <= CHECK_AGE_MS
        ]
        if checks and not checks[-1]:
            # The check found nothing: the rank has more work than the others.
            advice.append(_advice(rank, because("SlowRankGoodNode", **known)))
            continue
        reason = because("SlowRankConfirmed" if checks else "SlowRank", **known)
        confidence = Confidence.HIGH if checks else Confidence.MEDIUM
        # All ranks wait for the slowest one, so its excess is what the job gains.
        advice.append(_advice(rank, reason, node, confidence=confidence, gain=slower))
    return advice


def _advice(rank: int | None, reason: Reason, node: str = "", **more: Any) -> Advice:
    """Advice on a node; a warning without one."""
    return Advice(
        what=What.NODE if node else What.WARNING,
        role="worker",
        rank=rank,
        target=node or reason.code,
        reason=reason,
        **more,
    )


def _windows(speeds: Sequence[RankSpeed]) -> list[dict[int, float]]:
    """Own times by rank for each window, oldest first."""
    by_window = _group_by(speeds, lambda speed: speed.window_ms)
    return [_own_times(window) for _, window in sorted(by_window.items())]


def _own_times(speeds: Sequence[RankSpeed]) -> dict[int, float]:
    if any(speed.wait_s is None for speed in speeds):
        return {speed.rank: speed.compute_s for speed in speeds}
    step = median(speed.compute_s + (speed.wait_s or 0.0) for speed in speeds)
    return {speed.rank: max(step - (speed.wait_s or 0.0), speed.compute_s) for speed in speeds}


def _slow_in(windows: Sequence[dict[int, float]], rank: int) -> float | None:
    """The median excess of a rank that is slow in enough windows; else None."""
    excesses = []
    for window in windows:
        if (own := window.get(rank)) is None:
            continue
        middle = median(window.values())
        deviation = median(abs(time - middle) for time in window.values())
        excess = own / middle - 1
        if excess >= SLOW and 0.6745 * (own - middle) >= Z * deviation:
            excesses.append(excess)
    return median(excesses) if len(excesses) >= NEEDED else None


def _slow_group(windows: Sequence[dict[int, float]], ranks: set[int]) -> int:
    """Ranks that are 10 % slower than the fastest quarter in enough windows.

    Half of the ranks move the median, so the fastest quarter is the reference here.
    """
    slow: Counter[int] = Counter()
    for window in windows:
        fast = sorted(window.values())[max(len(window) // 4 - 1, 0)]
        slow.update(rank for rank, own in window.items() if own >= (1 + SLOW) * fast)
    return sum(slow[rank] >= NEEDED for rank in ranks)


def _by_history(view: AdviserView, ranks: dict[str, int]) -> list[Advice]:
    """Few ranks: only a node that was slow in other jobs is named."""
    today = view.now_ms // 86_400_000
    suspected = suspected_nodes(view.cluster.node_speeds, today)
    advice = []
    for node in sorted(ranks.keys() & suspected.keys()):
        factor, jobs = suspected[node]
        reason = because("SlowNode", node=node, slower=max(1 / factor - 1, 0.0), jobs=jobs)
        advice.append(_advice(ranks[node], reason, node))
    return advice
