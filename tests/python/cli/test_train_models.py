"""`fairshard train --model`: models of Hugging Face's hub against a plain loop with transformers, in every strategy."""

import functools
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from support.hub_models import CONFIGS, SHORT, VOCABULARY, batch_of, tokens, windows, write_folder, write_tokens
from support.trainer import run, train, trainer, write_text

BITS, SUMS, LOW = 0.0, 2e-5, 2e-2  # see test_train_combinations.py


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A folder for each model, and a file of tokens."""
    root = tmp_path_factory.mktemp("hub")
    for name in CONFIGS:
        write_folder(name, root / name)
    write_tokens(root / "tokens.safetensors", vocab_size=VOCABULARY, end_token=0)
    return root


def plain_losses(folder, log, clip=0.0):
    """A loop with transformers' model, with the learning rates that our run has had."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step, record in log.steps.items():
        optimizer.param_groups[0]["lr"] = record["lr"]
        optimizer.zero_grad()
        rows = batch_of(step, SHORT["batch"])
        loss = model(rows, labels=rows).loss
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        _, held_out = windows()
        return [*losses, model.eval()(held_out, labels=held_out).loss.item()]


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "qwen3"])
def test_losses_are_those_of_a_plain_loop(hub, tmp_path, name):
    """Over an epoch's end, and of the held-out windows in the end."""
    options = SHORT | {"steps": 20, "ranks": 2, "clip": 0.5 if name == "llama" else None}
    log = train(hub / "tokens.safetensors", tmp_path / "log.jsonl", model=hub / name, **options)
    assert len(log.steps) == 20
    theirs = plain_losses(hub / name, log, options["clip"] or 0.0)
    assert log.losses == pytest.approx(theirs, rel=1e-5)
    assert theirs[0] - theirs[-2] > 0.1  # it learns


PLAIN = {"ranks": 1, "shard": "none"}
PLAIN2 = {"ranks": 2, "shard": "none"}
APART = {"ranks": 2, "nodes": 2, "slowmo": True, "localsgd_frequency": 2}
BY_BLOCK = {"overlap_gather": True, "release_parameters": True}
KEEPING = {"checkpoint_activation": True}

# As in test_train_combinations.py.
TABLE = {
    "gradients, 2 ranks": ({"ranks": 2}, PLAIN2, BITS),
    "none, 2 ranks": (PLAIN2, PLAIN, SUMS),
    "optimizer, overlapped, 2 ranks": ({"ranks": 2, "shard": "optimizer", "overlap_gather": True}, PLAIN2, BITS),
    "gradients, by block, 4 ranks": ({"ranks": 4} | BY_BLOCK, {"ranks": 4}, BITS),
    "gradients, by block, checkpoint, 2 ranks": ({"ranks": 2} | BY_BLOCK | KEEPING, PLAIN2, BITS),
    "step in backward, 2 ranks": ({"ranks": 2, "step_in_backward": True}, PLAIN2, BITS),
    "accumulate, 2 ranks": ({"ranks": 2, "accumulate": 2}, PLAIN, SUMS),
    "clip, 2 ranks": ({"ranks": 2, "clip": 0.5}, PLAIN | {"clip": 0.5}, SUMS),
    "AdaScale, 2 ranks": ({"ranks": 2, "adascale": True}, PLAIN | {"adascale": True, "accumulate": 2}, SUMS),
    "offload, checkpoint": (PLAIN | KEEPING | {"offload": 3}, PLAIN, BITS),
    "offload, gradients, 2 ranks": ({"ranks": 2, "offload": 2}, PLAIN2, BITS),
    "bf16, 2 ranks": ({"ranks": 2, "amp": "bf16"}, PLAIN, LOW),
    "fp16, clip, 2 ranks": ({"ranks": 2, "amp": "fp16", "clip": 0.5}, PLAIN | {"clip": 0.5}, LOW),
    "SlowMo, 1 node": ({"ranks": 2, "nodes": 1, "slowmo": True}, PLAIN2, BITS),
    "SlowMo, 2 nodes of 2, gradients": (APART | {"ranks": 4, "shard": "gradients"}, APART | {"ranks": 4}, BITS),
    "DiLoCo, 2 ranks": (APART | {"slowmo": None, "diloco": True, "localsgd_frequency": None}, PLAIN, 0.2),
}


@pytest.fixture(scope="module")
def curve(hub, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def losses(options):
        log = folder / f"{len(list(folder.iterdir()))}.jsonl"
        named = SHORT | {"model": hub / "qwen3", "steps": 6} | dict(options)
        return train(hub / "tokens.safetensors", log, **named).losses

    return lambda options: losses(tuple(sorted(options.items())))


@pytest.mark.parametrize("name", TABLE)
def test_every_strategy_gives_the_curve_of_a_plain_run(curve, name):
    options, reference, promise = TABLE[name]
    ours, plain = curve(options), curve(reference)
    assert ours == (plain if promise == BITS else pytest.approx(plain, rel=promise))


def test_a_run_goes_on_in_the_middle_of_an_epoch_with_other_ranks(hub, tmp_path):
    """At the same windows: of 14 batches in an epoch five were read."""
    data, options = hub / "tokens.safetensors", SHORT | {"model": hub / "llama", "steps": 20}
    whole = train(data, tmp_path / "whole.jsonl", ranks=1, **options)
    runs, log = tmp_path / "runs", tmp_path / "log.jsonl"
    saving = {"save": runs, "save_every": 5, "keep": 0}
    train(data, log, ranks=2, **options, **saving)
    for folder in sorted(runs.iterdir())[1:]:
        shutil.rmtree(folder)
    resumed = train(data, log, ranks=4, resume=True, **options, **saving)
    assert resumed.of_kind("run")[1]["first_step"] == 6
    assert resumed.losses == pytest.approx(whole.losses, rel=SUMS)


def test_another_config_is_refused(hub, tmp_path):
    """Though the weights would fit; what says nothing of computing may differ."""
    options = SHORT | {"save": tmp_path / "runs", "steps": 1}
    train(hub / "tokens.safetensors", tmp_path / "log.jsonl", model=hub / "llama", **options)
    other = changed_config(tmp_path / "other", hub, '"rope_theta": 10000.0', '"rope_theta": 500.0')
    result = run(*trainer(hub / "tokens.safetensors", model=other, resume=True, **options))
    assert result.returncode == 1
    assert "trains a model with another config.json than the given --model" in result.stderr
    same = changed_config(tmp_path / "same", hub, '"dtype": "float32"', '"dtype": "bfloat16"')
    assert train(hub / "tokens.safetensors", tmp_path / "more.jsonl", model=same, resume=True, **options)


def test_a_run_with_dropout_goes_on_with_its_random_numbers(hub, tmp_path):
    data, options = hub / "tokens.safetensors", SHORT | {"model": hub / "gpt2-dropout", "steps": 6, "ranks": 2}
    runs, saving = tmp_path / "runs", {"save_every": 3}
    whole = train(data, tmp_path / "whole.jsonl", save=runs, **options, **saving)
    shutil.rmtree(runs / "step-00000006")
    resumed = train(data, tmp_path / "log.jsonl", save=runs, resume=True, **options, **saving)
    assert min(resumed.steps) == 4
    assert resumed.losses == whole.losses[3:]


def test_bytes_are_tokens_where_there_is_no_tokenizer(hub, tmp_path):
    """And a config alone makes random weights."""
    (tmp_path / "model").mkdir()
    shutil.copy(hub / "bytes/config.json", tmp_path / "model")
    options = SHORT | {"model": tmp_path / "model", "steps": 20, "log": tmp_path / "log.jsonl", "lr": 0.01}
    result = run(*trainer(write_text(tmp_path), **options))
    assert result.returncode == 0, result.stderr
    assert f"the model folder {tmp_path}/model has no weights: they begin random" in result.stderr
    assert "nats/token" in result.stdout


def changed_config(folder, hub, old, new):
    shutil.copytree(hub / "llama", folder)
    text = (folder / "config.json").read_text()
    assert old in text
    (folder / "config.json").write_text(text.replace(old, new))
    return folder


def test_what_does_not_fit_is_named_in_one_line(hub, tmp_path):
    data, llama = hub / "tokens.safetensors", {"model": hub / "llama"}
    (tmp_path / "empty").mkdir()
    (tmp_path / "old").mkdir()
    shutil.copy(hub / "llama/config.json", tmp_path / "old")
    (tmp_path / "old/pytorch_model.bin").touch()
    unknown = changed_config(tmp_path / "unknown", hub, '"model_type": "llama"', '"model_type": "mamba"')
    turned = changed_config(tmp_path / "turned", hub, '"rope_type": "default"', '"rope_type": "dynamic"')
    wide = write_tokens(tmp_path / "wide.safetensors", vocab_size=1000)
    strange = write_tokens(tmp_path / "strange.safetensors", torch.where(tokens() % 7 == 0, 97, tokens()))
    other = write_tokens(tmp_path / "other.safetensors", tokenizer_crc32=1)
    own = shutil.copytree(hub / "llama", tmp_path / "own")
    (own / "tokenizer.json").write_text("{}")
    text = write_text(tmp_path)
    for path, options, words in [
        (data, {"model": tmp_path / "empty"}, f"the model folder {tmp_path}/empty has no config.json"),
        (data, {"model": tmp_path / "nowhere"}, "--model: Directory does not exist"),
        (data, {"model": tmp_path / "old"}, "has its weights in pytorch_model.bin, and only safetensors"),
        (data, {"model": unknown}, "config.json: the model_type 'mamba' is not supported"),
        (data, {"model": turned}, "the type 'dynamic' of rotary embeddings is not supported"),
        (data, {}, "tokens.safetensors has tokens, not text: --model says which model they are for"),
        (wide, llama, "has tokens of a tokenizer with 1000 tokens, but the model"),
        (strange, llama, "strange.safetensors has a token 97, but the model's vocab_size is 97"),
        (other, {"model": own}, "other.safetensors was written with another tokenizer than"),
        (text, llama, "text.txt is read as bytes, but the model"),
        (hub / "llama/model.safetensors", llama, "has no tensor 'tokens'"),
        (data, llama | {"width": 64}, "--width: does not go with --model"),
        (data, llama | {"context": 1}, "--context: a model predicts tokens from those before them"),
        (data, llama | {"context": 500}, "windows of --context 500 tokens, and 1 of them held out"),
        (data, {"model": hub / "gpt2", "context": 33}, "--context: 33 is more than the 32 positions"),
    ]:
        result = run(*trainer(path, **(SHORT | {"steps": 1} | options)))
        assert result.returncode != 0
        assert words in result.stderr, (options, result.stderr)
        lines = [line for line in result.stderr.splitlines() if line and "--help" not in line]
        assert len(lines) == 1, result.stderr
