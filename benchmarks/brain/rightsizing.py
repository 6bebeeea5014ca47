"""Right-sizing of memory on synthetic families of runs, and the rules of VPA beside it.

Each family repeats a training 20 times. Its peaks vary from run to run and from rank to rank; some
families grow, some change once, some have single runs that need much more. The limit of each run
is what the rule advises from the runs before it, or what the user asked for. A run that exceeds it
is killed once and repeated with the doubled limit.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gangline.brain.advisers import rightsize
from gangline.brain.advisers.advice import What
from gangline.brain.advisers.similarity import select_similar
from gangline.brain.advisers.view import AdviserView
from gangline.brain.facts.records import Image, Outcome, PodRun, RecordedJob, RoleSize, Run
from gangline.brain.models.histogram import MEMORY, bucket_starts

GIB, MIB = 1 << 30, 1 << 20
HOUR = 3_600_000
DAY = 24 * HOUR
BEGIN = 20_000 * DAY
FAMILIES, RUNS = 500, 20


@dataclass
class Family:
    """The real peaks of all runs, bytes by rank."""

    name: str
    asked_bytes: int
    peaks: list[list[int]]
    ended_ms: list[int]
    special: str
    """What is unusual about it; empty if nothing."""


def make_family(index: int, random: np.random.Generator) -> Family:
    base = float(np.exp(random.uniform(np.log(2), np.log(200)))) * GIB
    ranks = int(random.choice([2, 4, 8, 16]))
    between_runs = float(random.uniform(0.005, 0.06))
    between_ranks = float(random.uniform(0.002, 0.03))
    special = str(
        random.choice(["", "rank 0", "grows", "changes", "outliers"], p=[0.5, 0.15, 0.15, 0.1, 0.1])
    )
    factor = np.ones((RUNS, ranks))
    if special == "rank 0":
        factor[:, 0] = random.uniform(1.35, 2.5)
    if special == "grows":
        factor *= (1 + random.uniform(0.005, 0.03)) ** np.arange(RUNS)[:, None]
    if special == "changes":
        factor[int(random.integers(5, RUNS)) :] *= random.choice([0.6, 0.8, 1.25, 1.6])
    if special == "outliers":
        factor[random.random(RUNS) < 0.05] *= random.uniform(1.2, 1.6)
    runs = np.exp(random.normal(0, between_runs, (RUNS, 1)))
    each = np.exp(random.normal(0, between_ranks, (RUNS, ranks)))
    peaks = base * factor * runs * each
    gaps = random.exponential(1.5, RUNS).cumsum()
    # Users know that their first run fits, and ask for 1.2 to 2.8 times as much.
    asked = float(peaks[0].max()) * random.uniform(1.2, 2.8)
    return Family(
        f"family-{index}",
        int(asked),
        [[int(value) for value in row] for row in peaks],
        [BEGIN + int(gap * DAY) for gap in gaps],
        special,
    )


@dataclass
class Outcomes:
    """What a rule cost in all runs after the first."""

    advised: int = 0
    runs: int = 0
    killed: int = 0
    limit_bytes: float = 0.0
    used_bytes: float = 0.0
    advised_limit_bytes: float = 0.0
    advised_used_bytes: float = 0.0
    slacks: list[float] = field(default_factory=list)

    def add(self, limits: list[int], peaks: list[int], *, advised: bool) -> bool:
        """Count a run; return whether it was killed."""
        self.runs += 1
        self.advised += advised
        self.limit_bytes += sum(limits)
        self.used_bytes += sum(peaks)
        if advised:
            self.advised_limit_bytes += sum(limits)
            self.advised_used_bytes += sum(peaks)
            self.slacks.append(sum(limits) / sum(peaks) - 1)
        killed = any(peak > limit for limit, peak in zip(limits, peaks, strict=True))
        self.killed += killed
        return killed

    def __str__(self) -> str:
        found = (
            f"slack {self.limit_bytes / self.used_bytes - 1:.1%}, "
            f"{self.killed / self.runs:.2%} of {self.runs} runs killed"
        )
        if self.advised:
            share = self.advised / self.runs
            slack = self.advised_limit_bytes / self.advised_used_bytes - 1
            found += f"; in the {share:.0%} of runs with advice: slack {slack:.1%}"
            found += f" (median of runs {statistics.median(self.slacks):.1%})"
        return found


Rule = Callable[[Family, int, list[Run]], list[int] | None]
"""Limits by rank, from a family, the number of the run and the runs before; None: no advice."""


def play(family: Family, rule: Rule, outcomes: Outcomes) -> list[bool]:
    """Run the family under a rule; return which of its runs were killed."""
    history: list[Run] = []
    killed = []
    for index, peaks in enumerate(family.peaks):
        advised = rule(family, index, history) if history else None
        limits = advised or [family.asked_bytes] * len(peaks)
        if history:
            killed.append(outcomes.add(limits, peaks, advised=advised is not None))
        history.append(past_run(family, index, limits))
    return killed


def a_job(family: Family, index: int, at_ms: int) -> RecordedJob:
    return RecordedJob(
        cluster="c",
        uid=f"{family.name}-{index}",
        namespace="n",
        name=f"{family.name}-{index}",
        stem=family.name,
        kind="ElasticJob",
        image=Image(repository="r"),
        command_digest="d",
        submitted_ms=at_ms,
        roles=(
            RoleSize(
                role="worker",
                since_ms=at_ms,
                replicas=len(family.peaks[0]),
                memory_bytes=family.asked_bytes,
            ),
        ),
    )


def past_run(family: Family, index: int, limits: list[int]) -> Run:
    """The record of a run: ranks that exceeded their limit were killed, then had enough."""
    ended = family.ended_ms[index]
    started = ended - HOUR
    pods = []
    for rank, (peak, limit) in enumerate(zip(family.peaks[index], limits, strict=True)):
        number, given = 0, limit
        while peak > given:
            pods.append(pod(rank, number, started, ended, given, given, killed=True))
            number, given = number + 1, 2 * given
        pods.append(pod(rank, number, started, ended, given, peak, killed=False))
    job = a_job(family, index, started)
    values = {name: getattr(job, name) for name in job.__struct_fields__}
    values |= {
        "outcome": Outcome.SUCCEEDED,
        "complete": True,
        "started_ms": started,
        "finished_ms": ended,
    }
    return Run(job=RecordedJob(**values), pods=tuple(pods))


def pod(
    rank: int, number: int, started: int, ended: int, limit: int, peak: int, *, killed: bool
) -> PodRun:
    return PodRun(
        role="worker",
        rank=rank,
        number=number,
        started_ms=started,
        ended_ms=ended,
        oom=killed,
        limit_memory_bytes=limit,
        peak_memory_bytes=peak,
        samples=60,
    )


def brain(family: Family, index: int, history: list[Run]) -> list[int] | None:
    """What ``rightsize`` advises."""
    now = family.ended_ms[index] - HOUR
    run = Run(job=a_job(family, index, now))
    view = AdviserView(now_ms=now, run=run, similar=select_similar(run, history, now))
    found = [each for each in rightsize.advise(view) if each.what is What.MEMORY]
    if not found:
        return None
    role = next((each.value for each in found if each.rank is None), family.asked_bytes)
    own = {each.rank: each.value for each in found if each.rank is not None}
    ranks = range(len(family.peaks[0]))
    return [int(own.get(rank) or role or family.asked_bytes) for rank in ranks]


def vertical_pod_autoscaler(family: Family, index: int, history: list[Run]) -> list[int] | None:
    """p90 and 15 % of daily peaks with a half-life of a day; a kill counts 1.2 of its limit."""
    starts = bucket_starts(MEMORY)
    now = family.ended_ms[index] - HOUR
    weights = np.zeros(len(starts))
    for run in history:
        age_days = (now - (run.job.finished_ms or 0)) / DAY
        if age_days > 8:
            continue
        for rank in range(len(family.peaks[0])):
            peak = 0.0
            for each in run.pods:
                if each.rank != rank:
                    continue
                used = float(each.peak_memory_bytes or 0)
                limit = float(each.limit_memory_bytes or 0)
                bumped = max(1.2 * limit, limit + 100 * MIB) if each.oom else used
                peak = max(peak, bumped)
            bucket = int(np.searchsorted(starts, peak, side="right")) - 1
            weights[bucket] += 0.5**age_days
    if not weights.any():
        return None
    bucket = int(np.searchsorted(weights.cumsum(), 0.9 * weights.sum()))
    target = max(1.15 * starts[min(bucket + 1, len(starts) - 1)], 250 * MIB)
    return [int(target)] * len(family.peaks[0])


def asked(family: Family, index: int, history: list[Run]) -> list[int] | None:
    """What the user asked for."""
    return None


def main() -> None:
    random = np.random.default_rng(11)
    families = [make_family(index, random) for index in range(FAMILIES)]
    rules: dict[str, Rule] = {
        "asked for": asked,
        "VPA's rules": vertical_pod_autoscaler,
        "Brain": brain,
    }
    for name, rule in rules.items():
        outcomes = Outcomes()
        by_special: dict[str, list[bool]] = {}
        for family in families:
            by_special.setdefault(family.special, []).extend(play(family, rule, outcomes))
        print(f"{name}: {outcomes}")
        shares = ", ".join(
            f"{special or 'usual'} {statistics.mean(killed):.2%}"
            for special, killed in sorted(by_special.items())
        )
        print(f"    killed by kind of family: {shares}")


if __name__ == "__main__":
    main()
