"""Models that tests trace: a ResNet-50, a small transformer, and one that fails."""

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


def broken() -> nn.Module:
    """A function that fails."""
    raise RuntimeError("no such data set")
