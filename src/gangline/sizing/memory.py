"""Memory of the fullest rank: states, activations, logits, and what the runtime takes.

States follow the ZeRO paper (Rajbhandari et al., 2020, table 1), activations the terms of
Korthikanti et al. (2022, equations 1 to 6), here for gated MLPs and grouped attention, too.
"""

from dataclasses import dataclass

from gangline.sizing.hardware import StateBytes
from gangline.sizing.layout import Layout, Sharding
from gangline.sizing.model import ModelShape, Recompute

CONTEXT_BYTES = 0.6e9
"""What a process of CUDA takes before it allocates anything."""
COLLECTIVES_BYTES = 0.5e9
"""Buffers of NCCL."""
FRAGMENTATION = 0.06
"""Share of the allocator's memory that is lost between blocks."""
UNCERTAINTY = 0.10
"""80 % range of everything but states, which are exact."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of the fullest rank."""

    weights: float
    gradients: float
    optimizer: float
    working: float
    """Gathered blocks of FSDP, buckets of DDP, cached casts."""
    activations: float
    logits: float
    runtime: float
    """Context, communication buffers, fragmentation."""

    @property
    def states(self) -> float:
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return self.states + self.working + self.activations + self.logits + self.runtime

    @property
    def high(self) -> float:
        """The upper end of the 80 % range."""
        return self.total + UNCERTAINTY * (self.total - self.states)


def zero_states(
    parameters: float, states: StateBytes, sharding: Sharding, ranks: int
) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer states on each of ``ranks`` data-parallel ranks."""
    share = 1 / ranks
    return (
        parameters * states.weights * (share if sharding >= Sharding.PARAMETERS else 1),
        parameters * states.gradients * (share if sharding >= Sharding.GRADIENTS else 1),
        parameters * states.optimizer * (share if sharding >= Sharding.OPTIMIZER else 1),
    )


def rank_parameters(shape: ModelShape, layout: Layout) -> float:
    """Parameters of the fullest tensor and pipeline rank, before data-parallel ranks share them."""
    return _shared_parameters(shape, layout) + expert_parameters(shape, layout)


def expert_parameters(shape: ModelShape, layout: Layout) -> float:
    """Those of ``rank_parameters`` that only every ``layout.expert``-th data-parallel rank has."""
    if layout.expert == 1:
        return 0.0
    layers = layout.stage_layers(shape.layers)
    return layers * shape.experts * shape.expert_matrix / (layout.expert * layout.tensor)


def end_parameters(shape: ModelShape, layout: Layout) -> float:
    """Those of ``rank_parameters`` that are embeddings or output layer."""
    if shape.exact_parameters and not shape.vocab:
        return 0.0
    ends: float = shape.embedding_parameters
    if layout.pipeline > 1 and not shape.tied:
        ends /= 2  # input and output embeddings are on different stages
    return ends / layout.tensor


def _shared_parameters(shape: ModelShape, layout: Layout) -> float:
    if shape.exact_parameters and not shape.vocab and layout.expert == 1:
        return shape.exact_parameters / (layout.tensor * layout.pipeline)
    spread = shape.experts * shape.expert_matrix if layout.expert > 1 else 0
    layers = layout.stage_layers(shape.layers)
    in_layers = layers * (shape.layer_parameters - spread) / layout.tensor
    return in_layers + end_parameters(shape, layout)


def rank_states(
    shape: ModelShape, layout: Layout, states: StateBytes
) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer states of the fullest rank.

    The ranks with the same experts share them: their number is smaller by ``layout.expert``.
    """
    ranks = layout.data * layout.context
    shared = zero_states(_shared_parameters(shape, layout), states, layout.sharding, ranks)
    own = expert_parameters(shape, layout)
    experts = zero_states(own, states, layout.sharding, ranks // layout.expert)
    weights, gradients, optimizer = (a + b for a, b in zip(shared, experts, strict=True))
    return weights, gradients, optimizer


def layer_activations(shape: ModelShape, layout: Layout, *, element: int = 2) -> float:
    """Bytes of the activations of a layer for one micro-batch."""
    tokens = layout.micro_batch * shape.sequence / layout.context
    if layout.recompute is Recompute.FULL:
        return tokens * element * shape.hidden
    return _stored(shape, layout, tokens, element)


def _stored(shape: ModelShape, layout: Layout, tokens: float, element: int) -> float:
    hidden, mask = shape.hidden, shape.hidden if shape.dropout else 0
    mlps = shape.active_experts if shape.experts else 1
    outside: float = (
        element * (2 * hidden + hidden + hidden) + 2 * mask
    )  # norms, inputs of both parts
    inside = element * (2 * shape.query_width + 2 * shape.kv_width)  # q, output; k, v
    inside += element * mlps * (4 if shape.gated else 2) * shape.mlp_width
    if layout.recompute is Recompute.NONE:
        scores = shape.heads * shape.sequence
        inside += scores * (2 * element + 1 if shape.dropout else element)
    return tokens * (outside + inside) / layout.tensor  # sequence parallelism shares both


def memory_use(shape: ModelShape, layout: Layout, states: StateBytes) -> MemoryUse:
    """Predict the memory of the fullest rank."""
    parameters = rank_parameters(shape, layout)
    weights, gradients, optimizer = rank_states(shape, layout, states)
    tokens = layout.micro_batch * shape.sequence / layout.context
    in_flight: float = layout.pipeline
    if layout.virtual > 1:
        in_flight = layout.pipeline + (layout.pipeline - 1) / layout.virtual
    in_flight = min(in_flight, max(layout.micro_batches, 1))
    layers = layout.stage_layers(shape.layers)
    activations = in_flight * layers * layer_activations(shape, layout, element=states.element)
    if layout.recompute is Recompute.FULL:  # one layer at a time is computed again
        activations += _stored(shape, layout, tokens, states.element)
    # Logits in the format of the products, then in 32 bits, and their gradient.
    logits = tokens * shape.vocab * (states.element + 8) / layout.tensor
    if layout.pipeline > 1:  # the first stage has the most activations, the last one the logits
        last = activations / in_flight + logits
        activations, logits = (activations, 0.0) if activations > last else (last - logits, logits)
    working = _working(shape, layout, states, parameters)
    dynamic = weights + gradients + optimizer + working + activations + logits
    runtime = runtime_bytes(dynamic, layout.devices)
    return MemoryUse(weights, gradients, optimizer, working, activations, logits, runtime)


def runtime_bytes(allocated: float, devices: int) -> float:
    """Bytes that CUDA, NCCL and the allocator take beside ``allocated`` bytes."""
    collectives = COLLECTIVES_BYTES if devices > 1 else 0
    return CONTEXT_BYTES + collectives + FRAGMENTATION * allocated


def _working(shape: ModelShape, layout: Layout, states: StateBytes, parameters: float) -> float:
    if layout.sharding is Sharding.PARAMETERS and layout.data * layout.context > 1:
        block: float = shape.largest_block
        if shape.exact_parameters and not shape.vocab:
            block = shape.exact_parameters / shape.layers
        half = min(states.weights, 2) if states.element == 2 else states.weights
        return 2 * block / layout.tensor * (half + min(states.gradients, 4))
    buckets = states.gradients if layout.data > 1 and layout.sharding is Sharding.NONE else 0
    return parameters * (buckets + states.casts)


@dataclass(frozen=True, slots=True)
class StateEstimate:
    """Bytes of model states as DeepSpeed estimates them: no activations, no buffers."""

    stage: int
    offload: str
    """What is kept in host memory: ``none``, ``optimizer`` or ``parameters and optimizer``."""
    device_bytes: float


def deepspeed_estimates(
    parameters: float, largest_layer: float, devices: int
) -> tuple[StateEstimate, ...]:
    """Estimate the memory of a device under ZeRO-2 and ZeRO-3, as DeepSpeed's own estimators do.

    Formulas of ``estimate_zero2_model_states_mem_needs`` and
    ``estimate_zero3_model_states_mem_needs``.
    """
    gathered = 4 * largest_layer
    return (
        StateEstimate(2, "none", 4 * parameters + 16 * parameters / devices),
        StateEstimate(2, "optimizer", 2 * parameters),
        StateEstimate(3, "none", gathered + 18 * parameters / devices),
        StateEstimate(3, "optimizer", gathered + 2 * parameters / devices),
        StateEstimate(3, "parameters and optimizer", gathered),
    )


def largest_module(shape: ModelShape) -> int:
    """Parameters of the largest single matrix."""
    return shape.hidden * max(shape.vocab, shape.mlp_width, shape.query_width)
