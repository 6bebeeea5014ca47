"""The layouts of a training that fit into its devices, best first.

The search is exhaustive over powers of two and the divisors of the number of devices. Order: fits
at the upper end of its memory range, then least time (within 3 %), fewest kinds of parallelism,
largest micro-batch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gangline.sizing.flops import Recompute
from gangline.sizing.hardware import Device
from gangline.sizing.layout import Layout, Sharding
from gangline.sizing.memory import MemoryUse, memory_use
from gangline.sizing.model import ModelShape, ShapeError
from gangline.sizing.precision import StateBytes
from gangline.sizing.steptime import StepTime, step_time

TIGHT = 0.95
"""Share of a device's memory that the upper end of the range may take."""
SAME_TIME = math.log(1.03)
MAX_MICRO_BATCH = 64
CHOICES = 5


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout with its memory and the time of a step."""

    layout: Layout
    memory: MemoryUse
    step: StepTime
    """At the middle of the efficiency's range."""

    def fits(self, device: Device) -> bool:
        """Whether it fits, even at the upper end of the range."""
        return self.memory.high <= TIGHT * device.memory_bytes

    def is_tight(self, device: Device) -> bool:
        """Whether it may fit, but not at the upper end of the range."""
        return not self.fits(device) and self.memory.total <= device.memory_bytes


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found."""

    fitting: tuple[Candidate, ...]
    """Best first, one for each combination of parallelism, at most five."""
    nearest: Candidate | None
    """If none fits: the one with the least memory."""
    problem: str = ""
    """Why no layout could be tried at all."""


def search(
    shape: ModelShape,
    device: Device,
    devices: int,
    global_batch: int,
    states: StateBytes,
    efficiency: float,
) -> SearchResult:
    """Try all layouts of a model on ``devices`` devices.

    Args:
        shape: the model.
        device: the kind of device and its node.
        devices: their number.
        global_batch: samples of an optimizer step.
        states: bytes for each parameter.
        efficiency: share of the peak that computing reaches.
    """
    best: dict[str, Candidate] = {}
    nearest: Candidate | None = None
    problem = ""
    for layout in _layouts(shape, device, devices, global_batch):
        try:
            layout.check(shape)
        except ShapeError as error:
            problem = problem or str(error)
            continue
        memory = memory_use(shape, layout, states)
        time = step_time(shape, layout, states, device, efficiency)
        candidate = Candidate(layout, memory, time)
        if nearest is None or memory.high < nearest.memory.high:
            nearest = candidate
        if candidate.fits(device):
            known = best.get(layout.title)
            if known is None or _order(candidate) < _order(known):
                best[layout.title] = candidate
    if nearest is None and not problem:
        problem = (
            f"no data parallelism of {devices} devices divides the global batch {global_batch}"
        )
    fitting = tuple(sorted(best.values(), key=_order)[:CHOICES])
    return SearchResult(fitting, None if fitting else nearest, "" if nearest else problem)


def _order(candidate: Candidate) -> tuple[int, int, int, float]:
    layout, total = candidate.layout, candidate.step.total
    return (
        round(math.log(total) / SAME_TIME),
        layout.kinds + (layout.sharding > Sharding.OPTIMIZER),
        -layout.micro_batch,
        total,
    )


def _layouts(
    shape: ModelShape, device: Device, devices: int, global_batch: int
) -> Iterator[Layout]:
    for tensor in _powers(min(device.node_devices, devices)):
        if shape.heads % tensor or devices % tensor:
            continue
        for pipeline in _divisors(devices // tensor):
            if pipeline > shape.layers:
                continue
            data = devices // (tensor * pipeline)
            if global_batch % data:
                continue
            for expert in _experts(shape, data):
                yield from _variants(shape, global_batch, tensor, pipeline, data, expert)


def _variants(
    shape: ModelShape, global_batch: int, tensor: int, pipeline: int, data: int, expert: int
) -> Iterator[Layout]:
    share = global_batch // data
    shardings = [Sharding.NONE]
    if data > 1:
        shardings = [*Sharding][: 2 if pipeline > 1 else 4]
    for micro_batch in _powers(min(share, MAX_MICRO_BATCH)):
        if share % micro_batch:
            continue
        virtuals = (1, *_virtual(shape, pipeline, share // micro_batch))
        for virtual in virtuals:
            for sharding in shardings:
                for recompute in (Recompute.SELECTIVE, Recompute.FULL):
                    yield Layout(
                        data=data,
                        tensor=tensor,
                        pipeline=pipeline,
                        virtual=virtual,
                        expert=expert,
                        sharding=sharding,
                        recompute=recompute,
                        micro_batch=micro_batch,
                        global_batch=global_batch,
                    )


def _virtual(shape: ModelShape, pipeline: int, micro_batches: int) -> Iterator[int]:
    if pipeline > 1 and micro_batches % pipeline == 0 and shape.layers % pipeline == 0:
        stage = shape.layers // pipeline
        yield from (parts for parts in (2, 4) if stage % parts == 0)


def _experts(shape: ModelShape, data: int) -> list[int]:
    if not shape.experts:
        return [1]
    return [n for n in _powers(min(shape.experts, data)) if not (shape.experts % n or data % n)]


def _powers(most: int) -> list[int]:
    return [2**n for n in range(most.bit_length()) if 2**n <= most]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
