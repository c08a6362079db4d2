"""Every combination of what `fairshard train` offers gives the loss curve of a plain run."""

import functools

import pytest

from support.trainer import train, write_text

BITS = 0.0  # bit for bit
SUMS = 2e-5  # sums are taken in another order: float32 rounding, a few steps on
LOW = 2e-2  # another rounding to bfloat16 or float16

PLAIN = {"ranks": 1, "shard": "none"}
PLAIN2 = {"ranks": 2, "shard": "none"}
BF16 = PLAIN | {"amp": "bf16"}
APART = {"ranks": 2, "nodes": 2, "slowmo": True, "localsgd_frequency": 2}
DILOCO = {"ranks": 2, "nodes": 2, "diloco": True, "slowmo_frequency": 4}
ADASCALE = PLAIN | {"adascale": True, "accumulate": 2}
KEEPING = {"checkpoint_activation": True}

# What is run, what it is compared with, and how close the losses of all steps are promised to be.
TABLE = {
    "optimizer, 1 rank": ({"ranks": 1, "shard": "optimizer"}, PLAIN, BITS),
    "gradients, 1 rank": ({"ranks": 1, "shard": "gradients"}, PLAIN, BITS),
    "none, 2 ranks": (PLAIN2, PLAIN, SUMS),
    "optimizer, 2 ranks": ({"ranks": 2, "shard": "optimizer"}, PLAIN2, BITS),
    "gradients, 2 ranks": ({"ranks": 2, "shard": "gradients"}, PLAIN2, BITS),
    "none, 4 ranks": ({"ranks": 4, "shard": "none"}, PLAIN, SUMS),
    "gradients, 4 ranks": ({"ranks": 4, "shard": "gradients"}, PLAIN, SUMS),
    "accumulate": (PLAIN | {"accumulate": 4}, PLAIN, SUMS),
    "accumulate, optimizer, 2 ranks": ({"ranks": 2, "shard": "optimizer", "accumulate": 2}, PLAIN, SUMS),
    "accumulate, gradients, 2 ranks": ({"ranks": 2, "shard": "gradients", "accumulate": 2}, PLAIN, SUMS),
    "checkpoint": (PLAIN | KEEPING, PLAIN, BITS),
    "checkpoint, gradients, 2 ranks": ({"ranks": 2, "shard": "gradients"} | KEEPING, PLAIN2, BITS),
    "step in backward, gradients, 2 ranks": ({"ranks": 2, "step_in_backward": True}, PLAIN2, BITS),
    "step in backward, checkpoint, 2 ranks": ({"ranks": 2, "step_in_backward": True} | KEEPING, PLAIN2, BITS),
    "overlap gather, clip, gradients, 2 ranks": (
        {"ranks": 2, "overlap_gather": True, "clip": 0.5},
        {"ranks": 2, "clip": 0.5},
        BITS,
    ),
    "overlap gather, optimizer, accumulate, 2 ranks": (
        {"ranks": 2, "shard": "optimizer", "overlap_gather": True, "accumulate": 2},
        PLAIN2 | {"accumulate": 2},
        BITS,
    ),
    "release parameters, optimizer, 2 ranks": (
        {"ranks": 2, "shard": "optimizer", "release_parameters": True},
        PLAIN2,
        BITS,
    ),
    "release parameters, overlap gather, step in backward, checkpoint, 2 ranks": (
        {"ranks": 2, "release_parameters": True, "overlap_gather": True, "step_in_backward": True} | KEEPING,
        PLAIN2,
        BITS,
    ),
    "clip, gradients, 2 ranks": ({"ranks": 2, "shard": "gradients", "clip": 0.5}, PLAIN | {"clip": 0.5}, SUMS),
    "offload": ({"ranks": 1, "offload": 3}, PLAIN, BITS),
    "offload, checkpoint, accumulate": (
        {"ranks": 1, "offload": 4, "accumulate": 2} | KEEPING,
        PLAIN | {"accumulate": 2},
        BITS,
    ),
    "offload, clip": ({"ranks": 1, "offload": 2, "clip": 0.5}, PLAIN | {"clip": 0.5}, BITS),
    "offload to files": ({"ranks": 1, "offload": 4, "host_budget": "100KiB", "spill_dir": "."}, PLAIN, BITS),
    "offload, gradients, 2 ranks": ({"ranks": 2, "shard": "gradients", "offload": 3}, PLAIN2, BITS),
    "offload, none, accumulate, 2 ranks": (
        {"ranks": 2, "shard": "none", "offload": 3, "accumulate": 2},
        PLAIN,
        SUMS,
    ),
    "bf16": (BF16, PLAIN, LOW),
    "bf16, checkpoint": (BF16 | KEEPING, BF16, BITS),
    "bf16, gradients, 2 ranks": ({"ranks": 2, "shard": "gradients", "amp": "bf16"}, BF16, LOW),
    "bf16, offload": ({"ranks": 1, "offload": 3, "amp": "bf16"}, BF16, BITS),
    "fp16, clip, gradients, 2 ranks": (
        {"ranks": 2, "shard": "gradients", "amp": "fp16", "clip": 0.5},
        PLAIN | {"clip": 0.5},
        LOW,
    ),
    "fp16, offload, optimizer, 2 ranks": ({"ranks": 2, "shard": "optimizer", "amp": "fp16", "offload": 2}, PLAIN, LOW),
    "AdaScale, none, 2 ranks": ({"ranks": 2, "shard": "none", "adascale": True}, ADASCALE, SUMS),
    "AdaScale, gradients, 2 ranks": ({"ranks": 2, "shard": "gradients", "adascale": True}, ADASCALE, SUMS),
    "AdaScale, gradients, clip, 2 ranks": (
        {"ranks": 2, "shard": "gradients", "adascale": True, "clip": 0.5},
        ADASCALE | {"clip": 0.5},
        SUMS,
    ),
    "SlowMo, 1 node": ({"ranks": 2, "nodes": 1, "slowmo": True}, PLAIN2, BITS),
    "SlowMo, 2 nodes of 2": (APART | {"ranks": 4}, APART, SUMS),
    "SlowMo, 2 nodes of 2, gradients": (APART | {"ranks": 4, "shard": "gradients"}, APART | {"ranks": 4}, BITS),
    "DiLoCo, 2 nodes of 2, step in backward": (
        DILOCO | {"ranks": 4, "shard": "gradients", "step_in_backward": True},
        DILOCO | {"ranks": 4},
        BITS,
    ),
    "SlowMo, bf16 in nodes": (APART | {"amp": "bf16"}, APART, LOW),
    "DiLoCo, 1 node": ({"ranks": 2, "nodes": 1, "diloco": True, "slowmo_lr": 1, "slowmo_momentum": 0}, PLAIN2, SUMS),
    "DiLoCo, 2 nodes of 2": (DILOCO | {"ranks": 4, "accumulate": 2}, DILOCO, SUMS),
    "DiLoCo, int8": (DILOCO | {"wire": "int8"}, DILOCO, LOW),
}


@pytest.fixture(scope="module")
def curve(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    text = write_text(folder)

    @functools.cache
    def run(options):
        named = dict(options)
        if "spill_dir" in named:
            named["spill_dir"] = folder
        return train(text, folder / f"{len(list(folder.iterdir()))}.jsonl", **named)

    return lambda options: run(tuple(sorted(options.items())))


@pytest.mark.parametrize("name", TABLE)
def test_losses_are_those_of_the_plain_run(curve, name):
    options, reference, promise = TABLE[name]
    ours, plain = curve(options), curve(reference)
    assert len(ours.losses) == len(plain.losses)
    assert len(plain.losses) == 9 or "adascale" in options  # with which a step is worth up to two
    assert plain.losses[0] - plain.losses[-1] > 0.2  # it learns
    if promise == BITS:
        assert ours.losses == plain.losses
    else:
        assert ours.losses == pytest.approx(plain.losses, rel=promise)
    if "adascale" in options:
        gains = [line["gain"] for line in ours.steps.values()]
        assert gains == pytest.approx([line["gain"] for line in plain.steps.values()], rel=1e-3)
        assert all(1 < gain < 2 for gain in gains)
