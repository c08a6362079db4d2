"""What C++ has saved goes on in Python, and the other way round; and the program that looks into checkpoints."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, safe_open

from fairshard.checkpoint import Checkpoint, latest, model_state_dict
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import loss_of, mlp
from support.ranks import device

BIN = Path(__file__).parents[3] / "build/bin"
OPTIONS = {"lr": 1e-2, "weight_decay": 0.1}


def _program(name, *arguments):
    result = subprocess.run([BIN / name, *map(str, arguments)], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    return result.stdout


def _cpp_losses(folder, ranks, last, save_every):
    output = _program("checkpointed_run", folder, ranks, last, save_every)
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", output, re.M)]


def _batch(rank, world_size, step):
    whole = torch.arange(240, dtype=torch.float32).view(24, 10).mul(0.37).add(step * 0.9).sin()
    return whole.chunk(world_size)[rank].to(device())


def _steps(model, optimizer, rank, world_size, first, last):
    losses = []
    for step in range(first, last):
        optimizer.zero_grad()
        loss = loss_of(model(_batch(rank, world_size, step)))
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if world_size > 1:
            torch.distributed.all_reduce(mean)
        losses.append(mean.item() / world_size)
    return losses


def _sharded(rank, world_size, folder, is_resumed):
    model = mlp(seed=3)
    optimizer = OSS(model.parameters(), torch.optim.AdamW, bucket_bytes=2000, **OPTIONS)
    parallel = ShardedDataParallel(model, optimizer)
    checkpoint = Checkpoint(folder, {"model": model, "optimizer": optimizer})
    if is_resumed:
        assert checkpoint.load().step == 5
    else:
        _steps(parallel, optimizer, rank, world_size, 0, 5)
        checkpoint.save(5)
    return _steps(parallel, optimizer, rank, world_size, 5, 15)


def _close_to(losses, backend):
    return pytest.approx(losses, rel=1e-4 if backend == "nccl" else 1e-5)  # C++ is on the CPU


@pytest.mark.costly
def test_python_goes_on_from_cpp(run_ranks, backend, tmp_path):
    whole = _cpp_losses(tmp_path / "whole", 1, 15, 0)
    _cpp_losses(tmp_path / "a", 3, 5, 5)
    sharded = run_ranks(2, _sharded, str(tmp_path / "a"), True)[0]
    assert sharded == _close_to(whole[5:], backend)
    model = mlp(seed=4)
    plain = torch.optim.AdamW(model.parameters(), **OPTIONS)
    Checkpoint(tmp_path / "a", {"model": model, "optimizer": plain}).load()
    assert _steps(model, plain, 0, 1, 5, 15) == pytest.approx(whole[5:], rel=1e-5)


@pytest.mark.costly
def test_cpp_goes_on_from_python(run_ranks, backend, tmp_path):
    sharded = run_ranks(2, _sharded, str(tmp_path / "a"), False)[0]
    assert _cpp_losses(tmp_path / "a", 3, 15, 0) == _close_to(sharded, backend)
    model = mlp()
    plain = torch.optim.AdamW(model.parameters(), **OPTIONS)
    _steps(model, plain, 0, 1, 0, 5)
    Checkpoint(tmp_path / "b", {"model": model, "optimizer": plain}).save(5)
    assert _cpp_losses(tmp_path / "b", 2, 15, 0) == pytest.approx(_steps(model, plain, 0, 1, 5, 15), rel=1e-5)


def test_the_program_consolidates_and_inspects(tmp_path):
    _cpp_losses(tmp_path / "a", 3, 10, 5)
    table = _program("fairshard", "inspect", tmp_path / "a", "--verify")
    assert "step 10, 3 rank(s)" in table
    assert "all checksums are good" in table
    assert re.search(r"^optimizer/0.weight/exp_avg +F32 +\[33, 10\] +1.3 KiB +0:0-", table, re.M)
    assert re.search(r"^optimizer/param_groups = \[\{.*\"lr\":0.01", table, re.M)

    _program("fairshard", "consolidate", tmp_path / "a", tmp_path / "model.safetensors", "--part", "model")
    tensors = load_file(tmp_path / "model.safetensors")
    model = mlp()
    model.load_state_dict(tensors)
    torch.testing.assert_close(tensors, model_state_dict(latest(tmp_path / "a")), rtol=0, atol=0)

    _program("fairshard", "consolidate", tmp_path / "a/step-00000005", tmp_path / "all.safetensors")
    with safe_open(tmp_path / "all.safetensors", "pt") as file:
        assert "optimizer/4.bias/exp_avg_sq" in file.keys()  # noqa: SIM118
        assert '"lr":0.01' in file.metadata()["optimizer/param_groups"]

    failed = subprocess.run([BIN / "fairshard", "inspect", tmp_path / "none"], capture_output=True, text=True)
    assert failed.returncode == 1
    assert failed.stderr == f"fairshard: {tmp_path}/none: there is no complete checkpoint\n"
    assert subprocess.run([BIN / "fairshard", "bad"], capture_output=True).returncode == 2
