"""`fairshard train --model` leaves a folder that transformers loads, and `fairshard sample` continues texts with it."""

import json
import shutil
import subprocess

import pytest
import torch
from transformers import AutoModelForCausalLM

from support.hub_models import CONFIGS, SHORT, VOCABULARY, windows, write_folder, write_tokens
from support.trainer import PROGRAM, environment, run, train, trainer, write_text

PROMPT = [3, 14, 15, 92, 65]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    for name in CONFIGS:
        write_folder(name, root / name)
    write_tokens(root / "tokens.safetensors", vocab_size=VOCABULARY)
    return root


def loaded(folder):
    """By transformers, which finds nothing missing and nothing too many."""
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def held_out_loss(model):
    _, held_out = windows()
    with torch.no_grad():
        return model(held_out, labels=held_out).loss.item()


def continued(model, prompt, count):
    with torch.no_grad():
        options = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
        return model.generate(torch.tensor([prompt]), **options)[0].tolist()


def sampled(*arguments):
    command = [PROGRAM, "sample", *arguments, "--device=cpu"]
    result = subprocess.run(command, env=environment(), capture_output=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.decode("latin-1")  # any bytes


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "qwen3"])
def test_greedy_samples_are_those_of_transformers(hub, name):
    ours = sampled(hub / name, f"--tokens={','.join(map(str, PROMPT))}", "--count=20", "--temperature=0")
    assert [int(token) for token in ours.split()] == continued(loaded(hub / name), PROMPT, 20)


def test_a_sample_ends_with_the_end_of_text(hub, tmp_path):
    folder = shutil.copytree(hub / "llama", tmp_path / "model")
    whole = continued(loaded(folder), PROMPT, 20)
    strange = min(set(range(VOCABULARY)) - set(whole))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [strange, whole[9]]}))
    ours = sampled(folder, "--tokens=3,14,15,92,65", "--count=20", "--temperature=0")
    assert [int(token) for token in ours.split()] == whole[: whole.index(whole[9], len(PROMPT)) + 1]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt2", {"ranks": 2, "shard": "gradients"}),
        ("qwen2", {"ranks": 2, "overlap_gather": True, "release_parameters": True}),
        ("llama", {"ranks": 1, "offload": 3, "host_budget": "20KiB", "spill_dir": "."}),
        ("qwen3", {"ranks": 2, "nodes": 2, "slowmo": True, "slowmo_frequency": 2}),
    ],
)
def test_a_trained_model_is_loaded_by_transformers(hub, tmp_path, name, options):
    """With the loss that was logged in the end; and training goes on from there."""
    folder, runs, out = shutil.copytree(hub / name, tmp_path / "model"), tmp_path / "runs", tmp_path / "out"
    (folder / "tokenizer.json").write_text("{}")
    options = SHORT | {"steps": 4, "save": runs} | options | ({"spill_dir": tmp_path} if "offload" in options else {})
    data = hub / "tokens.safetensors"
    log = train(data, tmp_path / "log.jsonl", model=folder, export=out, **options)
    model = loaded(out)
    assert log.losses[-1] == pytest.approx(held_out_loss(model), rel=1e-5)
    assert held_out_loss(model) != pytest.approx(held_out_loss(loaded(folder)), rel=1e-3)
    assert type(model) is type(loaded(folder))
    assert (out / "tokenizer.json").read_text() == "{}"
    more = train(data, tmp_path / "more.jsonl", model=out, **(SHORT | {"steps": 1}))
    assert more.losses[0] < log.losses[0]


def test_a_checkpoint_is_exported_and_sampled_at_any_time(hub, tmp_path):
    runs = tmp_path / "runs"
    train(hub / "tokens.safetensors", tmp_path / "log.jsonl", model=hub / "llama", save=runs, **SHORT | {"steps": 2})
    result = run(PROGRAM, "export", runs, tmp_path / "narrow", "--dtype=bfloat16")
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "narrow/config.json").read_text())["dtype"] == "bfloat16"
    assert run(PROGRAM, "export", runs, tmp_path / "out").returncode == 0
    for name, parameter in loaded(tmp_path / "narrow").named_parameters():
        assert torch.equal(parameter, loaded(tmp_path / "out").get_parameter(name).bfloat16()), name
    of_checkpoint, of_folder = (
        sampled(where, "--tokens=5", "--count=9", "--temperature=0.7") for where in (runs, tmp_path / "out")
    )
    assert of_checkpoint == of_folder
    again = run(PROGRAM, "export", runs, tmp_path / "out")
    assert again.returncode == 1
    assert "config.json" in again.stderr and "exists" in again.stderr


def test_a_model_of_bytes_continues_text(hub, tmp_path):
    options = SHORT | {"model": hub / "bytes", "save": tmp_path / "runs", "steps": 40, "lr": 0.01, "context": 32}
    train(write_text(tmp_path), tmp_path / "log.jsonl", **options)
    text = sampled(tmp_path / "runs", "--prompt=17 bot", "--count=30", "--temperature=0")
    assert text.startswith("17 bot") and len(text) == len("17 bot") + 30 + 1


def test_what_is_wrong_is_named(hub, tmp_path):
    out, gpt = tmp_path / "out", tmp_path / "gpt"
    text = write_text(tmp_path)
    train(text, tmp_path / "log.jsonl", save=gpt, steps=1)
    own = shutil.copytree(hub / "bytes", tmp_path / "own")
    (own / "tokenizer.json").write_text("{}")
    training = trainer(hub / "tokens.safetensors", model=hub / "llama", **SHORT)
    for command, words in [
        ([*training, f"--export={out}"], "--export: means nothing without --save"),
        ([*trainer(text, save=tmp_path / "a"), f"--export={out}"], "--export: means nothing without --model"),
        ([*training, f"--save={tmp_path}/b", f"--export={hub}/gpt2"], "gpt2/config.json exists: choose another folder"),
        ([PROGRAM, "export", gpt, out], "has no 'hub/config': is it a checkpoint of `fairshard train --model`?"),
        ([PROGRAM, "sample", gpt, "--tokens=1"], "has a model of bytes: give --prompt, not --tokens"),
        ([PROGRAM, "sample", hub / "llama", "--prompt=a"], "bytes are no tokens of it: give --tokens"),
        ([PROGRAM, "sample", own, "--prompt=a"], "has a tokenizer, which this program does not run: give --tokens"),
        ([PROGRAM, "sample", hub / "llama", "--tokens=97"], "below 97, the vocab_size, but there is a 97"),
        ([PROGRAM, "sample", hub / "gpt2", "--tokens=1", "--count=40"], "gpt2: tokens are [1, 1] after 32 others"),
    ]:
        result = run(*command)
        assert result.returncode != 0
        assert words in result.stderr, (command, result.stderr)
