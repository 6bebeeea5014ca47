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
    """Experts of each layer; 0: a dense model."""
    active_experts: int = 0
    """Experts that process a token."""
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

    @property
    def query_width(self) -> int:
        """Elements of all queries of a token."""
        return self.heads * self._head

    @property
    def kv_width(self) -> int:
        """Elements of all keys of a token, and of all values."""
        return (self.kv_heads or self.heads) * self._head

    @property
    def mlp_width(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def _head(self) -> int:
        return self.head_size or self.hidden // self.heads

    @cached_property
    def attention_matrix(self) -> int:
        """Elements of the attention's matrices in a layer."""
        return 2 * self.hidden * (self.query_width + self.kv_width)

    @cached_property
    def expert_matrix(self) -> int:
        """Elements of the matrices of one MLP."""
        return (3 if self.gated else 2) * self.hidden * self.mlp_width

    @cached_property
    def layer_parameters(self) -> int:
        """Parameters of a layer."""
        matrices = self.attention_matrix + max(self.experts, 1) * self.expert_matrix
        matrices += self.hidden * self.experts  # the router
        return matrices + self._layer_vectors

    @property
    def _layer_vectors(self) -> int:
        norms = (4 if self.biases else 2) * self.hidden
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
        return self.layers * self.layer_parameters + self.embedding_parameters

    @cached_property
    def active_matrix(self) -> int:
        """Elements of the matrices that multiply each token, the output layer included."""
        active = self.active_experts if self.experts else 1
        layer = self.attention_matrix + active * self.expert_matrix + self.hidden * self.experts
        counted = self.layers * layer + self.vocab * self.hidden
        if not self.exact_parameters or self.experts:
            return counted
        return counted if self.vocab else self.exact_parameters

    @property
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
    SELECTIVE = "selective"
    """The attention's scores only (Korthikanti et al., 2022), as with flash attention."""
    FULL = "full"
    """Complete layers: only their inputs are stored."""


def attention_per_token(shape: ModelShape) -> float:
    """Operations of the attention's two products, forward and backward."""
    return (6 if shape.causal else 12) * shape.layers * shape.sequence * shape.query_width


def model_per_token(shape: ModelShape) -> float:
    """Operations that the model needs; utilisation (MFU) counts these."""
    return 6 * shape.active_matrix + attention_per_token(shape)


def hardware_per_token(shape: ModelShape, recompute: Recompute = Recompute.NONE) -> float:
    """Operations that are executed; hardware utilisation (HFU) counts these."""
    attention = attention_per_token(shape) / 3
    layers = 2 * (shape.active_matrix - shape.vocab * shape.hidden)
    again = {
        Recompute.NONE: 0.0,
        Recompute.SELECTIVE: attention,
        Recompute.FULL: layers + attention,
    }
    return model_per_token(shape) + again[recompute]
