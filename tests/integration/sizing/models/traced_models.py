"""Models that tests trace: a ResNet-50, a small transformer, T5-small, and one that fails."""

import torch
from torch import nn


class Bottleneck(nn.Module):
    """The block of ResNet-50 (He et al., 2015), with the stride in its 3 x 3 convolution."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.main = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(True)),
            *(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        projected = stride != 1 or channels != out
        convolution = nn.Conv2d(channels, out, 1, stride, bias=False)
        self.side = nn.Sequential(convolution, nn.BatchNorm2d(out)) if projected else nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(images) + self.side(images))


def resnet50() -> nn.Module:
    """ResNet-50: 25.6 million parameters, 8.2 billion operations forward."""
    parts: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    parts += [nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            parts.append(Bottleneck(channels, width, 1 if number else stride))
            channels = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def language_model() -> nn.Module:
    """Four layers without dropout, as ``ModelShape(4, 256, 4, ...)`` with untied output."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(1000, 256),
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        nn.Linear(256, 1000, bias=False),
    )


class T5Attention(nn.Module):
    """The attention of T5: no biases, and one for each distance in the first layer of a stack."""

    def __init__(self, width: int, heads: int, *, is_first: bool) -> None:
        super().__init__()
        self.heads = heads
        parts = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.queries, self.keys, self.values, self.output = parts
        self.distances = nn.Embedding(32, heads) if is_first else None

    def forward(self, states: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        inputs = (self.queries(states), self.keys(others), self.values(others))
        parts = [each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in inputs]
        mixed = nn.functional.scaled_dot_product_attention(*parts)
        return self.output(mixed.transpose(1, 2).flatten(2))


class T5Layer(nn.Module):
    """A layer of the encoder, or with ``is_decoder`` of the decoder."""

    def __init__(self, width: int, ffn: int, *, is_first: bool, is_decoder: bool) -> None:
        super().__init__()
        self.itself = T5Attention(width, 8, is_first=is_first)
        self.across = T5Attention(width, 8, is_first=False) if is_decoder else None
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3 if is_decoder else 2))
        self.mlp = nn.Sequential(
            nn.Linear(width, ffn, bias=False), nn.ReLU(), nn.Linear(ffn, width, bias=False)
        )

    def forward(self, states: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
        first, *_, last = self.norms
        inputs = first(states)
        states = states + self.itself(inputs, inputs)
        if self.across is not None:
            states = states + self.across(self.norms[1](states), encoded)
        return states + self.mlp(last(states))


class T5(nn.Module):
    """An encoder-decoder with the dimensions of T5-small, and one matrix for all embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(32_128, 512)
        self.encoder, self.decoder = (
            nn.ModuleList(
                T5Layer(512, 2048, is_first=not number, is_decoder=is_decoder)
                for number in range(6)
            )
            for is_decoder in (False, True)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(512) for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        encoded = states = self.shared(tokens)
        for layer in self.encoder:
            encoded = layer(encoded, encoded)
        encoded = self.norms[0](encoded)
        for layer in self.decoder:
            states = layer(states, encoded)
        return nn.functional.linear(self.norms[1](states), self.shared.weight)


def t5_small() -> nn.Module:
    """T5-small: 60,506,624 parameters."""
    return T5()


def broken() -> nn.Module:
    """A function that fails."""
    raise RuntimeError("no such data set")
