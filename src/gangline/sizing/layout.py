"""How a training is spread over devices: data, tensor, pipeline, expert and context parallelism."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from gangline.sizing.model import ModelShape, Recompute, ShapeError

EVERY = "every-"
"""Before the number of layers of which one is computed again."""


class Sharding(IntEnum):
    """What data-parallel ranks share in place of holding it each (Rajbhandari et al., 2020)."""

    NONE = 0
    """Nothing: DDP."""
    OPTIMIZER = 1
    """Optimizer states: ZeRO-1."""
    GRADIENTS = 2
    """Gradients, too: ZeRO-2."""
    PARAMETERS = 3
    """Parameters, too: ZeRO-3 and FSDP."""

    @property
    def title(self) -> str:
        return ("DDP", "ZeRO-1", "ZeRO-2", "FSDP")[self]


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to spread a training; ``devices`` is the product of its degrees."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    """Parts of the layers that each pipeline stage holds, for interleaved schedules."""
    context: int = 1
    """Ranks that share a sequence."""
    expert: int = 1
    """Ranks of the data parallelism that share the experts."""
    sharding: Sharding = Sharding.NONE
    recompute: Recompute = Recompute.SELECTIVE
    recompute_every: int = 2
    """Layers of which one is computed again with ``Recompute.ALTERNATE``."""
    micro_batch: int = 1
    """Samples of a forward pass."""
    global_batch: int = 1
    """Samples of an optimizer step, over all ranks."""

    @property
    def devices(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def micro_batches(self) -> int:
        """Forward passes of a rank in a step."""
        return self.global_batch // (self.data * self.micro_batch)

    def stage_layers(self, layers: int) -> int:
        """Layers of the fullest pipeline stage, if ``layers`` are spread as evenly as possible.

        With interleaving each stage holds ``virtual`` parts, of which the largest counts.
        """
        return self.virtual * -(-layers // (self.pipeline * self.virtual))

    @property
    def kinds(self) -> int:
        """Number of kinds of parallelism, for the preference of simple layouts."""
        degrees = (self.data, self.tensor, self.pipeline, self.context, self.expert)
        return sum(degree > 1 for degree in degrees)

    @property
    def title(self) -> str:
        """A short name, such as ``FSDP 64`` or ``tensor 8 x pipeline 4 x ZeRO-1 16``."""
        parts = [
            f"{name} {degree}"
            for name, degree in (
                ("tensor", self.tensor),
                ("pipeline", self.pipeline),
                ("context", self.context),
                ("expert", self.expert),
            )
            if degree > 1
        ]
        if self.data > 1 or not parts:
            parts.append(f"{self.sharding.title} {self.data}")
        return " x ".join(parts)

    @property
    def recompute_title(self) -> str:
        if self.recompute is Recompute.ALTERNATE:
            return f"{EVERY}{self.recompute_every}"
        return self.recompute.value

    def check(self, shape: ModelShape) -> None:
        """Check that the model can be spread in this way.

        Raises:
            ShapeError: it cannot; the message names the degree and what would be right.
        """
        if shape.heads % self.tensor:
            raise ShapeError("tensor", f"{self.tensor} does not divide the {shape.heads} heads")
        if self.context > 1 and shape.sequence % (2 * self.context):
            # Each rank has one part of the beginning and one of the end, for causal attention.
            raise ShapeError(
                "context", f"2 x {self.context} does not divide the {shape.sequence} tokens"
            )
        if self.pipeline * self.virtual > shape.layers:
            raise ShapeError(
                "pipeline",
                f"{self.pipeline} x {self.virtual} stages are more than the {shape.layers} layers",
            )
        if self.pipeline > 1 and self.sharding is Sharding.GRADIENTS:
            raise ShapeError(
                "pipeline", "needs DDP, ZeRO-1 or FSDP: gradients accumulate over micro-batches"
            )
        if self.expert > 1 and (not shape.experts or shape.experts % self.expert):
            raise ShapeError("expert", f"{self.expert} does not divide the {shape.experts} experts")
        if self.data % self.expert:
            raise ShapeError(
                "expert", f"{self.expert} does not divide the data parallelism {self.data}"
            )
        if self.global_batch % (self.data * self.micro_batch):
            raise ShapeError(
                "global-batch",
                f"{self.global_batch} is not divisible by data x micro-batch = "
                f"{self.data} x {self.micro_batch}",
            )
        if self.micro_batches % self.pipeline and self.virtual > 1:
            raise ShapeError(
                "virtual", f"needs micro-batches divisible by the {self.pipeline} stages"
            )


@dataclass(frozen=True, slots=True)
class LayoutPins:
    """Parts of a layout that are given; a search chooses the others."""

    degrees: Mapping[str, int] = field(default_factory=dict)
    """Values of fields of ``Layout``, by their name."""
    sharding: Sharding | None = None
    recompute: Recompute | None = None

    def choose(self, name: str, proposed: list[int]) -> list[int]:
        """Return the given value of a field, else what is proposed."""
        return [self.degrees[name]] if name in self.degrees else proposed


FREE = LayoutPins()
PARTS = ("data", "tensor", "pipeline", "context")
"""Degrees whose product is the number of devices."""

_PINS = {
    "dp": "data", "tp": "tensor", "pp": "pipeline", "vpp": "virtual", "cp": "context",
    "ep": "expert", "mbs": "micro_batch",
}  # fmt: skip


def parse_pins(text: str) -> LayoutPins:
    """Read pinned parts of a layout such as ``dp=8,tp=8,zero=3,recompute=every-2``.

    Raises:
        ShapeError: a part is unknown, twice there or has no possible value.
    """
    degrees: dict[str, int] = {}
    sharding, recompute = None, None
    names = [part.partition("=")[0].strip() for part in text.split(",") if part.strip()]
    for name in names:
        if names.count(name) > 1:
            raise ShapeError("layout", f"has {name} twice")
    for name, part in zip(names, filter(str.strip, text.split(",")), strict=True):
        value = part.partition("=")[2].strip().lower()
        if name in _PINS:
            degrees[_PINS[name]] = _count(name, value)
        elif name == "zero":
            if value not in ("0", "1", "2", "3"):
                raise ShapeError("layout", f"zero is {value!r}, must be 0 (DDP) to 3 (FSDP)")
            sharding = Sharding(int(value))
        elif name == "recompute":
            if value.startswith(EVERY):
                degrees["recompute_every"] = _count(name, value.removeprefix(EVERY))
                value = Recompute.ALTERNATE.value
            try:
                recompute = Recompute(value)
            except ValueError:
                choices = ", ".join(choice.value for choice in Recompute)
                raise ShapeError(
                    "layout", f"recompute is {value!r}, must be {choices} or every-2, every-3 ..."
                ) from None
        else:
            choices = ", ".join([*_PINS, "zero", "recompute"])
            raise ShapeError("layout", f"{name!r} is unknown; a layout has {choices}")
    return LayoutPins(degrees, sharding, recompute)


def _count(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value)):
        raise ShapeError("layout", f"{name} is {value!r}, must be a number from 1 on")
    return int(value)


def powers(most: int) -> list[int]:
    """List the powers of two up to ``most``."""
    return [2**n for n in range(most.bit_length()) if 2**n <= most]
