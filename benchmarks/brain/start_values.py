"""Start values for the number of workers: how close they are to the best after a few runs.

Each family trains with a fixed global batch; its true curve of step times is hidden. Users choose
the number of workers among powers of two, and each run is seen at one more size, because nodes
leave or join. The best count is derived from the true curve by the same rule of what the last
workers must bring.
"""

import math

import msgspec
import numpy as np

from benchmarks.brain.throughput import PER_NODE, make_job, observe
from gangline.api.jobs.training_facts import SegmentFacts, StepSeconds
from gangline.brain.advisers import start
from gangline.brain.advisers.advice import Choice, What
from gangline.brain.advisers.view import AdviserView, SimilarRuns
from gangline.brain.advisers.workers import floor_of, largest_worthwhile
from gangline.brain.facts.records import Image, Outcome, RecordedJob, RoleSize, Run
from gangline.brain.models.throughput import Configuration

DAY = 86_400_000
NOW = 20_000 * DAY
FEWEST, MOST, BATCH, MICRO = 1, 16, 2048, 64
FAMILIES = 200


def a_job(uid: str, replicas: int) -> RecordedJob:
    return RecordedJob(
        cluster="c",
        uid=uid,
        namespace="n",
        name=uid,
        stem="family",
        kind="ElasticJob",
        image=Image(repository="r"),
        command_digest="d",
        submitted_ms=NOW - DAY,
        workers_min=FEWEST,
        workers_max=MOST,
        workers_asked=replicas,
        roles=(RoleSize(role="worker", since_ms=0, replicas=replicas, gpus=PER_NODE),),
    )


def divided(count: int) -> Configuration:
    """The batch divided among the processes of some workers, as the trainer divides it."""
    procs = PER_NODE * count
    share = math.ceil(BATCH / procs)
    accumulation = math.ceil(share / MICRO)
    return Configuration(count, procs, share / accumulation, accumulation)


def play_family(random: np.random.Generator) -> dict[int, tuple[int | None, int]]:
    """Return the advised and the best count after 3 and after 10 runs."""
    true = make_job(random)
    choices = []
    for count in range(FEWEST, MOST + 1):
        speed = BATCH / true.step(divided(count))
        choices.append(Choice(value=count, goodput=speed, low=speed, high=speed))
    best = round(largest_worthwhile(choices, floor_of(0.0))[0].value)
    runs: list[Run] = []
    advised = {}
    for index in range(10):
        chosen = int(random.choice([2, 4, 8, 16]))
        other = int(np.clip(chosen + random.integers(-3, 3), FEWEST, MOST))
        segments = []
        for count in (chosen, other):
            at = divided(count)
            for each in observe(true, at, 4, random, parts=bool(index % 2)):
                segments.append(
                    SegmentFacts(
                        round=index,
                        since=NOW - DAY,
                        until=NOW - DAY // 2,
                        nodes=at.nodes,
                        procs=at.procs,
                        micro_batch=round(at.micro_batch),
                        accumulation=at.accumulation,
                        global_batch=BATCH,
                        steps=each.steps,
                        step_seconds=StepSeconds(1, each.step_s),
                        compute_seconds=each.compute_s,
                        sync_seconds=each.sync_s,
                    )
                )
        job = msgspec.structs.replace(
            a_job(f"r{index}", chosen),
            outcome=Outcome.SUCCEEDED,
            complete=True,
            started_ms=NOW - DAY,
            finished_ms=NOW - DAY // 2,
        )
        runs.append(Run(job=job, segments=tuple(segments)))
        if len(runs) in (3, 10):
            asked = 2 if best != 2 else 4
            view = AdviserView(
                now_ms=NOW,
                run=Run(job=a_job("new", asked)),
                similar=SimilarRuns(level=1, runs=tuple(runs)),
            )
            found = [e.value for e in start.advise(view) if e.what is What.WORKERS]
            advised[len(runs)] = (int(found[0]) if found and found[0] else asked, best)
    return advised


def main() -> None:
    random = np.random.default_rng(5)
    families = [play_family(random) for _ in range(FAMILIES)]
    for runs in (3, 10):
        near = [
            advised is not None and abs(advised - best) <= max(0.2 * best, 0.5)
            for advised, best in (family[runs] for family in families)
        ]
        print(f"after {runs} runs {np.mean(near):.0%} of start counts are within 20 % of the best")


if __name__ == "__main__":
    main()
