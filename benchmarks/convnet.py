"""A residual convolutional net with BatchNorm: many small parameters, and buffers that have to be kept the same."""

import torch
from torch import nn
from torch.nn import functional

SIZES = {"conv-tiny": (8, 1), "conv": (64, 2)}
CLASSES = 10


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if inputs != outputs or stride != 1:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False)).append(nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class ConvNet(nn.Module):
    """Four stages, each with half of the resolution and twice the channels of the one before."""

    def __init__(self, size: str) -> None:
        super().__init__()
        width, depth = SIZES[size]
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        blocks, channels = [], width
        for stage in range(4):
            for number in range(depth):
                outputs = width << stage
                blocks.append(Residual(channels, outputs, 2 if stage and not number else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        features = self.blocks(self.stem(images)).mean((2, 3))
        return functional.cross_entropy(self.head(features), classes)
