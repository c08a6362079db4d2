"""The model that the benchmarks train: a GPT, over bytes on small machines and over tokens on GPUs."""

import torch
from torch import nn
from torch.nn import functional

#: Width, layers, heads.
SIZES = {
    "tiny": (64, 2, 2),
    "2m": (160, 5, 5),
    "10m": (320, 8, 5),
    "60m": (640, 12, 10),
    "tiny-tied": (64, 2, 2),
    "124m": (768, 12, 12),
    "350m": (1024, 24, 16),
}
#: Of those over tokens, whose head is the embedding, as GPT-2's is; a multiple of 64, for the GPU's sake.
VOCABULARIES = {"tiny-tied": 512, "124m": 50304, "350m": 50304}
BYTES = 256


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Gpt(nn.Module):
    def __init__(self, size: str, length: int) -> None:
        super().__init__()
        width, layers, heads = SIZES[size]
        vocabulary, is_tied = VOCABULARIES.get(size, BYTES), size in VOCABULARIES
        self.bytes = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.last_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=not is_tied)
        if is_tied:
            self.head.weight = self.bytes.weight
            nn.init.normal_(self.bytes.weight, std=0.02)  # an embedding's own would make logits of tens

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.bytes(text[:, :-1]) + self.positions(torch.arange(text.shape[1] - 1, device=text.device))
        logits = self.head(self.last_norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
