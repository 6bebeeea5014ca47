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
    return _stage_experts(shape, layout) / (layout.expert * layout.tensor)


def _stage_experts(shape: ModelShape, layout: Layout) -> float:
    """Parameters of all experts of the fullest pipeline stage."""
    share = (shape.layers - shape.dense_layers) / shape.layers
    layers = layout.stage_layers(shape.layers) * share
    return layers * shape.experts * shape.expert_matrix


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
    spread = _stage_experts(shape, layout) if layout.expert > 1 else 0.0
    in_layers = layout.stage_layers(shape.layers) * shape.mean_layer_parameters - spread
    return in_layers / layout.tensor + end_parameters(shape, layout)


def rank_states(
    shape: ModelShape, layout: Layout, states: StateBytes
) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer states of the fullest rank.

    The ranks with the same experts share them: their number is smaller by ``layout.expert``.
    Adapters have all states, the model that they adapt its weights only.
    """
    ranks = layout.data * layout.context
    parts = [(_shared_parameters(shape, layout), ranks)]
    if layout.expert > 1:
        parts.append((expert_parameters(shape, layout), ranks // layout.expert))
    totals = [0.0, 0.0, 0.0]
    for parameters, sharers in parts:
        if states.adapter_rank:
            whole = Sharding.PARAMETERS if layout.sharding is Sharding.PARAMETERS else Sharding.NONE
            totals[0] += parameters * states.frozen / (sharers if whole else 1)
        trained = parameters * trained_share(shape, states)
        for index, size in enumerate(zero_states(trained, states, layout.sharding, sharers)):
            totals[index] += size
    return totals[0], totals[1], totals[2]


def trained_share(shape: ModelShape, states: StateBytes) -> float:
    """Parameters that get gradients, as a share of those of the model."""
    if not states.adapter_rank:
        return 1.0
    return shape.adapter_parameters(states.adapter_rank) / shape.parameters


def layer_activations(shape: ModelShape, layout: Layout, *, element: int = 2) -> float:
    """Bytes of the activations of a layer for one micro-batch, the mean of all layers.

    Sequence parallelism shares also those between the parts of tensor parallelism.
    """
    tokens = layout.micro_batch * shape.sequence / layout.context / layout.tensor
    inputs, hidden = tokens * element * shape.hidden, shape.hidden
    match layout.recompute:
        case Recompute.FULL:
            return inputs
        case Recompute.ALTERNATE:
            every = layout.recompute_every
            return (inputs + (every - 1) * stored_bytes(shape, tokens, element)) / every
        case Recompute.OPERATIONS:  # input, queries, values, attention, up, down
            widths = 2 * hidden + 2 * shape.query_width + shape.kv_width + shape.active_width
            return tokens * element * widths
        case Recompute.SELECTIVE:
            return stored_bytes(shape, tokens, element)
    scores = shape.heads * shape.sequence * (2 * element + 1 if shape.dropout else element)
    return stored_bytes(shape, tokens, element) + tokens * scores


def stored_bytes(shape: ModelShape, tokens: float, element: int) -> float:
    """Bytes of everything that a layer stores but scores of the attention."""
    hidden, mask = shape.hidden, shape.hidden if shape.dropout else 0
    outside = element * 4 * hidden + 2 * mask  # norms, inputs of both parts
    inside: float = 2 * shape.query_width + 2 * shape.kv_width  # q, output; k, v
    inside += (4 if shape.gated else 2) * shape.active_width
    return tokens * (outside + element * inside)


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
    activations += _one_layer(shape, layout, states, tokens)
    # Logits and their gradient in the format of the products; unless they are fused, the
    # logarithms and their gradient in 32 bits, which are no copies of logits in 32 bits.
    logits = tokens * shape.vocab / layout.tensor
    logits *= 2 * states.element if states.fused_loss else 12
    if layout.pipeline > 1:  # the first stage has the most activations, the last one the logits
        last = activations / in_flight + logits
        activations, logits = (activations, 0.0) if activations > last else (last - logits, logits)
    working = _working(shape, layout, states, parameters)
    dynamic = weights + gradients + optimizer + working + activations + logits
    runtime = runtime_bytes(dynamic, layout.devices)
    return MemoryUse(weights, gradients, optimizer, working, activations, logits, runtime)


GATHERED = 6
"""Tensors of all tokens of a layer that exist at one time on each rank of tensor parallelism: the
inputs of the attention and of the MLP, their outputs before they are reduced, and two gradients.
"""


def _one_layer(shape: ModelShape, layout: Layout, states: StateBytes, tokens: float) -> float:
    """Bytes of the layer that is computed again at the moment, and of what its ranks gather."""
    gathered = 0.0
    if layout.tensor > 1:
        gathered = GATHERED * tokens * shape.hidden * states.element
    if layout.recompute in (Recompute.NONE, Recompute.SELECTIVE):
        return gathered
    again = stored_bytes(shape, tokens / layout.tensor, states.element)
    return gathered + again * (1 if states.compiled else 2)


def runtime_bytes(allocated: float, devices: int) -> float:
    """Bytes that CUDA, NCCL and the allocator take beside ``allocated`` bytes."""
    collectives = COLLECTIVES_BYTES if devices > 1 else 0
    return CONTEXT_BYTES + collectives + FRAGMENTATION * allocated


def _working(shape: ModelShape, layout: Layout, states: StateBytes, parameters: float) -> float:
    trained = trained_share(shape, states)
    ranks = layout.data * layout.context
    if layout.sharding is Sharding.PARAMETERS and ranks > 1:
        half = min(states.weights, 2) if states.element == 2 else states.weights
        reduced = min(states.gradients, 4) * trained
        if layout.pipeline > 1:  # the stage stays gathered, its gradients accumulate in 32 bits
            return parameters * (half + 4 * trained)
        block: float = shape.largest_block
        if shape.exact_parameters and not shape.vocab:
            block = shape.exact_parameters / shape.layers
        return 2 * block / layout.tensor * (half + reduced)
    buckets = states.gradients if layout.data > 1 and layout.sharding is Sharding.NONE else 0
    return parameters * (buckets * trained + (0 if states.adapter_rank else states.casts))


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
