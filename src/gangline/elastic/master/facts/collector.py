"""Collects the facts of the job: passes heartbeats to the digest, and composes what is published.

Everything is in memory. After a restart of the master the segments and pods that were published are
read back; the open segment is lost.
"""

import math
import time
from collections.abc import Callable

import msgspec

from gangline.api.jobs.training_facts import NodeFacts, TrainingFacts
from gangline.elastic.master.node_checks import NodeCheckRequests
from gangline.elastic.master.segments.digest import (
    SEGMENT_S,
    Instant,
    SegmentDigest,
    WorldMembers,
)
from gangline.elastic.master.segments.document import FactsContent, model_facts
from gangline.elastic.master.segments.pods import PodTable, ShortageTable
from gangline.elastic.master.segments.windows import WindowTable
from gangline.elastic.master.state.core import MasterCore
from gangline.elastic.protocol.messages import FailureReport, Heartbeat, NodeReport, Tuning

_NO_WORLD = WorldMembers(0, -1, 0, {})
_LARGEST = 1e30


class FactsCollector:
    def __init__(
        self,
        core: MasterCore,
        now: Callable[[], float],
        checks: NodeCheckRequests,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        segment_s: float = SEGMENT_S,
    ) -> None:
        self.segment_s = segment_s
        self._core, self._now, self._wall_ms, self._checks = core, now, wall_ms, checks
        persistent = core.state.persistent
        running = max(persistent.attempts.values(), default=(-1, -1))
        self._digest = SegmentDigest(lambda: persistent.account.goodput(now()), running, segment_s)
        self._pods = PodTable()
        self._windows = WindowTable()
        self._shortages = ShortageTable()
        self._reports: dict[int, NodeReport] = {}
        self._steps_of: dict[int, tuple[int, int]] = {}
        self._earlier_nodes: tuple[NodeFacts, ...] = ()
        self._checks_seen, self._checked_ms = 0, 0
        self._world = _NO_WORLD
        self._names: dict[int, str] = {}
        self._tuning: dict[int, NodeReport] = {}

    @property
    def changes(self) -> int:
        """A number that rises when there is something new to publish."""
        return self._digest.closed + self._checks_seen + self._shortages.observed

    def load(self, published: TrainingFacts) -> None:
        self._digest.restore(published.segments)
        self._pods = PodTable(published.pods)
        self._shortages = ShortageTable(published.device_shortages)
        self._earlier_nodes = published.nodes

    def observe(self, heartbeat: Heartbeat) -> None:
        """Add a heartbeat; one whose workers do not run ends the segment of their world."""
        world, node = self._members(), heartbeat.node_id
        if world is None or node not in world.ranks:
            return
        if heartbeat.round == 0:
            if node == world.leader:
                self._digest.interrupt()
            return
        report = heartbeat.node
        if report is not None:
            if not _is_plausible(report):
                heartbeat = msgspec.structs.replace(heartbeat, node=None)
            elif report.tuning_version is not None:
                self._tuning[node] = report
            if report.pod:
                self._names[node] = report.pod
            if heartbeat.node is not None and report.device_model:
                self._reports[node] = report
        at = Instant(self._now(), self._wall_ms())
        self._pods.observe(heartbeat, world.ranks[node], at.job_s, at.wall_ms)
        if heartbeat.node is not None:
            self._observe_window(world, heartbeat, heartbeat.node, at)
        if heartbeat.node is not None or node == world.leader:
            self._digest.observe(world, heartbeat, at)

    def _observe_window(
        self, world: WorldMembers, heartbeat: Heartbeat, report: NodeReport, at: Instant
    ) -> None:
        if heartbeat.round != world.round:
            return
        node, step = heartbeat.node_id, heartbeat.step or 0
        round_, before = self._steps_of.get(node, (world.round, step))
        steps = step - before if round_ == world.round else 0
        self._steps_of[node] = (world.round, step)
        self._windows.observe(world.round, node, world.ranks[node], report, steps, at.job_s)

    def add_failure(self, failure: FailureReport, tuning: Tuning | None) -> None:
        report = self._reports.get(failure.node_id)
        self._shortages.observe(failure, report, tuning, self._wall_ms())

    def check(self) -> None:
        if self._members() is None:
            self._digest.interrupt()
        if self._checks.ended != self._checks_seen:
            self._checks_seen, self._checked_ms = self._checks.ended, self._wall_ms()

    def finish(self) -> None:
        self._digest.interrupt()

    def content(self) -> FactsContent:
        versions = [
            report.tuning_version
            for node, report in self._tuning.items()
            if node in self._world.ranks and report.tuning_version is not None
        ]
        return FactsContent(
            segments=[*self._digest.segments],
            pods=self._pods.facts(),
            nodes=self._checked_nodes(),
            windows=self._windows.facts(self._now(), self._wall_ms()),
            shortages=self._shortages.facts(),
            model=model_facts(self._digest.model),
            tuning_version=min(versions, default=None),
            tunes_batch=any(report.tunes_batch for report in self._tuning.values()),
        )

    def _members(self) -> WorldMembers | None:
        state = self._core.rendezvous.state
        if state.world is None or state.is_broken or not state.members:
            return None
        if self._world.round != state.world.round:
            members = state.world.members
            self._world = WorldMembers(
                state.world.round,
                members[0].node_id,
                state.world.world_size,
                {member.node_id: member.group_rank for member in members},
            )
        return self._world

    def _checked_nodes(self) -> list[NodeFacts]:
        """Return the last check of each node. The first one precedes the first world."""
        world = self._core.rendezvous.state.world
        hosts = {} if world is None else {member.node_id: member.host for member in world.members}
        ranks = (
            {} if world is None else {member.node_id: member.group_rank for member in world.members}
        )
        nodes = [
            NodeFacts(
                name=self._names.get(node) or hosts.get(node) or str(node),
                rank=ranks.get(node, -1),
                at=self._checked_ms,
                passed=outcome.passed,
                factor=None if outcome.factor is None else round(outcome.factor, 4),
            )
            for node, outcome in self._checks.outcomes.items()
        ]
        return nodes or [*self._earlier_nodes]


def _is_plausible(report: NodeReport) -> bool:
    """Return whether all numbers can be added up: agents of other releases may send anything."""
    times = report.step_times
    numbers = [
        report.compute_s, report.sync_s, report.data_s, report.grad_sqr, report.grad_var,
        report.batch_size, report.accumulation, report.global_batch, *report.device_peak_bytes,
        report.device_memory_bytes, report.loader_workers, report.save_s, report.save_interval_s,
        report.saves_adapt,
        report.memory_peak_bytes,
        *(() if times is None else (times.count, times.mean_s, times.m2)),
    ]  # fmt: skip
    return all(
        number is None or (math.isfinite(number) and 0 <= number < _LARGEST) for number in numbers
    )
