"""The shape of a transformer, the number of its parameters, and its operations per token.

The counts are those of the published architectures, term by term, so that they equal the number of
elements in a checkpoint: GPT-3 174.6 billion, BLOOM 176,247,271,424, Llama 3 405,853,388,800.

A multiplication with a matrix of n elements takes 2n operations forward and 4n backward (Kaplan et
al., 2020). Attention adds 12 x layers x sequence x hidden (Narayanan et al., 2021, equation 3),
half of it for ``ModelShape.causal``. Published utilisations count it in full although kernels omit
later tokens, so it is counted in full unless that is asked for. Recomputation repeats the forward
pass of the layers.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class ShapeError(ValueError):
    """A model that cannot exist; ``field`` is the option or key that is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


_DIVISOR_SEARCH = 4096


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer, or an encoder of the same structure."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    """Tokens of a sample."""
    vocab: int = 0
    """0: no embeddings are counted, as with ``exact_parameters``."""
    kv_heads: int = 0
    """Heads of keys and values; 0: as many as ``heads``."""
    head_size: int = 0
    """0: ``hidden / heads``."""
    ffn: int = 0
    """Width of the MLP; 0: 4 x ``hidden``."""
    gated: bool = False
    """True for SwiGLU and its relatives: three matrices in place of two."""
    tied: bool = True
    """True if the output layer is the embedding matrix."""
    biases: bool = True
    """True if matrices and normalisations have biases, as in GPT; False as in Llama."""
    qk_norms: bool = False
    """True if queries and keys of each head are normalised, as in Qwen3."""
    qkv_biases: bool = False
    """True if queries, keys and values have biases although ``biases`` is False, as in Qwen2."""
    positions: int = 0
    """Number of learned position embeddings; 0 for rotary embeddings and ALiBi."""
    embedding_norm: bool = False
    """True if the embeddings are normalised, as in BLOOM."""
    experts: int = 0
    """Routed experts of a layer; 0: a dense model."""
    active_experts: int = 0
    """Routed experts that process a token."""
    shared_ffn: int = 0
    """Width of the expert that processes all tokens of a layer with experts; 0: there is none."""
    dense_layers: int = 0
    """Layers without experts in a model that has experts."""
    dense_ffn: int = 0
    """Width of the MLPs of ``dense_layers``."""
    query_rank: int = 0
    """Multi-head latent attention: width of the compressed queries; 0: they are not compressed."""
    kv_rank: int = 0
    """Multi-head latent attention: width of compressed keys and values; 0: another attention."""
    rope_size: int = 0
    """Multi-head latent attention: elements of a head with rotary positions, in ``head_size``."""
    value_size: int = 0
    """Multi-head latent attention: elements of a head's values."""
    layer_vectors: int = 0
    """Elements of further vectors of a layer: biases, sinks, more than two normalisations."""
    window: int = 0
    """Earlier tokens that a token attends to in ``windowed_layers``."""
    windowed_layers: int = 0
    dropout: bool = False
    """True if the masks of dropout are stored for the backward pass."""
    exact_parameters: int = 0
    """Overrides the count, for models that are given by their number of parameters.

    With a ``vocab`` the other fields give this number, too, but for rounding.
    """
    causal: bool = False
    """True if only earlier tokens count as operations of the attention: half of all pairs."""

    def __post_init__(self) -> None:
        """Check that the shape can exist.

        Raises:
            ShapeError: it cannot; the message names the field and what would be right.
        """
        for name in ("layers", "hidden", "heads", "sequence"):
            if getattr(self, name) < 1:
                raise ShapeError(name, f"is {getattr(self, name)}, must be at least 1")
        if not self.head_size and self.hidden % self.heads:
            best = nearest_divisor(self.hidden, self.heads)
            raise ShapeError(
                "heads", f"{self.heads} do not divide hidden {self.hidden}; {best} would"
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise ShapeError(
                "kv-heads", f"{self.kv_heads} do not divide the {self.heads} heads into groups"
            )
        if self.experts and not 1 <= self.active_experts <= self.experts:
            raise ShapeError(
                "active-experts", f"is {self.active_experts}, must be 1 to {self.experts}"
            )
        for name in ("dense_layers", "windowed_layers"):
            if getattr(self, name) > self.layers:
                raise ShapeError(name, f"is {getattr(self, name)}, must be at most {self.layers}")

    @cached_property
    def query_width(self) -> int:
        """Elements of all queries of a token."""
        return self.heads * self._head

    @cached_property
    def kv_width(self) -> int:
        """Elements of all keys of a token, and of all values."""
        return (self.kv_heads or self.heads) * self._head

    @cached_property
    def mlp_width(self) -> int:
        return self.ffn or 4 * self.hidden

    @cached_property
    def active_width(self) -> float:
        """Mean width, over all layers, of the MLPs that process a token."""
        if not self.experts:
            return self.mlp_width
        routed = self.active_experts * self.mlp_width + self.shared_ffn
        dense = self.dense_layers * self.dense_ffn
        return (dense + (self.layers - self.dense_layers) * routed) / self.layers

    @property
    def _head(self) -> int:
        return self.head_size or self.hidden // self.heads

    @cached_property
    def attention_matrix(self) -> int:
        """Elements of the attention's matrices in a layer."""
        if not self.kv_rank:
            return 2 * self.hidden * (self.query_width + self.kv_width)
        queries = self.query_width * (self.query_rank or self.hidden)
        queries += self.hidden * self.query_rank
        values = self.heads * self.value_size
        keys = self.heads * (self._head - self.rope_size)
        latents = self.hidden * (self.kv_rank + self.rope_size)
        return queries + latents + self.kv_rank * (keys + values) + values * self.hidden

    @cached_property
    def expert_matrix(self) -> int:
        """Elements of the matrices of one MLP."""
        return self._matrices * self.hidden * self.mlp_width

    @property
    def _matrices(self) -> int:
        return 3 if self.gated else 2

    @cached_property
    def layer_parameters(self) -> int:
        """Parameters of a layer, the largest where layers differ."""
        matrices = self.attention_matrix + max(self.experts, 1) * self.expert_matrix
        matrices += self.hidden * (self.experts + self._matrices * self.shared_ffn)
        return matrices + self._layer_vectors

    @cached_property
    def mean_layer_parameters(self) -> float:
        return (self.layers * self.layer_parameters - self._missing_experts) / self.layers

    @property
    def _missing_experts(self) -> int:
        """Elements that ``dense_layers`` have less than the other layers."""
        if not self.dense_layers:
            return 0
        sparse = self.experts * (self.expert_matrix + self.hidden)
        widths = self.dense_ffn - self.shared_ffn
        return self.dense_layers * (sparse - self._matrices * self.hidden * widths)

    @property
    def _layer_vectors(self) -> int:
        norms = (4 if self.biases else 2) * self.hidden + self.layer_vectors
        norms += 2 * self._head if self.qk_norms else 0
        qkv = self.query_width + 2 * self.kv_width
        if self.biases:
            inner = self.mlp_width * (2 if self.gated else 1)
            return norms + qkv + self.hidden + max(self.experts, 1) * (inner + self.hidden)
        return norms + (qkv if self.qkv_biases else 0)

    @cached_property
    def embedding_parameters(self) -> int:
        """Parameters of input embeddings, output layer and positions."""
        matrices = self.vocab * (1 if self.tied else 2) + self.positions
        norms = (2 if self.biases else 1) * (2 if self.embedding_norm else 1)
        return (matrices + norms) * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        if self.exact_parameters:
            return self.exact_parameters
        layers = self.layers * self.layer_parameters - self._missing_experts
        return layers + self.embedding_parameters

    @cached_property
    def active_layer(self) -> float:
        """Elements of the matrices of a layer that multiply each token, the mean of all layers."""
        router = self.hidden * self.experts
        return self.attention_matrix + self._matrices * self.hidden * self.active_width + router

    @cached_property
    def active_matrix(self) -> float:
        """Elements of the matrices that multiply each token, the output layer included."""
        if self.exact_parameters and not self.experts and not self.vocab:
            return self.exact_parameters
        return self.layers * self.active_layer + self.vocab * self.hidden

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of low-rank adapters of this rank beside all matrices of the layers."""
        mlps = self._matrices * (self.hidden + self.mlp_width) * max(self.experts, 1)
        attention = 4 * self.hidden + 2 * (self.query_width + self.kv_width)
        return self.layers * rank * (attention + mlps)

    @cached_property
    def largest_block(self) -> int:
        """Parameters of the largest unit that FSDP gathers: a layer or an embedding."""
        return max(self.layer_parameters, self.vocab * self.hidden)


def nearest_divisor(number: int, wanted: int) -> int:
    """Find a divisor near ``wanted``; 1 if there is none within some thousands."""
    for distance in range(_DIVISOR_SEARCH):
        for candidate in (wanted - distance, wanted + distance):
            if candidate > 0 and number % candidate == 0:
                return candidate
    return 1


TOKENS_PER_PARAMETER = 20
"""Tokens at which a budget of compute gives the lowest loss (Hoffmann et al., 2022)."""


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass."""

    NONE = "none"
    """Nothing, and the attention stores its scores."""
    SELECTIVE = "selective"
    """The attention's scores only (Korthikanti et al., 2022), as with flash attention."""
    OPERATIONS = "op"
    """Everything but the attention and every other product: torchtitan's ``selective`` with ``op``.
    """
    ALTERNATE = "alternate"
    """Every ``Layout.recompute_every``-th layer as with ``FULL``, the others as ``SELECTIVE``."""
    FULL = "full"
    """Complete layers: only their inputs are stored."""


def attention_per_token(shape: ModelShape) -> float:
    """Operations of the attention's two products, forward and backward."""
    tokens = (shape.layers - shape.windowed_layers) * shape.sequence
    tokens += shape.windowed_layers * min(shape.window or shape.sequence, shape.sequence)
    values = shape.heads * shape.value_size if shape.kv_rank else shape.query_width
    return (3 if shape.causal else 6) * tokens * (shape.query_width + values)


def model_per_token(shape: ModelShape, *, frozen: bool = False) -> float:
    """Operations that the model needs; utilisation (MFU) counts these.

    Args:
        frozen: whether only adapters are trained: matrices get no gradients.
    """
    return (4 if frozen else 6) * shape.active_matrix + attention_per_token(shape)


def products_again(shape: ModelShape, recompute: Recompute, every: int = 1) -> float:
    """Operations per token of products in the layers that are computed again."""
    again = 2 * (shape.active_matrix - shape.vocab * shape.hidden)
    match recompute:
        case Recompute.FULL:
            return again
        case Recompute.ALTERNATE:
            return again / every
        case Recompute.OPERATIONS:  # of queries, keys, values, output, up, (gate,) down each second
            widths = shape.kv_width + shape.query_width + shape.active_width
            return 2 * shape.layers * shape.hidden * widths
    return 0.0


def hardware_per_token(
    shape: ModelShape,
    recompute: Recompute = Recompute.NONE,
    every: int = 1,
    *,
    frozen: bool = False,
) -> float:
    """Operations that are executed; hardware utilisation (HFU) counts these."""
    again = 0.0 if recompute is Recompute.NONE else attention_per_token(shape) / 3
    again += products_again(shape, recompute, every)
    return model_per_token(shape, frozen=frozen) + again
