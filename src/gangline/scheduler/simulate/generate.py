"""Synthetic traces with the shapes of published traces of large GPU clusters.

Only shapes are used, not records. Most jobs are small and short, while few large and long ones use
most of the time, and arrivals follow the day. Sources: Philly (Jeon et al., "Analysis of
Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019: 117,325 jobs in the
published trace), Helios (Hu et al., "Characterization and Prediction of Deep Learning Workloads in
Large-Scale GPU Datacenters", SC 2021: 1,580,464 GPU jobs in six months) and PAI (Weng et al.,
"MLaaS in the Wild", NSDI 2022). The parameters are our own approximations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from gangline.api.volcano.scheduling import DEFAULT_QUEUE
from gangline.scheduler.simulate.cluster import SimulatedCluster
from gangline.scheduler.simulate.trace import TraceJob, pod_request

DAY_S = 86_400.0
NIGHT_RATE = 0.4
"""Arrival rate at the quietest hour, relative to the busiest."""
MAX_DURATION_S = 30 * DAY_S
_GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class TraceShape:
    """Distribution of the jobs of a trace."""

    sizes: tuple[tuple[int, int, float], ...]
    """Number of pods, GPUs of each, and probability."""
    median_s: float
    """Median duration."""
    spread: float
    """Standard deviation of the logarithm of the duration."""
    fails: float
    """Fraction of jobs that fail once."""


TRACE_SHAPES = {
    "philly": TraceShape(
        ((1, 1, 0.80), (1, 2, 0.06), (1, 4, 0.06), (1, 8, 0.05), (2, 8, 0.02), (4, 8, 0.01)),
        median_s=900,
        spread=2.2,
        fails=0.25,
    ),
    "helios": TraceShape(
        ((1, 1, 0.62), (1, 4, 0.12), (1, 8, 0.17), (2, 8, 0.06), (8, 8, 0.025), (16, 8, 0.005)),
        median_s=240,
        spread=2.3,
        fails=0.15,
    ),
    "pai": TraceShape(
        ((1, 1, 0.40), (2, 1, 0.2), (4, 1, 0.2), (8, 1, 0.12), (16, 1, 0.05), (64, 1, 0.03)),
        median_s=600,
        spread=1.8,
        fails=0.1,
    ),
}


def generate_trace(
    shape: TraceShape,
    count: int,
    cluster: SimulatedCluster,
    load: float,
    seed: int,
    queues: Sequence[str] = (DEFAULT_QUEUE,),
) -> list[TraceJob]:
    """Return jobs that keep ``cluster`` busy by ``load`` (1: they request all of its GPUs).

    Equal arguments give equal jobs.
    """
    random = Random(seed)
    kinds = [(pods, gpus) for pods, gpus, _ in shape.sizes]
    chances = [chance for _, _, chance in shape.sizes]
    drawn = [(*random.choices(kinds, chances)[0], _duration(shape, random)) for _ in range(count)]
    devices = sum(dict(node.allocatable).get(_GPU, 0) for node in cluster.nodes)
    asked = sum(pods * gpus * duration for pods, gpus, duration in drawn)
    span = asked / max(1.0, devices * load)
    arrivals = sorted(_arrival(span, random) for _ in range(count))
    width = len(str(count))
    return [
        TraceJob(
            name=f"job-{index:0{width}d}",
            arrival=arrival,
            duration=duration,
            size=pods,
            request=pod_request(4 * gpus, f"{16 * gpus}Gi", gpus),
            minimum=pods,
            queue=random.choice(list(queues)),
            fails_after=duration * random.random() if random.random() < shape.fails else 0.0,
        )
        for index, (arrival, (pods, gpus, duration)) in enumerate(zip(arrivals, drawn, strict=True))
    ]


def _duration(shape: TraceShape, random: Random) -> float:
    drawn = random.lognormvariate(math.log(shape.median_s), shape.spread)
    return min(MAX_DURATION_S, max(1.0, drawn))


def _arrival(span: float, random: Random) -> float:
    """Draw an arrival time; the afternoon is busy, the night is quiet."""
    while True:
        moment = random.uniform(0, span)
        hour = math.sin(2 * math.pi * moment / DAY_S) / 2 + 0.5
        if random.random() < NIGHT_RATE + (1 - NIGHT_RATE) * hour:
            return moment
