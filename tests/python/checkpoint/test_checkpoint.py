"""Checkpoints of training in Python: with any number of ranks, and with torch's own optimizers."""

import collections
import copy
import gc
import json
import weakref

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fairshard.checkpoint import Checkpoint, Rng, latest, list_steps, model_state_dict, optimizer_state_dict
from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, AdaScale, AdaScaleWrapper, ShardedGradScaler
from support.models import loss_of, mlp, values
from support.ranks import device

BEFORE, AFTER = 3, 10


def _batch(rank, world_size, step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, 10, generator=generator).chunk(world_size)[rank].to(device())


def _train(model, optimizer, scheduler, rank, world_size, first, last):
    losses = []
    for step in range(first, last):
        optimizer.zero_grad()
        loss = loss_of(model(_batch(rank, world_size, step).to(next(model.parameters()).dtype)))
        loss.backward()
        optimizer.step()
        scheduler.step()
        mean = loss.detach().float().clone()
        if world_size > 1:
            torch.distributed.all_reduce(mean)
        losses.append(mean.item() / world_size)
    return losses


def _run(rank, world_size, folder, is_resumed, kind, options, dtype=torch.float32):
    model = mlp(seed=7 + rank if is_resumed else 0).to(dtype)
    optimizer = OSS(model.parameters(), torch.optim.AdamW, lr=1e-2, bucket_bytes=2000, **options)
    parallel = ShardedDataParallel(model, optimizer)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 8)
    run = {"epoch": 0 if is_resumed else 3}
    parts = {"model": parallel if kind == "wrapped" else model, "optimizer": optimizer, "rate": scheduler}
    with Checkpoint(folder, {**parts, "run": run, "rng": Rng()}, keep=2) as checkpoint:
        if is_resumed:
            report = checkpoint.load()
            assert (report.step, report.missing, report.unexpected) == (BEFORE, [], [])
            assert run == {"epoch": 3}
        else:
            assert checkpoint.load() is None
            _train(parallel, optimizer, scheduler, rank, world_size, 0, BEFORE)
            checkpoint.save(BEFORE, blocking=kind == "blocking")
        random = torch.rand(3), torch.rand(3, device=device())
        return _train(parallel, optimizer, scheduler, rank, world_size, BEFORE, BEFORE + AFTER), random


@pytest.mark.parametrize(("ranks", "resumed"), [(2, 2), (2, 3), (3, 1)], ids=lambda pair: str(pair))
def test_a_run_goes_on_with_any_number_of_ranks(run_ranks, tmp_path, ranks, resumed):
    kind = "wrapped" if resumed == 1 else "blocking"
    before = run_ranks(ranks, _run, str(tmp_path), False, kind, {})
    after = run_ranks(resumed, _run, str(tmp_path), True, kind, {})
    if ranks == resumed:
        assert [losses for losses, _ in after] == [losses for losses, _ in before]
    else:
        assert after[0][0] == pytest.approx(before[0][0], rel=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(after[0][1], before[0][1], strict=True))


@pytest.mark.costly
def test_whole_tensors_master_weights_and_low_precision(run_ranks, tmp_path):
    masters = {"master_weights": True}
    before = run_ranks(2, _run, str(tmp_path / "a"), False, "async", masters, torch.bfloat16)
    after = run_ranks(2, _run, str(tmp_path / "a"), True, "async", {**masters, "partition": "tensor"}, torch.bfloat16)
    assert after[0][0] == before[0][0]
    rounded = {"gather_dtype": torch.bfloat16}
    before = run_ranks(2, _run, str(tmp_path / "b"), False, "blocking", rounded)
    after = run_ranks(2, _run, str(tmp_path / "b"), True, "blocking", rounded)
    assert after[0][0] == before[0][0]
    # the exact values are in the file, in float32
    saved = model_state_dict(latest(tmp_path / "a"))
    assert {value.dtype for value in saved.values()} == {torch.float32}


def _plain_steps(model, optimizer, first, last):
    for step in range(first, last):
        optimizer.zero_grad()
        loss_of(model(_batch(0, 1, step))).backward()
        optimizer.step()


def _sharded_from_plain(rank, world_size, folder, optim, options):
    model = mlp(seed=5)
    optimizer = OSS(model.parameters(), optim, bucket_bytes=2000, **options)
    parallel = ShardedDataParallel(model, optimizer)
    checkpoint = Checkpoint(folder, {"model": model, "optimizer": optimizer})
    checkpoint.load()
    for step in range(3, 6):
        optimizer.zero_grad()
        loss_of(parallel(_batch(rank, world_size, step))).backward()
        optimizer.step()
    checkpoint.save(6)
    return values(model)


@pytest.mark.parametrize(
    ("optim", "options"),
    [
        (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True}),
        (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
        (torch.optim.ASGD, {"lr": 1e-2}),
        (torch.optim.Adafactor, {"lr": 1e-2}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_plain_optimizers_become_sharded_and_back(run_ranks, backend, tmp_path, optim, options):
    tolerances = {"rtol": 1e-4, "atol": 1e-5} if backend == "nccl" else {}  # the plain optimizer is on the CPU
    model = mlp()
    optimizer = optim(model.parameters(), **options)
    _plain_steps(model, optimizer, 0, 3)
    Checkpoint(tmp_path, {"model": model, "optimizer": optimizer}).save(3)
    _plain_steps(model, optimizer, 3, 6)

    (sharded, *_) = run_ranks(2, _sharded_from_plain, str(tmp_path), optim, options)
    torch.testing.assert_close(sharded, values(model), **tolerances)

    resumed = mlp(seed=8)
    resumed_optimizer = optim(resumed.parameters(), **options)
    assert Checkpoint(tmp_path, {"model": resumed, "optimizer": resumed_optimizer}).load().step == 6
    assert all(torch.equal(a, b) for a, b in zip(values(resumed), sharded, strict=True))
    _plain_steps(model, optimizer, 6, 9)
    _plain_steps(resumed, resumed_optimizer, 6, 9)
    torch.testing.assert_close(values(resumed), values(model), **tolerances)

    # the same as torch's own state dict, from a checkpoint of two ranks
    state = optimizer_state_dict(latest(tmp_path))
    fresh = optim(mlp(seed=8).parameters(), **options)
    fresh.load_state_dict(copy.deepcopy(state))
    assert fresh.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    assert state["state"].keys() == optimizer.state_dict()["state"].keys()


class _Extra(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.tied = nn.Linear(3, 3)
        self.other = nn.Linear(3, 3)
        self.other.weight = self.tied.weight
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.count = 0

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


def test_one_process_saves_all_kinds_of_parts(tmp_path):
    module, table = _Extra(), torch.arange(6.0).view(2, 3)
    module.norm(torch.randn(4, 3))
    module.count = 9
    optimizer = torch.optim.Adam(module.parameters(), lr=torch.tensor(0.5))
    scaler = ShardedGradScaler(init_scale=32.0, device="cpu")
    scaler.scale(torch.ones(()))
    rate = torch.optim.lr_scheduler.MultiStepLR(torch.optim.SGD([table.requires_grad_()], lr=1.0), [1, 2])
    run = {"best": float("inf"), "seen": {1: (2, [None, True])}, "table": torch.ones(2), "nested": [torch.ones(1)]}
    parts = {"model": module, "optimizer": optimizer, "scaler": scaler, "rate": rate, "run": run, "table": table}
    module.tied.weight.sum().backward()
    optimizer.step()
    rate.optimizer.step()
    rate.step()
    Checkpoint(tmp_path, {**parts, "rng": Rng()}).save(1)

    expected = copy.deepcopy((module.state_dict(), run, table.detach(), rate.state_dict()))
    table.detach().zero_()
    run.update(best=0.0, seen=None, nested=None)
    run["table"].zero_()
    module.norm.running_mean.zero_()
    module.count = 0
    rate.step()
    other = torch.optim.Adam(module.parameters(), lr=torch.tensor(0.1))
    resumed_scaler = ShardedGradScaler(device="cpu")
    report = Checkpoint(tmp_path, {**parts, "optimizer": other, "scaler": resumed_scaler, "rng": Rng()}).load()
    assert report.missing == report.unexpected == []
    torch.testing.assert_close((module.state_dict(), run, table.detach(), rate.state_dict()), expected)
    assert isinstance(rate.milestones, collections.Counter)
    assert resumed_scaler.get_scale() == 32.0
    assert other.param_groups[0]["lr"] == 0.5
    assert torch.is_tensor(other.param_groups[0]["lr"])
    torch.testing.assert_close(other.state[module.tied.weight], optimizer.state[module.tied.weight])


def test_files_are_plain_safetensors_and_json(tmp_path):
    model = mlp()
    Checkpoint(tmp_path, {"model": model}).save(120)
    folder = tmp_path / "step-00000120"
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "shard-00000-of-00001.safetensors"]
    assert json.loads((folder / "manifest.json").read_text())["step"] == 120
    tensors = load_file(folder / "shard-00000-of-00001.safetensors")
    assert {f"model/{name}" for name, _ in model.named_parameters()} == tensors.keys()
    torch.testing.assert_close(tensors["model/0.weight"], model[0].weight.detach())
    assert list_steps(tmp_path) == [120]
    plain = mlp(seed=3)
    plain.load_state_dict(model_state_dict(folder))
    torch.testing.assert_close(values(plain), values(model))


def test_what_does_not_fit_is_named(tmp_path):
    model = mlp()
    Checkpoint(tmp_path, {"model": model, "run": {"a": 1}}).save(1)
    longer = nn.Sequential(*mlp(), nn.Linear(5, 2))
    before = values(longer)
    with pytest.raises(ValueError, match=r"missing: model/5.weight, model/5.bias"):
        Checkpoint(tmp_path, {"model": longer}).load()
    assert all(torch.equal(a, b) for a, b in zip(values(longer), before, strict=True))
    report = Checkpoint(tmp_path, {"model": longer}).load(strict=False)
    assert report.missing == ["model/5.weight", "model/5.bias"]
    with pytest.raises(ValueError, match=r"unexpected: model/2.bias, model/2.weight"):
        Checkpoint(tmp_path, {"model": mlp()[:2]}).load()
    with pytest.raises(ValueError, match=r"model/4.bias has sizes \[5\] instead of \[6\]"):
        Checkpoint(tmp_path, {"model": nn.Sequential(*mlp()[:4], nn.Linear(17, 6))}).load()
    with pytest.raises(TypeError, match=r"'run/a' is of type object"):
        Checkpoint(tmp_path, {"run": {"a": object()}}).save(2)
    with pytest.raises(TypeError, match="part 'epoch' is of type int"):
        Checkpoint(tmp_path, {"epoch": 3})
    with pytest.raises(ValueError, match="overlap"):
        Checkpoint(tmp_path, {"a": model, "a/b": model})
    assert latest(tmp_path / "none") is None


def test_other_parameter_groups_are_refused_before_anything_is_changed(tmp_path):
    model = mlp()
    Checkpoint(tmp_path, {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}).save(1)
    other = mlp(seed=1)
    before = values(other)
    first, *rest = other.parameters()
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": rest}], lr=0.2)
    with pytest.raises(ValueError, match="the checkpoint has 1 parameter groups, the optimizer 2"):
        Checkpoint(tmp_path, {"model": other, "optimizer": optimizer}).load()
    assert all(torch.equal(a, b) for a, b in zip(values(other), before, strict=True))


def test_a_run_that_holds_its_checkpoint_is_collected(tmp_path):
    class Run:
        def __init__(self):
            self.model = mlp()
            self.checkpoint = Checkpoint(tmp_path, {"model": self.model, "run": self, "values": self.__dict__})

        def state_dict(self):
            return {"step": 1}

        def load_state_dict(self, state):
            assert state == {"step": 1}

    run = Run()
    gone = weakref.ref(run)
    Checkpoint(tmp_path, {"model": run.model, "run": run}).save(1)
    Checkpoint(tmp_path, {"model": run.model, "run": run}).load()
    del run
    gc.collect()
    assert gone() is None


def test_damage_is_found(tmp_path):
    Checkpoint(tmp_path, {"model": mlp()}).save(1)
    file = tmp_path / "step-00000001" / "shard-00000-of-00001.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"shard-00000-of-00001.safetensors: tensor 'model/.*' is damaged"):
        Checkpoint(tmp_path, {"model": mlp()}).load()


def _adascale(kind, model):
    options = {"lr": 0.1, "momentum": 0.9}
    if kind == "inside":
        return OSS(model.parameters(), AdaScaleWrapper, optim_cls=torch.optim.SGD, **options)
    if kind == "around":
        return AdaScale(OSS(model.parameters(), torch.optim.SGD, **options))
    return AdaScale(torch.optim.SGD(model.parameters(), **options))


def _with_adascale(rank, world_size, folder):
    def train(model, optimizer, steps):
        ada = optimizer if isinstance(optimizer, AdaScale) else optimizer.optim
        gains = []
        for step in steps:
            optimizer.zero_grad()
            loss_of(model(_batch(rank, world_size, step))).backward()
            optimizer.step()
            gains.append((ada.gain(), ada.effective_steps()))
        return gains

    for kind in ("plain", "around", "inside"):
        first, second = mlp(), mlp(seed=3)
        optimizers = [_adascale(kind, model) for model in (first, second)]
        parallels = [ShardedDataParallel(model) for model in (first, second)]
        train(parallels[0], optimizers[0], range(3))
        Checkpoint(f"{folder}/{kind}", {"model": first, "optimizer": optimizers[0]}).save(3)
        Checkpoint(f"{folder}/{kind}", {"model": second, "optimizer": optimizers[1]}).load()
        gains = [train(parallels[i], optimizers[i], range(3, 6)) for i in range(2)]
        assert gains[0] == gains[1], kind
        assert all(torch.equal(a, b) for a, b in zip(values(first), values(second), strict=True)), kind
    return True


@pytest.mark.costly
def test_an_adascale_goes_on_with_its_means(run_ranks, tmp_path):
    assert all(run_ranks(2, _with_adascale, str(tmp_path)))


def _with_slowmo(rank, world_size, folder):
    def make(seed):
        model = SlowMoDistributedDataParallel(
            mlp(seed), nprocs_per_node=2, slowmo_momentum=0.2, slowmo_frequency=4, localsgd_frequency=4
        )
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            loss_of(model(_batch(rank, world_size, step))).backward()
            optimizer.step()
            model.perform_slowmo(optimizer)

    (first, optimizer), (second, resumed) = make(0), make(3)
    train(first, optimizer, range(6))  # two steps after a slow one: nodes differ
    with Checkpoint(folder, {"model": first, "optimizer": optimizer}) as checkpoint:
        checkpoint.save(6, blocking=False)
    Checkpoint(folder, {"model": second, "optimizer": resumed}).load()
    for steps in (range(0), range(6, 11)):
        train(first, optimizer, steps)
        train(second, resumed, steps)
        assert all(torch.equal(a, b) for a, b in zip(values(first), values(second), strict=True))
    first.average_parameters()
    return values(second)


@pytest.mark.costly
def test_nodes_that_train_apart_go_on_apart(run_ranks, tmp_path):
    results = run_ranks(4, _with_slowmo, str(tmp_path))
    assert not torch.equal(results[0][0], results[2][0])
