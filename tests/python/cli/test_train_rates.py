"""Learning rates that fall in several ways, and weight decay that spares norms and biases."""

import math
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from support.hub_models import SHORT, VOCABULARY, batch_of, write_folder, write_tokens
from support.trainer import train, write_text


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    write_folder("gpt2", root / "gpt2")
    write_tokens(root / "tokens.safetensors", vocab_size=VOCABULARY)
    return root


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "constant", "warmup": 4}, [0.25, 0.5, 0.75] + [1] * 17),
        ({"schedule": "linear", "warmup": 0, "final_lr": 0}, [1 - step / 20 for step in range(20)]),
        ({"schedule": "wsd", "warmup": 5}, [0.2, 0.4, 0.6, 0.8] + [1] * 14 + [0.7, 0.4]),
        ({}, [0.5, 1] + [0.1 + 0.45 * (1 + math.cos(math.pi * step / 18)) for step in range(18)]),
    ],
)
def test_schedules(tmp_path, options, expected):
    log = train(write_text(tmp_path), tmp_path / "log.jsonl", steps=20, batch=1, context=8, lr=0.1, **options)
    assert [line["lr"] for line in log.steps.values()] == pytest.approx([0.1 * part for part in expected])


OPTIONS = SHORT | {"steps": 8, "decay_matrices_only": True, "weight_decay": 2.0, "lr": 0.02, "clip": 0.5}


@pytest.fixture(scope="module")
def plain(hub, tmp_path_factory):
    log = tmp_path_factory.mktemp("plain") / "log.jsonl"
    return train(hub / "tokens.safetensors", log, model=hub / "gpt2", ranks=2, shard="none", **OPTIONS)


def test_norms_and_biases_do_not_decay(hub, plain):
    """As in a plain loop with two groups, whose gradients are clipped together."""
    model = AutoModelForCausalLM.from_pretrained(hub / "gpt2").train()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 2.0},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    losses = []
    for step, record in plain.steps.items():
        for group in optimizer.param_groups:
            group["lr"] = record["lr"]
        optimizer.zero_grad()
        rows = batch_of(step, SHORT["batch"])
        loss = model(rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    assert plain.losses[:-1] == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "promise"),
    [
        ({"ranks": 2}, 2e-5),
        ({"ranks": 2, "overlap_gather": True, "release_parameters": True}, 2e-5),
        ({"ranks": 1, "shard": "none", "offload": 3}, 2e-5),
        ({"ranks": 2, "slowmo": True, "nodes": 1}, 0),
    ],
)
def test_every_strategy_spares_them(hub, plain, tmp_path, options, promise):
    log = train(hub / "tokens.safetensors", tmp_path / "log.jsonl", model=hub / "gpt2", **OPTIONS, **options)
    assert log.losses == (pytest.approx(plain.losses, rel=promise) if promise else plain.losses)


def test_a_run_with_groups_goes_on_with_other_ranks(hub, plain, tmp_path):
    data, options = hub / "tokens.safetensors", OPTIONS | {"model": hub / "gpt2", "save": tmp_path / "runs"}
    train(data, tmp_path / "log.jsonl", ranks=2, save_every=4, **options)
    shutil.rmtree(tmp_path / "runs/step-00000008")
    resumed = train(data, tmp_path / "more.jsonl", ranks=1, shard="none", resume=True, **options)
    assert min(resumed.steps) == 5
    assert resumed.losses == pytest.approx(plain.losses[4:], rel=2e-5)
