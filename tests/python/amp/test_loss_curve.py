"""Mixed precision in C++ (Autocast, ShardedGradScaler, OSS) against Python's torch.amp on the same GPT."""

import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

PROGRAM = Path(__file__).parents[3] / "build/bin/fairshard-amp-loss-curve"
STEPS = 60
WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 32


class Block(nn.Module):
    """Twin of the C++ example's, with modules of the same names in the same order."""

    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.expansion = nn.Linear(WIDTH, 4 * WIDTH)
        self.contraction = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.contraction(functional.gelu(self.expansion(self.mlp_norm(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embedding = nn.Embedding(256, WIDTH)
        self.position_embedding = nn.Embedding(LENGTH, WIDTH)
        for layer in range(LAYERS):
            self.add_module(f"block{layer}", Block())
        self.final_norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.token_embedding(tokens) + self.position_embedding(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in range(LAYERS):
            x = getattr(self, f"block{layer}")(x)
        return functional.linear(self.final_norm(x), self.token_embedding.weight)


@torch.no_grad()
def fill_weights(model):
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape) * 0.05
        parameter.copy_(drawn + 1 if "norm.weight" in name else drawn)


def text_of(step, device):
    row = torch.arange(8).unsqueeze(1) * 31 + step * 17
    place = torch.arange(LENGTH + 1).unsqueeze(0)
    return ((row + place * 3 + (place % 5) * (row % 7)) % 97).to(device)


def train_with_torch_amp(device):
    model = Gpt()
    fill_weights(model)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=65536.0 * 1024, growth_interval=20)
    losses, scales = [], []
    for step in range(STEPS):
        text = text_of(step, device)
        with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
            logits = model(text[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales


@pytest.mark.gpu
def test_losses_of_cpp_are_those_of_torch_amp():
    """On a GPU, in float16: the first steps overflow, on purpose, and are skipped."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    run = subprocess.run([PROGRAM, device, str(STEPS)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    ours = [[float(word) for word in line.split()] for line in run.stdout.splitlines()]
    losses, scales = train_with_torch_amp(device)
    assert losses[-1] < 0.5 * losses[0]
    assert [scale for _, scale in ours] == scales
    assert (scales[0] < 65536.0 * 1024) == (device == "cuda")
    for (loss, _), expected in zip(ours, losses, strict=True):
        assert abs(loss - expected) < 0.01 * expected
