"""The day of each node: the speed of its ranks in all jobs, failed checks, failures. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from gangline.brain.advisers.stragglers import node_scores
from gangline.brain.advisers.view import NodeCheckResult
from gangline.brain.evaluation.exposure import is_node_failure
from gangline.brain.facts.records import NodeSpeed, RankSpeed, Run

DAY_MS = 86_400_000


class NodeDays:
    """Collects the present day; another day begins anew."""

    def __init__(self) -> None:
        self._day = -1
        self._scores: dict[str, dict[str, float]] = {}
        """By node and job: its latest score."""
        self._failed_checks: dict[str, set[int]] = {}
        self._failures: dict[str, set[tuple[str, int]]] = {}

    def add(
        self,
        run: Run,
        speeds: Iterable[RankSpeed],
        checks: Iterable[NodeCheckResult],
        now_ms: int,
    ) -> None:
        """Add what is known of one job now; repeated facts change nothing."""
        day = now_ms // DAY_MS
        if day != self._day:
            self._day = day
            self._scores, self._failed_checks, self._failures = {}, {}, {}
        uid = run.job.uid
        for node, score in node_scores(speeds).items():
            self._scores.setdefault(node, {})[uid] = score
        for check in checks:
            if check.slow and check.at_ms // DAY_MS == day:
                self._failed_checks.setdefault(check.node, set()).add(check.at_ms)
        for pod in run.pods:
            if is_node_failure(pod) and (pod.ended_ms or 0) // DAY_MS == day:
                self._failures.setdefault(pod.node, set()).add((uid, pod.rank))

    def records(self, models: Mapping[str, str], now_ms: int) -> list[NodeSpeed]:
        """Return the day of each node of which anything is known; ``models`` are by node."""
        found: dict[str, list[float]] = defaultdict(list)
        for node, scores in self._scores.items():
            found[node] = list(scores.values())
        for node in (*self._failed_checks, *self._failures):
            _ = found[node]
        return [
            NodeSpeed(
                node=node,
                gpu_model=models.get(node, ""),
                day=self._day,
                score=fmean(scores) if scores else 1.0,
                jobs=len(scores),
                checks_failed=len(self._failed_checks.get(node, ())),
                failures=len(self._failures.get(node, ())),
                observed_ms=now_ms,
            )
            for node, scores in sorted(found.items())
            if node
        ]
