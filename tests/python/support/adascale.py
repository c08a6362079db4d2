"""AdaScale by its formula, in one plain process in double precision, and all the ways to set it up on ranks."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from fairshard.optim.adascale import AdaScale, AdaScaleWrapper
from support.models import inputs, loss_of, mlp, values

KINDS = ("ddp", "sharded", "gradients", "optimizer", "given", "wrapper", "inside", "oss under ddp", "inside under ddp")
SHARDED_KINDS = ("gradients", "wrapper", "inside")


def build(kind, model, groups=None, optim=SGD, find_unused=False, lr=0.1, momentum=None, **options):
    """The AdaScale, the optimizer to call, and the module that reduces."""
    params = groups(model) if groups else model.parameters()
    own = {"lr": lr} if momentum is None else {"lr": lr, "momentum": momentum}
    if kind.startswith("inside"):
        optimizer = OSS(params, AdaScaleWrapper, bucket_bytes=2000, optim_cls=optim, **own, **options)
        ada = optimizer.optim
    elif kind == "wrapper":
        ada = AdaScaleWrapper(params, optim_cls=OSS, optim=optim, bucket_bytes=2000, **own, **options)
    elif kind in ("ddp", "sharded"):
        ada = AdaScale(optim(params, **own), **options)
    else:
        ada = AdaScale(OSS(params, optim, bucket_bytes=2000, **own), **options)
    optimizer = optimizer if kind.startswith("inside") else ada
    if kind.endswith("ddp"):
        return ada, optimizer, DistributedDataParallel(model, find_unused_parameters=find_unused)
    given = optimizer if kind in ("given", "wrapper", "inside") else None
    return ada, optimizer, ShardedDataParallel(model, given, mode="optimizer" if kind == "optimizer" else "gradients")


def unit_loss(model, unit, step):
    return loss_of(model(inputs(unit, step).to(next(model.parameters()).dtype)))


class Simulation:
    """AdaScale by its formula: S gradients of plain autograd, and a plain optimizer."""

    def __init__(self, model=None, optim=SGD, groups=None, scale=None, smoothing=None, debias=True, rule="sgd", **own):
        self.model = copy.deepcopy(model or mlp()).double()
        self.optimizer = optim(groups(self.model) if groups else self.model.parameters(), **{"lr": 0.1, **own})
        self.scale, self.smoothing, self.debias, self.rule = scale, smoothing, debias, rule
        self.averages = []  # of each group: variance, square, weight of both, number of samples
        self.effective_steps = 0.0

    def step(self, step, units, loss=unit_loss, max_norm=None):
        groups, count = self.optimizer.param_groups, len(units)
        self.averages += [[0.0, 0.0, 0.0, 0] for _ in groups[len(self.averages) :]]
        samples = []
        for unit in units:
            self.model.zero_grad()
            loss(self.model, unit, step).backward()
            whole = [[torch.zeros_like(p) if p.grad is None else p.grad for p in group["params"]] for group in groups]
            samples.append(whole)
        self.given_scale = self.scale or count
        for number, (group, average) in enumerate(zip(groups, self.averages, strict=True)):
            flat = torch.stack([torch.cat([g.flatten() for g in sample[number]]) for sample in samples])
            mean = flat.mean(0)
            variance = ((flat.square().sum() - count * mean.square().sum()) / (count - 1)).item()
            variance *= self.given_scale / count
            square = max(mean.square().sum().item() - variance / self.given_scale, 0.0)
            self._update(average, max(variance, 1e-6), square, count)
            parts = mean.split([p.numel() for p in group["params"]])
            for parameter, part in zip(group["params"], parts, strict=True):
                parameter.grad = part.view_as(parameter)
        if max_norm:
            nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], max_norm)
        rates = [group["lr"] for group in groups]
        for number, group in enumerate(groups):
            group["lr"] *= self.gain(number) ** (0.5 if self.rule == "adam" else 1.0)
        self.optimizer.step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        self.effective_steps += self.gain()

    def _update(self, average, variance, square, count):
        theta = max(1 - count / 1000, 0) if self.smoothing is None else self.smoothing
        average[3] += 1
        if not self.debias:  # the plain mean of what came so far, until there are enough of them
            theta = 1 - 1 / average[3] if average[3] < 1 / (1 - theta) else theta
        for number, value in enumerate((variance, square, 1.0)):
            average[number] = theta * average[number] + (1 - theta) * value

    def gain(self, group=None):
        chosen = self.averages if group is None else [self.averages[group]]
        variance, square = (sum(average[i] / average[2] for average in chosen) for i in (0, 1))
        return (variance + square) / (variance / self.given_scale + square)

    def check(self, ada, model, context=None, rtol=1e-5):
        assert ada.gain() == pytest.approx(self.gain(), rel=rtol), context
        for number in range(len(self.averages)):
            assert ada.gain(pg_idx=number) == pytest.approx(self.gain(number), rel=rtol), (context, number)
        assert ada.effective_steps() == pytest.approx(self.effective_steps, rel=rtol), context
        for ours, theirs in zip(values(model), values(self.model), strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=rtol, atol=1e-6, msg=lambda m: f"{context}: {m}")


def first_layers(model):
    return [{"params": [*model[0].parameters()], "lr": 0.2}, {"params": [*model[2].parameters()]}]
