"""One elastic job that the Brain observes and resizes, on a virtual clock.

The true time of a step is hidden from the Brain. It sees closed segments of five minutes with
noise, and what the guard's states hold. A resize stops the job for ``restart_s``; then a minute is
warm-up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from gangline.api.jobs.training_facts import GOOD, SegmentFacts, StepSeconds
from gangline.brain.advisers.advice import Advice, GuardAction, Verdict
from gangline.brain.advisers.view import AdviserView, ClusterView, expected_rest_s
from gangline.brain.advisers.workers import advise_workers, fitted_segments
from gangline.brain.facts.records import Mode, RecordedJob, Run, Wishes
from gangline.brain.guard.decide import (
    begin_action,
    begin_rollback,
    decide,
    decide_rollback,
    observe,
    started,
    with_action,
)
from gangline.brain.guard.policy import DEFAULTS, Bound, ClusterState, GuardJobState, Permission
from gangline.brain.guard.trial import TrialEvents, baseline, judge, present_segments
from gangline.brain.models.throughput import (
    Configuration,
    ThroughputModel,
    fit_throughput,
    observations,
)

SEGMENT_S, WARM_UP_S, TICK_S = 300, 60, 30

Curve = Callable[[Configuration], float]
"""True seconds of a step."""


@dataclass
class SimulatedJob:
    """A job of ``low`` to ``high`` workers, each of ``each`` processes."""

    curve: Curve
    low: int
    high: int
    size: int
    global_batch: int = 1024
    micro_batch: int = 32
    each: int = 1
    unit: int = 1
    restart_s: float = 60.0
    noise: float = 0.05
    lost: float = 0.05
    stragglers: float = 0.02
    parts: bool = True
    """Whether the script reports computing and exchange apart."""
    total_s: float | None = None
    """Length at the first size, if the master knows the rest; None: it does not."""
    price: Callable[[float], float] = field(default=lambda _: 0.0)
    disturbance: Callable[["SimulatedJob"], float] = field(default=lambda _: 1.0)
    """A factor of the true step time, from what happens beside the curve."""
    forms: Callable[[int], bool] = field(default=lambda _: True)
    """Whether a world of a size forms."""
    seed: int = 0
    applies: bool = True

    now_s: float = 0.0
    work: float = 0.0
    """Records that were trained."""
    gpu_s: float = 0.0
    restarts: int = 0
    history: list[tuple[float, int]] = field(default_factory=list)
    """Sizes with the times from which they hold."""
    advice: list[Advice] = field(default_factory=list)
    actions: list[GuardAction] = field(default_factory=list)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    judged_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.segments: list[SegmentFacts] = []
        self.history.append((0.0, self.size))
        self._model: ThroughputModel | None = None
        self._fitted = -1
        self._advised: tuple[float, ...] = ()
        self._steady_from = float(WARM_UP_S)
        self._opened = float(WARM_UP_S)
        self._stopped_until = 0.0
        self._done = 0.0
        self._errors: list[float] = []
        self.job = RecordedJob(
            cluster="c",
            uid="u",
            namespace="team",
            name="train-1",
            stem="train",
            kind="ElasticJob",
            submitted_ms=0,
            started_ms=0,
            workers_min=self.low,
            workers_max=self.high,
            unit=self.unit,
            wishes=Wishes(mode=Mode.APPLY),
        )
        self.state = GuardJobState(
            uid="u",
            family="f",
            started_ms=0,
            restart_cost_s=self.restart_s + WARM_UP_S,
            gpus=self.size * self.each,
        )
        self.cluster = ClusterState(leader=True, knows_time=True, gpus=10_000)
        self.permission = Permission(mode=Mode.APPLY)

    @property
    def now_ms(self) -> int:
        return round(self.now_s * 1000)

    def true_step(self, size: int) -> float:
        """Seconds of a step without noise and disturbance."""
        return self.curve(self.configuration(size))

    def configuration(self, size: int) -> Configuration:
        procs = size * self.each
        share = math.ceil(self.global_batch / procs)
        count = math.ceil(share / self.micro_batch)
        return Configuration(size, procs, share / count, count)

    def rate(self, size: int) -> float:
        """Records per second of a size."""
        return self.global_batch / self.true_step(size)

    def run(self, hours: float) -> "SimulatedJob":
        """Run for some hours."""
        end = self.now_s + hours * 3600
        while self.now_s < end:
            self._tick()
        return self

    def _tick(self) -> None:
        self.now_s += TICK_S
        self.gpu_s += TICK_S * self.size * self.each
        running = self.now_s > self._stopped_until and self.forms(self.size)
        if running:
            step_s = self.true_step(self.size) * self.disturbance(self)
            self.work += TICK_S * self.global_batch / step_s
            if self.state.plan_open:
                self.state = msgspec.structs.replace(self.state, plan_open=False)
                self.cluster = msgspec.structs.replace(
                    self.cluster, resizes_under_way=0, gpus_in_restart=0
                )
            if self.now_s >= self._steady_from and self.now_s - self._opened >= SEGMENT_S:
                self._close_segment(step_s)
        if self.now_s % 60 == 0:
            self._think()

    def _close_segment(self, step_s: float) -> None:
        at = self.configuration(self.size)
        factor = float(np.exp(self.random.normal(0, self.noise)))
        if self.random.random() < self.stragglers:
            factor *= 1 + self.random.uniform(0.1, 0.5)
        since, self._opened = self._opened, self.now_s
        if self.random.random() < self.lost:
            return
        mean_s = step_s * factor
        sync = self._sync_share(at)
        self.segments.append(
            SegmentFacts(
                round=self.restarts,
                since=round(since * 1000),
                until=self.now_ms,
                nodes=self.size,
                procs=at.procs,
                micro_batch=max(round(at.micro_batch), 1),
                accumulation=at.accumulation,
                global_batch=self.global_batch,
                steps=max(int(SEGMENT_S / step_s), 1),
                step_seconds=StepSeconds(1, mean_s),
                compute_seconds=mean_s * (1 - sync) if self.parts else None,
                sync_seconds=mean_s * sync if self.parts else None,
                quality=GOOD,
            )
        )
        self.state = msgspec.structs.replace(self.state, last_segment_ms=self.now_ms)

    def _sync_share(self, at: Configuration) -> float:
        parts = getattr(self.curve, "sync", None)
        return 0.0 if parts is None else float(parts(at)) / self.curve(at)

    def view(self) -> AdviserView:
        """What an adviser sees now."""
        rest = None if self.total_s is None else max(self.total_s - self.now_s, 0.0)
        return AdviserView(
            now_ms=self.now_ms,
            run=Run(job=self.job, segments=tuple(fitted_segments(self.segments))),
            cluster=ClusterView(price=self.price(self.now_s)),
            remaining_s=rest,
            probes=self.state.probes,
            prediction_error=self._prediction_error(),
        )

    def _prediction_error(self) -> float:
        if not self._errors:
            return 0.0
        return math.sqrt(sum(error**2 for error in self._errors) / len(self._errors))

    def _think(self) -> None:
        self._judge()
        view = self.view()
        if len(self.segments) != self._fitted:
            self._fitted = len(self.segments)
            self._model = fit_throughput(observations(view.run.segments, self.now_ms))
        known = (self._fitted, view.cluster.price, view.probes, view.prediction_error)
        if known != self._advised:
            self._advised = known
            self.advice = advise_workers(view, self._model)
        self.state = observe(self.state, self.advice, self.now_ms)
        self.state = msgspec.structs.replace(
            self.state,
            remaining_s=expected_rest_s(view),
            good_segments=len(present_segments(self.segments, self.now_ms)),
            bounds=(Bound(what="workers", role="worker", low=self.low, high=self.high),),  # type: ignore[arg-type]
        )
        for item in self.advice:
            decision = decide(item, self.state, self.cluster, self.permission, self.now_ms)
            self.last_decision = decision
            if not decision.act or not self.applies or decision.value is None:
                continue
            before = baseline(self.segments, self.now_ms)
            self._start(begin_action(item, decision, self.state, self.now_ms, before))
            self._resize(int(decision.value))
            break

    def _judge(self) -> None:
        for action in self.state.actions:
            if action.rollback_of or action.verdict is Verdict.ROLLED_BACK:
                continue
            result = judge(
                action,
                self.segments,
                self.now_ms,
                TrialEvents(formed=self.forms(self.size)),
                msgspec.structs.replace(DEFAULTS, form_s=self.restart_s),
            )
            if result.verdict is action.verdict:
                continue
            self.verdicts[action.id] = result.verdict
            self.judged_s[action.id] = self.now_s
            if result.surprise is not None:
                self._errors.append(result.surprise)
            cost = round(1000 * (self.restart_s + WARM_UP_S))
            judged = msgspec.structs.replace(
                action, verdict=result.verdict, judged_ms=self.now_ms, cost_ms=cost
            )
            self.state = with_action(self.state, judged)
            if result.verdict is Verdict.ROLLED_BACK:
                self._roll_back(judged)

    def _roll_back(self, action: GuardAction) -> None:
        self.state = msgspec.structs.replace(self.state, plan_open=False)
        decision = decide_rollback(action, self.state, self.cluster, self.permission, self.now_ms)
        if not decision.act or action.before is None:
            return
        rolled_back = (*self.cluster.rolled_back, action)
        self.cluster = msgspec.structs.replace(self.cluster, rolled_back=rolled_back)
        taken = msgspec.structs.replace(action, rolled_back=True)
        self.state = with_action(self.state, taken)
        self._start(begin_rollback(action, self.now_ms))
        self._resize(int(action.before))

    def _start(self, action: GuardAction) -> None:
        numbered = msgspec.structs.replace(action, id=len(self.actions) + 1)
        self.state, self.cluster = started(numbered, self.state, self.cluster)
        self.actions.append(numbered)

    def _resize(self, size: int) -> None:
        self.size = size
        self.restarts += 1
        self.history.append((self.now_s, size))
        self._stopped_until = self.now_s + self.restart_s
        self._steady_from = self._opened = self._stopped_until + WARM_UP_S
        self.state = msgspec.structs.replace(self.state, gpus=size * self.each)


@dataclass(frozen=True)
class Amdahl:
    """A step whose serial part does not shrink with the number of processes."""

    serial: float
    single_s: float = 10.0
    """Step of one process."""

    def __call__(self, at: Configuration) -> float:
        return self.single_s * (self.serial + (1 - self.serial) / at.procs)

    def sync(self, at: Configuration) -> float:
        return self.single_s * self.serial if at.procs > 1 else 0.0


@dataclass(frozen=True)
class Exchange:
    """A step of computing the share, and an exchange that grows with the world."""

    per_record: float = 0.01
    fixed: float = 0.02
    sync_s: float = 0.2
    per_node: float = 0.0

    def __call__(self, at: Configuration) -> float:
        return at.accumulation * (self.fixed + self.per_record * at.micro_batch) + self.sync(at)

    def sync(self, at: Configuration) -> float:
        if at.procs == 1:
            return 0.0
        return self.sync_s * 2 * (at.procs - 1) / at.procs + self.per_node * max(at.nodes - 2, 0)
