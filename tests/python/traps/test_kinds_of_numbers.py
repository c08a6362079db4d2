"""float64 trains and is clipped as under DDP; complex parameters are refused with the reason."""

import pytest
import torch
from torch import nn

from support.models import inputs, mlp
from support.parallel import CLIPPABLE, assert_same, ddp, sharded, train
from support.ranks import device

pytestmark = pytest.mark.costly


class Spectral(nn.Module):
    """A filter in the frequency domain between two layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(10, 16)
        self.filter = nn.Parameter(torch.randn(9, dtype=torch.complex64))
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        x = self.first(x)
        return self.last(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=16))


def _complex(rank, world_size):
    with pytest.raises(TypeError, match="ComplexFloat, but only real parameters can be sharded"):
        sharded(Spectral(), "gradients", lr=0.1)
    with pytest.raises(TypeError, match="'filter' is ComplexFloat, but only real"):
        train(*sharded(Spectral(), "replicated", lr=0.1), rank)


def test_complex_parameters_are_refused(run_ranks):
    run_ranks(2, _complex)


class InDouble(nn.Module):
    """Wholly in float64, or only its middle."""

    def __init__(self, is_mixed):
        super().__init__()
        self.layers = mlp().double()
        if is_mixed:
            self.layers[0].float()
            self.layers[4].float()

    def forward(self, x):
        for layer in self.layers:
            weight = getattr(layer, "weight", x)
            x = layer(x.to(weight.dtype))
        return x


def _double(rank, world_size, mode, is_mixed):
    plain, ours = InDouble(is_mixed).to(device()), InDouble(is_mixed).to(device())
    theirs = train(*ddp(plain, lr=0.1), rank, clip=lambda: nn.utils.clip_grad_norm_(plain.parameters(), 0.01))
    wrapper, optimizer = sharded(ours, mode, lr=0.1)
    norms = train(wrapper, optimizer, rank, clip=lambda: optimizer.clip_grad_norm(0.01))
    for a, b in zip(norms, theirs, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-6, atol=0)
    assert_same(wrapper, plain, mode, rounded=True)
    assert next(iter(ours.layers[2].parameters())).dtype == torch.float64


@pytest.mark.parametrize("mode", [mode for mode in CLIPPABLE if mode != "replicated"])
@pytest.mark.parametrize("is_mixed", [False, True], ids=["double", "mixed"])
def test_float64_is_clipped(run_ranks, mode, is_mixed):
    run_ranks(2, _double, mode, is_mixed)


def _norm_in_full(rank, world_size):
    """The norm of float64 gradients has the digits of float64."""
    model = mlp().double()
    wrapper, optimizer = sharded(model, "gradients", lr=0.1)
    plain, _ = ddp(mlp().double(), lr=0.1)
    for each in (wrapper, plain):
        each(inputs(rank, 0).double()).pow(2).mean().backward()
    norm = optimizer.clip_grad_norm(1.0)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(plain.parameters(), 1.0), rtol=1e-12, atol=0)


def test_the_norm_of_float64_is_exact(run_ranks):
    run_ranks(2, _norm_in_full)
