"""Calibration of forecasts on synthetic traces: how often the interval contains the start.

These traces were not used to tune the forecast. About two minutes of one processor.
"""

import math
from dataclasses import dataclass, field
from random import Random

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.forecast import Forecaster, RunTime, StartForecast
from gangline.scheduler.simulate.engine import Simulation
from gangline.scheduler.simulate.trace import TRACE_SHAPES, generate_trace, uniform_cluster
from gangline.scheduler.types import CycleResult, GangId

HELD_OUT = [(shape, seed) for seed in (11, 12) for shape in ("philly", "pai", "helios")]


@dataclass
class Calibration:
    """Forecasts and the starts that followed."""

    shape: str
    seed: int
    jobs: int = 150
    nodes: int = 4
    load: float = 1.2
    forecasts: int = 40
    samples: int = 19
    made: list[tuple[str, float, StartForecast]] = field(default_factory=list)

    def run(self) -> list[bool]:
        """Return for each forecast whether its interval contains the start."""
        random = Random(f"{self.shape}/{self.seed}")
        cluster = uniform_cluster(self.nodes, 96, "1Ti", 8)
        limit = 8 * self.nodes
        trace = [
            job
            for job in generate_trace(
                TRACE_SHAPES[self.shape], self.jobs, cluster, self.load, self.seed
            )
            if job.size * dict(job.request).get("nvidia.com/gpu", 0) <= limit
        ]
        run_times = {
            GangId(f"sim/{job.name}"): stated_run_time(job.duration + job.fails_after, random)
            for job in trace
        }
        asked: set[str] = set()
        moments = sorted(random.uniform(0, trace[-1].arrival) for _ in range(self.forecasts))

        def watch(state: SchedulerCache, result: CycleResult, now: float) -> None:
            if not moments or now < moments[0]:
                return
            # Each job once: forecasts of one job share their errors.
            names = [str(v.group) for v in result.pending_reasons if v.group and v.message]
            names = [name for name in names if name not in asked]
            if not names:
                return
            moments.pop(0)
            name = random.choice(names)
            asked.add(name)
            forecaster = Forecaster(state, now, run_times=run_times, seed=self.seed)
            start = forecaster.forecast(GangId(name), samples=self.samples, budget_s=60.0)
            self.made.append((name, now, start))

        history = Simulation(cluster, trace, watchers=[watch]).run()
        covered = []
        for name, now, start in self.made:
            started = history.runs[name.partition("/")[2]].first_started
            after = math.inf if started is None else started - now
            earliest = math.inf if start.earliest_s is None else start.earliest_s
            latest = math.inf if start.latest_s is None else start.latest_s
            covered.append(earliest - 1 <= after <= latest + 1)
        return covered


def stated_run_time(total_s: float, random: Random) -> RunTime:
    """Return what is known about a job of this run time: an estimate, a limit, or nothing."""
    kind = random.random()
    if kind < 0.6:
        return RunTime(estimate_s=total_s * math.exp(random.gauss(0, 0.5)))
    if kind < 0.85:
        exact = random.random() < 0.2
        return RunTime(limit_s=total_s / (1.0 if exact else random.uniform(0.1, 1.0)))
    return RunTime()


def main() -> None:
    covered: list[bool] = []
    for shape, seed in HELD_OUT:
        inside = Calibration(shape, seed).run()
        covered += inside
        print(f"{shape} {seed}: {sum(inside)} of {len(inside)} starts in the interval of 80 %")
    share = sum(covered) / len(covered)
    print(f"all: {share:.0%} of {len(covered)} starts; target: 70 to 90 %")


if __name__ == "__main__":
    main()
