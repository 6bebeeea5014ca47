"""Stragglers: recall of slow ranks, and false alarms in node hours (simulated)."""

import msgspec
import numpy as np

from gangline.brain.advisers.advice import What
from gangline.brain.advisers.stragglers import advise_stragglers
from gangline.brain.advisers.view import AdviserView
from gangline.brain.facts.records import RankSpeed, RecordedJob, Run

RANKS, MINUTE_MS = 16, 60_000
NOISE, PAUSE = 0.03, 0.02
"""Log-deviation of a window of a rank; share of windows with a pause of 10 to 50 %."""
VIEW = AdviserView(
    now_ms=0,
    run=Run(
        job=RecordedJob(
            cluster="c",
            uid="u",
            namespace="n",
            name="j",
            stem="j",
            kind="ElasticJob",
            submitted_ms=0,
        )
    ),
)


def window(random: np.random.Generator, minute: int, slow: dict[int, float]) -> list[RankSpeed]:
    """One minute of all ranks."""
    own = np.exp(random.normal(0, NOISE, RANKS))
    paused = random.random(RANKS) < PAUSE
    own = own * np.where(paused, 1 + random.uniform(0.1, 0.5, RANKS), 1.0)
    return [
        RankSpeed(
            rank=rank,
            pod="",
            node=f"n{rank}",
            gpu_model="A100",
            window_ms=minute * MINUTE_MS,
            compute_s=float(own[rank]) * slow.get(rank, 1.0),
        )
        for rank in range(RANKS)
    ]


def named(windows: list[list[RankSpeed]], minute: int) -> set[int]:
    """Ranks that are named after a minute."""
    speeds = tuple(speed for each in windows[-6:] for speed in each)
    view = msgspec.structs.replace(VIEW, now_ms=minute * MINUTE_MS, rank_speeds=speeds)
    return {
        advice.rank
        for advice in advise_stragglers(view)
        if advice.what is What.NODE and advice.rank is not None
    }


def recall(trials: int, seed: int = 1) -> float:
    """Share of ranks that are 15 to 40 % slower for ten minutes, and are named."""
    random = np.random.default_rng(seed)
    found = 0
    for _ in range(trials):
        rank = int(random.integers(RANKS))
        slow = {rank: 1 + float(random.uniform(0.15, 0.40))}
        windows: list[list[RankSpeed]] = []
        for minute in range(10):
            windows.append(window(random, minute, slow))
            if rank in named(windows, minute):
                found += 1
                break
    return found / trials


def false_alarms(hours: int, seed: int = 2) -> float:
    """Alarms for 1,000 node hours without a slow node."""
    random = np.random.default_rng(seed)
    alarms = 0
    windows: list[list[RankSpeed]] = []
    quiet = 0
    for minute in range(hours * 60):
        windows = [*windows[-5:], window(random, minute, {})]
        quiet -= 1
        if quiet < 0 and (ranks := named(windows, minute)):
            alarms += len(ranks)
            quiet = 60
    return alarms / (hours * RANKS) * 1000


def main() -> None:
    print(
        f"slow ranks (15 to 40 %, 10 min, 16 ranks): {recall(1000):.1%} named (target 95 %); "
        f"{false_alarms(400):.2f} false alarms in 1,000 node hours (target 0.5)"
    )


if __name__ == "__main__":
    main()
