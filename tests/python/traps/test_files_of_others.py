"""Files of other libraries: safetensors, huggingface_hub and Accelerate save and load a wrapped model."""

import logging
import os

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from huggingface_hub import load_torch_model, save_torch_model
from safetensors.torch import load_file, load_model, save_model

from support.models import mlp
from support.parallel import MODES, assert_same, ddp, sharded, train, trained_twins

pytestmark = pytest.mark.costly


def _safetensors(rank, world_size, mode, folder):
    (parallel, optimizer), (plain, plain_optimizer) = trained_twins(rank, mode)
    path = f"{folder}/{rank}.safetensors"
    save_model(parallel.module, path)
    assert load_file(path).keys() == plain.module.state_dict().keys()
    fresh = mlp(seed=1)
    load_model(fresh, path)
    assert_same(fresh, plain, mode)

    # and into a model that is trained: it goes on from there
    train(parallel, optimizer, rank, steps=[7])
    parallel.state_dict()
    load_model(parallel.module, path)
    assert_same(parallel, plain, mode)
    before = [value.clone() for value in plain.module.parameters()]
    train(plain, plain_optimizer, rank, steps=[7])
    with torch.no_grad():
        for parameter, value in zip(plain.module.parameters(), before, strict=True):
            parameter.copy_(value)
    train(plain, plain_optimizer, rank)
    train(parallel, optimizer, rank)
    assert_same(parallel, plain, mode)


@pytest.mark.parametrize("mode", MODES)
def test_safetensors_saves_and_loads_the_model(run_ranks, mode, tmp_path):
    run_ranks(2, _safetensors, mode, str(tmp_path))


def _hub(rank, world_size, mode, folder):
    (parallel, _), (plain, _) = trained_twins(rank, mode)
    os.mkdir(f"{folder}/{rank}")
    save_torch_model(parallel.module, f"{folder}/{rank}")
    fresh = mlp(seed=1)
    load_torch_model(fresh, f"{folder}/{rank}")
    assert_same(fresh, plain, mode)
    load_torch_model(parallel.module, f"{folder}/{rank}")
    assert_same(parallel, plain, mode)


@pytest.mark.parametrize("mode", ["replicated", "gradients", "release_parameters+overlap_gather"])
def test_huggingface_hub_saves_and_loads_the_model(run_ranks, mode, tmp_path):
    run_ranks(2, _hub, mode, str(tmp_path))


def accelerator():
    logging.disable(logging.WARNING)
    return Accelerator(cpu=True)


def _accelerated_optimizer(rank, world_size):
    """What Accelerate and Trainer do with every optimizer, before the first step."""
    accelerator()
    plain, ours = mlp(), mlp()
    theirs = ddp(plain, lr=0.1)
    train(theirs[0], theirs[1], rank)
    parallel, optimizer = sharded(ours, "gradients", lr=0.1)
    train(parallel, AcceleratedOptimizer(optimizer), rank)
    assert_same(parallel, plain)


@pytest.mark.cpu_only("Accelerate would move models to devices of its own choice")
def test_accelerate_takes_the_oss(run_ranks):
    run_ranks(2, _accelerated_optimizer)


def _accelerated_state(rank, world_size, folder):
    """``save_state`` and ``load_state`` of a model that was wrapped by us, with its optimizer."""
    (parallel, optimizer), (plain, plain_optimizer) = trained_twins(rank, "gradients")
    program = accelerator()
    model = program.prepare_model(parallel, evaluation_mode=True)  # it is wrapped already
    optimizer.consolidate_state_dict(-1)
    optimizer = program.prepare_optimizer(optimizer)
    program.save_state(f"{folder}/state")
    train(model, optimizer, rank, steps=[7])
    program.load_state(f"{folder}/state")
    assert_same(model, plain)
    train(plain, plain_optimizer, rank)
    train(model, optimizer, rank)
    assert_same(model, plain)


@pytest.mark.cpu_only("Accelerate would move models to devices of its own choice")
def test_accelerate_saves_and_loads_its_state(run_ranks, tmp_path):
    run_ranks(2, _accelerated_state, str(tmp_path))
