"""The models that predictions are compared with: each returns its loss.

They import torch only, so that ``gangline plan --trace`` can read them. No loss comes near zero:
gradients would be denormal, and products of such matrices take a hundred times as long.
"""

import torch
from torch import nn
from torch.nn import functional


class Classifier(nn.Module):
    """Layers with labels in turn for their outputs. ``units`` are what FSDP gathers together."""

    def __init__(self, *units: nn.Module) -> None:
        super().__init__()
        self.units = nn.Sequential(*units)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        scores = self.units(samples)
        labels = torch.arange(scores.shape[0], device=scores.device) % scores.shape[1]
        return functional.cross_entropy(scores, labels)


class Residual(nn.Module):
    """The block of ResNet-18 (He et al., 2015)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.side: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            convolution = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.side = nn.Sequential(convolution, nn.BatchNorm2d(width))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(images) + self.side(images))


class Block(nn.Module):
    """A layer of GPT-2, without dropout."""

    def __init__(self, hidden: int, heads: int, mlp: nn.Module) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.inputs, self.outputs = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = mlp

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = states.shape
        parts = self.inputs(self.first(states)).chunk(3, -1)
        split = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(*split, is_causal=True)
        states = states + self.outputs(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return states + self.mlp(self.second(states))


def dense_mlp(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))


class Experts(nn.Module):
    """Experts with a fixed capacity, dispatched by matrix products (Lepikhin et al., 2020)."""

    def __init__(self, hidden: int, count: int, active: int) -> None:
        super().__init__()
        self.active = active
        self.router = nn.Linear(hidden, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, hidden, 4 * hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(count, 4 * hidden, hidden) * 0.02)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        tokens = states.flatten(0, 1)
        count = self.up.shape[0]
        capacity = tokens.shape[0] * self.active // count
        weights, chosen = self.router(tokens).softmax(-1).topk(self.active, -1)
        picked = functional.one_hot(chosen, count).to(tokens.dtype)
        place = picked.sum(1).cumsum(0) - 1  # position among the tokens of the expert
        slots = torch.arange(capacity, device=tokens.device)
        fits = (place.unsqueeze(-1) == slots).to(tokens.dtype) * picked.sum(1).unsqueeze(-1)
        inputs = torch.einsum("tec,th->ech", fits, tokens)
        outputs = functional.gelu(inputs @ self.up) @ self.down
        combine = fits * (picked * weights.unsqueeze(-1)).sum(1).unsqueeze(-1)
        return torch.einsum("tec,ech->th", combine, outputs).view_as(states)


class LanguageModel(nn.Module):
    """Blocks between an embedding and an output layer that share their matrix, as in GPT-2."""

    def __init__(self, hidden: int, vocab: int, length: int, *blocks: nn.Module) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(length, hidden)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.units = nn.Sequential(*blocks)
        self.last = nn.LayerNorm(hidden)
        self.output = nn.Linear(hidden, vocab, bias=False)
        self.output.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        states = self.units(self.tokens(ids) + self.positions(places))
        logits = self.output(self.last(states))
        return functional.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


class Recurrent(nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.layers = nn.LSTM(hidden, hidden, 2, batch_first=True)
        self.output = nn.Linear(hidden, vocab)
        self.units = [self.tokens, self.layers, self.output]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.output(self.layers(self.tokens(ids))[0])
        return functional.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def mlp() -> nn.Module:
    """Make a multi-layer perceptron of 6 million parameters."""
    return Classifier(
        nn.Sequential(nn.Linear(784, 2048), nn.ReLU()),
        nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()),
        nn.Linear(2048, 10),
    )


def resnet18() -> nn.Module:
    """Make a ResNet-18."""
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    )
    blocks, channels = [], 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Residual(channels, width, stride), Residual(width, width, 1)]
        channels = width
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    return Classifier(stem, *blocks, head)


def gpt_10m() -> nn.Module:
    """Make a GPT of 9 million parameters."""
    return gpt(6, 256, 4, 16384)


def gpt_124m() -> nn.Module:
    """Make a GPT-2 small, of samples with 128 tokens."""
    return gpt(12, 768, 12, 50257)


def gpt(layers: int, hidden: int, heads: int, vocab: int, length: int = 128) -> nn.Module:
    blocks = [Block(hidden, heads, dense_mlp(hidden)) for _ in range(layers)]
    return LanguageModel(hidden, vocab, length, *blocks)


def mixture() -> nn.Module:
    """Make a mixture of experts: 8 experts, of which 2 process a token."""
    blocks = [Block(128, 2, Experts(128, 8, 2)) for _ in range(4)]
    return LanguageModel(128, 4096, 128, *blocks)


def lstm() -> nn.Module:
    """Make a language model of two LSTM layers."""
    return Recurrent(256, 4096)
