"""A transformer as something that can be planned: which layouts it has, and what each needs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gangline.sizing.hardware import DeviceModel, StateBytes
from gangline.sizing.layout import Layout, LayoutPins, Sharding, powers
from gangline.sizing.memory import MemoryUse, memory_use
from gangline.sizing.model import ModelShape, Recompute, model_per_token
from gangline.sizing.sources.guess import guess_shape
from gangline.sizing.sources.huggingface import shape_from_config
from gangline.sizing.steptime import StepTime, step_time

MAX_MICRO_BATCH = 64
TOKEN_BYTES = 4
"""Of a token in a data set."""
MOST_VIRTUAL = 4
"""Parts of the layers that a pipeline stage has at most, with interleaving."""
SEARCHED = (Recompute.SELECTIVE, Recompute.OPERATIONS, Recompute.FULL)
"""What is computed again in the layouts that are proposed."""
LEAST_CONTEXT_TOKENS = 2048
"""Tokens of a sample that each rank has at least where ranks share samples."""


@dataclass(frozen=True, slots=True)
class TransformerModel:
    """A model that is given by its shape."""

    shape: ModelShape
    assumed: tuple[str, ...] = field(default=(), compare=False)
    """What of the shape was assumed, for the assumptions of a plan."""

    @property
    def parameters(self) -> int:
        return self.shape.parameters

    @property
    def sample_tokens(self) -> int:
        return self.shape.sequence

    @property
    def sample_bytes(self) -> float:
        return self.shape.sequence * TOKEN_BYTES

    @property
    def sample_flops(self) -> float:
        return self.shape.sequence * model_per_token(self.shape)

    def layouts(
        self, device: DeviceModel, devices: int, global_batch: int, pins: LayoutPins
    ) -> Iterator[Layout]:
        """Propose all powers of two and divisors of the number of devices, and what is pinned."""
        shape = self.shape
        contexts = powers(max(shape.sequence // LEAST_CONTEXT_TOKENS, 1))
        for tensor in pins.choose("tensor", self._tensors(device, devices)):
            for pipeline in pins.choose("pipeline", _divisors(max(devices // tensor, 1))):
                if pipeline > shape.layers and "pipeline" not in pins.degrees:
                    continue
                for context in pins.choose("context", contexts):
                    data, rest = divmod(devices, tensor * pipeline * context)
                    if rest or not data or pins.degrees.get("data", data) != data:
                        continue
                    if global_batch % data or not _can_shard(pins, data, pipeline, context):
                        continue
                    for expert in pins.choose("expert", _experts(shape, data)):
                        degrees = Layout(
                            data=data,
                            tensor=tensor,
                            pipeline=pipeline,
                            context=context,
                            expert=expert,
                        )
                        yield from _variants(shape, global_batch, degrees, pins)

    def _tensors(self, device: DeviceModel, devices: int) -> list[int]:
        return [
            tensor
            for tensor in powers(min(device.node_devices, devices))
            if not (self.shape.heads % tensor or devices % tensor)
            # else a group would reach into another node
            and (devices <= device.node_devices or device.node_devices % tensor == 0)
        ]

    def check(self, layout: Layout) -> None:
        layout.check(self.shape)

    def memory(self, layout: Layout, states: StateBytes) -> MemoryUse:
        return memory_use(self.shape, layout, states)

    def step(
        self, layout: Layout, states: StateBytes, device: DeviceModel, efficiency: float
    ) -> StepTime:
        return step_time(self.shape, layout, states, device, efficiency)


def model_of_size(parameters: float, sequence: int = 2048, vocab: int = 0) -> TransformerModel:
    """Return a model with usual dimensions for a number of parameters.

    Args:
        vocab: tokens of the vocabulary; 0: usual for the size.

    Raises:
        ShapeError: there is no such model.
    """
    guessed = guess_shape(parameters, sequence, {"vocab": vocab})
    return TransformerModel(guessed.shape, guessed.assumed)


def model_of_config(config: Mapping[str, Any], sequence: int = 0) -> TransformerModel:
    """Return the model of a ``config.json`` of Hugging Face.

    Args:
        config: the content of the file.
        sequence: tokens of a sample; 0: what the model was made for, at most 8,192.

    Raises:
        ShapeError: the architecture is unknown, or a key is missing or wrong.
    """
    return TransformerModel(shape_from_config(config, sequence))


def _can_shard(pins: LayoutPins, data: int, pipeline: int, context: int) -> bool:
    """Whether the pinned sharding has ranks to share with, and no pipeline beside FSDP."""
    if pins.sharding is None or pins.sharding <= Sharding.OPTIMIZER:
        return True
    return data * context > 1 and (pipeline == 1 or "pipeline" in pins.degrees)


def _variants(
    shape: ModelShape, global_batch: int, degrees: Layout, pins: LayoutPins
) -> Iterator[Layout]:
    share, pipeline = global_batch // degrees.data, degrees.pipeline
    shardings = [Sharding.NONE]
    if degrees.data * degrees.context > 1:
        shardings = [*Sharding][: 2 if pipeline > 1 else 4]
    if pins.sharding is not None:
        shardings = [pins.sharding]
    recomputes = SEARCHED if pins.recompute is None else (pins.recompute,)
    every = pins.degrees.get("recompute_every", 2)
    for micro_batch in pins.choose("micro_batch", powers(min(share, MAX_MICRO_BATCH))):
        if share % micro_batch:
            continue
        virtuals = [
            virtual
            for virtual in powers(min(shape.layers // pipeline, MOST_VIRTUAL))
            if virtual == 1 or (pipeline > 1 and share // micro_batch % pipeline == 0)
        ]
        for virtual in pins.choose("virtual", virtuals):
            for sharding in shardings:
                for recompute in recomputes:
                    yield replace(
                        degrees,
                        virtual=virtual,
                        sharding=sharding,
                        recompute=recompute,
                        recompute_every=every,
                        micro_batch=micro_batch,
                        global_batch=global_batch,
                    )


def _experts(shape: ModelShape, data: int) -> list[int]:
    if not shape.experts:
        return [1]
    return [n for n in powers(min(shape.experts, data)) if not (shape.experts % n or data % n)]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
