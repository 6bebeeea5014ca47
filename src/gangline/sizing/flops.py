"""Floating-point operations of training, per token.

A multiplication with a matrix of n elements takes 2n operations forward and 4n backward (Kaplan et
al., 2020). Attention adds 12 x layers x sequence x hidden (Narayanan et al., 2021, equation 3),
half of it for ``ModelShape.causal``. Published utilisations count it in full although kernels omit
later tokens, so it is counted in full unless that is asked for. Recomputation repeats the forward
pass of the layers.
"""

from enum import StrEnum

from gangline.sizing.model import ModelShape

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
