"""A transformer as something that can be planned: which layouts it has, and what each needs."""

from collections.abc import Iterator
from dataclasses import dataclass

from gangline.sizing.flops import Recompute, model_per_token
from gangline.sizing.hardware import Device
from gangline.sizing.layout import Layout, Sharding, powers
from gangline.sizing.memory import MemoryUse, memory_use
from gangline.sizing.model import ModelShape
from gangline.sizing.precision import StateBytes
from gangline.sizing.steptime import StepTime, step_time

MAX_MICRO_BATCH = 64


@dataclass(frozen=True, slots=True)
class TransformerModel:
    """A model that is given by its shape."""

    shape: ModelShape

    @property
    def parameters(self) -> int:
        return self.shape.parameters

    @property
    def sample_tokens(self) -> int:
        return self.shape.sequence

    @property
    def sample_flops(self) -> float:
        return self.shape.sequence * model_per_token(self.shape)

    def layouts(self, device: Device, devices: int, global_batch: int) -> Iterator[Layout]:
        """Propose all powers of two and divisors of the number of devices."""
        return _layouts(self.shape, device, devices, global_batch)

    def check(self, layout: Layout) -> None:
        layout.check(self.shape)

    def memory(self, layout: Layout, states: StateBytes) -> MemoryUse:
        return memory_use(self.shape, layout, states)

    def step(
        self, layout: Layout, states: StateBytes, device: Device, efficiency: float
    ) -> StepTime:
        return step_time(self.shape, layout, states, device, efficiency)


def _layouts(
    shape: ModelShape, device: Device, devices: int, global_batch: int
) -> Iterator[Layout]:
    for tensor in powers(min(device.node_devices, devices)):
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
    for micro_batch in powers(min(share, MAX_MICRO_BATCH)):
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
    return [n for n in powers(min(shape.experts, data)) if not (shape.experts % n or data % n)]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
