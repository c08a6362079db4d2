"""Models to offload, and the same training without offloading."""

import copy

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Tied(nn.Module):
    """Uses a weight that another module has."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.weight = other.weight

    def forward(self, x):
        return x @ self.weight


class Skip(nn.Module):
    """Takes and returns a dict of tensors, a tuple and a word."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 10)

    def forward(self, values):
        x, (first, word) = values["x"], values["more"]
        assert word == "word"
        return {"x": torch.tanh(self.layer(x)), "more": (first + x, word), "mask": torch.arange(3)}


class Open(nn.Module):
    def forward(self, x):
        return {"x": x, "more": (x * 2, "word")}


class Close(nn.Module):
    def forward(self, values):
        assert values["mask"].dtype == torch.int64
        return values["x"] + values["more"][0]


def layers(*more, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 24), *more, nn.Tanh(), nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 5))


def tied():
    model = layers()
    return nn.Sequential(*model[:-1], Tied(model[0]))


def frozen():
    model = layers()
    for parameter in [*model[0].parameters(), model[2].bias]:
        parameter.requires_grad_(False)
    return model


def several_inputs():
    torch.manual_seed(0)
    return nn.Sequential(Open(), Skip(), Skip(), Skip(), Close())


MODELS = {
    "plain": layers,
    "dropout": lambda: layers(nn.Dropout(0.4), nn.LayerNorm(24), nn.Dropout(0.1)),
    "in place": lambda: layers(nn.ReLU(inplace=True)),
    "buffers": lambda: layers(nn.BatchNorm1d(24)),
    "tied": tied,
    "frozen": frozen,
    "containers": several_inputs,
    "no parameters": lambda: nn.Sequential(nn.Tanh(), nn.Linear(10, 5), nn.Tanh()),
    "transposed": lambda: _transpose(layers()),
}


def _transpose(model):
    for module in model:
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(module.weight.detach().t().contiguous().t())
    return model


def data(step, batch=8):
    return torch.randn(batch, 10, generator=torch.Generator().manual_seed(step)).to(DEVICE)


class Plain:
    """A model on the device whose parameters are stepped in host memory, as an offloaded model's are."""

    def __init__(self, model, make_optimizer):
        self.host = model
        self.model = copy.deepcopy(model).to(DEVICE)
        self.optimizer = make_optimizer(self.host.parameters())

    def backward(self, loss):
        loss.backward()
        for ours, theirs in zip(self.host.parameters(), self.model.parameters(), strict=True):
            ours.grad = None if theirs.grad is None else theirs.grad.cpu()

    def step(self):
        self.optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(self.host.parameters(), self.model.parameters(), strict=True):
                theirs.copy_(ours)
                theirs.grad = None


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


def same(ours, theirs, context=None):
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert (a is None) == (b is None), (context, number)
        if a is not None:
            assert torch.equal(a.cpu(), b.cpu()), (context, number, (a.cpu() - b.cpu()).abs().max())
